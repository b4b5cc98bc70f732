import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo
import pytest
import structlog
from bson import ObjectId

from turnstore_service.operations.sweeping import sweep_forever
from turnstore_service.storage.mongo.store import MongoStore


@pytest.fixture
async def store(mongodb_uri: str, database_name: str) -> AsyncIterator[MongoStore]:
    store = await MongoStore.open(mongodb_uri, database_name)
    yield store
    await store.close()


async def test_bodies_of_a_crashed_write_are_removed_when_they_are_old(
    store: MongoStore, mongodb_uri: str, database_name: str
) -> None:
    def chunk(age: timedelta) -> dict[str, Any]:
        return {
            "scope": "scope",
            "token": ObjectId().binary,
            "part": 0,
            "index": 0,
            "chunk": 0,
            "data": b"x",
            "owner": "none",
            "create_time": datetime.now(UTC) - age,
        }

    with pymongo.MongoClient[dict[str, Any]](mongodb_uri) as client:
        bodies = client[database_name]["bodies"]
        bodies.insert_many([chunk(timedelta(hours=2)), chunk(timedelta(minutes=1))])
        sweeping = asyncio.create_task(sweep_forever(store, first=0, between=0.01))
        async with asyncio.timeout(20):
            while bodies.count_documents({}) == 2:  # noqa: ASYNC110  # the database tells of no change
                await asyncio.sleep(0.01)
        sweeping.cancel()
        (left,) = bodies.find()
    assert datetime.now(UTC) - left["create_time"].replace(tzinfo=UTC) < timedelta(hours=1)


class FailingOnce:
    """Sweeps that fail the first time, as with a database that is away."""

    def __init__(self) -> None:
        self.sweeps = 0
        self.swept = asyncio.Event()

    async def sweep(self) -> int:
        self.sweeps += 1
        if self.sweeps == 1:
            raise RuntimeError("away")
        self.swept.set()
        return 3


async def test_sweep_that_fails_is_logged_and_followed_by_the_next() -> None:
    store = FailingOnce()
    with structlog.testing.capture_logs() as lines:
        sweeping = asyncio.create_task(sweep_forever(store, first=0, between=0))
        async with asyncio.timeout(10):
            await store.swept.wait()
            await asyncio.sleep(0)
        sweeping.cancel()
    assert lines[0] == {"event": "sweep failed", "error": "away", "log_level": "warning"}
    assert lines[1] == {"event": "swept", "chunks": 3, "log_level": "info"}
