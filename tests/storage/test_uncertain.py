"""Writes whose outcome their caller does not learn: each is there whole, or not at all, and a repetition finds it."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pymongo
import pytest

from tests.faults.replica_set import ReplicaSet, replica_set
from tests.storage.turns import MIB, Raw, items, read, turn
from turnstore_service.replay.values import Status
from turnstore_service.storage.errors import (
    ResponseNotFoundError,
    StoreDeadlineError,
    StoreUnavailableError,
)
from turnstore_service.storage.mongo.driver import deadline
from turnstore_service.storage.mongo.store import MongoStore
from turnstore_service.storage.values import Scope, Write

DATABASE = "uncertain"
LARGE = items("in", 3, 4 * MIB)
OUTPUT = items("out", 3, 4 * MIB)
REQUEST = "7d8a1c52-4f0b-4a55-9d0e-7f1c2a3b4c5d"
NO_MAJORITY = {"code": 64, "errmsg": "no majority"}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with replica_set(tmp_path_factory.mktemp("uncertain"), 1, {"enableTestCommands": "1"}) as members:
        yield members


@pytest.fixture
async def store(members: ReplicaSet) -> AsyncIterator[MongoStore]:
    store = await MongoStore.open(members.uri, DATABASE)
    await store.migrate()
    yield store
    await store.close()


@pytest.fixture
def raw(members: ReplicaSet) -> Iterator[Raw]:
    with pymongo.MongoClient[dict[str, Any]](members.uri) as client:
        yield Raw(client, DATABASE)


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> Scope:
    return Scope("tests", request.node.name)


async def _appears(store: MongoStore, scope: Scope, revision: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                stored, _, _ = await store.reading.response(scope, "large")
            except ResponseNotFoundError:
                continue
            if stored.revision == revision:
                return


async def test_create_without_a_majority_keeps_its_bodies(
    members: ReplicaSet, store: MongoStore, scope: Scope
) -> None:
    write = turn("large", conversation="c", given=LARGE, request_id=REQUEST)
    failing = members.failing(
        ["insert"], namespace=f"{DATABASE}.responses", writeConcernError=NO_MAJORITY, times=1
    )
    with failing, pytest.raises(StoreUnavailableError):
        await store.writing.store(scope, write)
    assert await read(store, "large", scope) == (LARGE, [], "")
    assert (await store.writing.store(scope, write)).revision == 1
    assert await read(store, "large", scope) == (LARGE, [], "")


async def test_update_without_a_majority_keeps_its_bodies(
    members: ReplicaSet, store: MongoStore, scope: Scope
) -> None:
    await store.writing.store(scope, turn("large", status=Status.IN_PROGRESS, given=LARGE, made=LARGE[:1]))
    write = turn("large", made=OUTPUT, request_id=REQUEST)
    failing = members.failing(["findAndModify"], writeConcernError=NO_MAJORITY, times=1)
    with failing, pytest.raises(StoreUnavailableError):
        await store.writing.store(scope, write)
    assert await read(store, "large", scope) == (LARGE, OUTPUT, "")
    assert (await store.writing.store(scope, write)).revision == 2
    assert await read(store, "large", scope) == (LARGE, OUTPUT, "")


async def test_create_that_goes_on_after_its_caller_has_gone_is_whole(
    members: ReplicaSet, store: MongoStore, scope: Scope
) -> None:
    write = turn("large", conversation="cancelled", given=LARGE, request_id=REQUEST)
    blocked = members.failing(
        ["insert"], namespace=f"{DATABASE}.responses", blockConnection=True, blockTimeMS=700, times=1
    )
    with blocked as point:
        writing = asyncio.create_task(store.writing.store(scope, write))
        await point.reached()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    await _appears(store, scope, 1)
    assert await read(store, "large", scope) == (LARGE, [], "")


async def test_create_whose_deadline_passes_in_the_database_can_be_repeated(
    members: ReplicaSet, store: MongoStore, raw: Raw, scope: Scope
) -> None:
    write = turn("small", conversation="late", given=items("in", 1), request_id=REQUEST)
    blocked = members.failing(["insert"], blockConnection=True, blockTimeMS=2000, times=1)
    with blocked as point:
        writing = asyncio.create_task(_with_deadline(store, scope, write))
        await point.reached()
        with pytest.raises(StoreDeadlineError):
            await writing
    assert (await store.writing.store(scope, write)).revision == 1
    assert await read(store, "small", scope) == (items("in", 1), [], "")
    assert raw.places("late") == [1]


async def _with_deadline(store: MongoStore, scope: Scope, write: Write) -> None:
    deadline.set(time.monotonic() + 1)
    await store.writing.store(scope, write)


async def test_update_that_goes_on_after_its_caller_has_gone_is_whole(
    members: ReplicaSet, store: MongoStore, raw: Raw, scope: Scope
) -> None:
    await store.writing.store(scope, turn("large", status=Status.IN_PROGRESS, given=LARGE, made=LARGE[:1]))
    write = turn("large", made=OUTPUT, request_id=REQUEST)
    with members.failing(["findAndModify"], blockConnection=True, blockTimeMS=700, times=1) as point:
        writing = asyncio.create_task(store.writing.store(scope, write))
        await point.reached()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    await _appears(store, scope, 2)
    assert await read(store, "large", scope) == (LARGE, OUTPUT, "")


async def test_lost_connection_during_a_create_is_made_good_by_the_driver(
    members: ReplicaSet, store: MongoStore, raw: Raw, scope: Scope
) -> None:
    with members.failing(["insert"], closeConnection=True, times=1):
        await store.writing.store(scope, turn("large", conversation="again", given=LARGE))
    assert await read(store, "large", scope) == (LARGE, [], "")
    assert raw.places("again") == [1]
