"""A store on a database of the test's own, and the documents in it."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pymongo
import pytest

from tests.storage.turns import Raw
from turnstore_service.storage.mongo.store import MongoStore


@pytest.fixture
async def store(mongodb_uri: str, database_name: str) -> AsyncIterator[MongoStore]:
    store = await MongoStore.open(mongodb_uri, database_name)
    await store.migrate()
    yield store
    await store.close()


@pytest.fixture
def raw(mongodb_uri: str, database_name: str) -> Iterator[Raw]:
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri, tz_aware=True) as client:
        yield Raw(client, database_name)
