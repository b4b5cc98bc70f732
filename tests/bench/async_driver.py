"""The service on PyMongo's AsyncMongoClient in place of Motor: the driver exchanged, and nothing else.

Run like `python -m turnstore_service`. The differences between the two drivers, all of them here: the client is
bound to the loop that runs when it is first used, `aggregate` and `list_indexes` are awaited, and so is `close`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import AsyncMongoClient

from turnstore_service.storage.mongo import driver


class AsyncDatabase(driver.Database):
    """The driver's `Database` on the other client."""

    def close(self) -> None:
        self._closing = asyncio.ensure_future(self._client.close())

    async def aggregate(
        self, collection: str, pipeline: Sequence[Mapping[str, Any]]
    ) -> list[driver.Document]:
        async with self._call("aggregate"):
            return await (await self._database[collection].aggregate(pipeline)).to_list(None)

    async def indexes(self, collection: str) -> list[driver.Document]:
        async with self._call("list_indexes"):
            return await (await self._database[collection].list_indexes()).to_list(None)


driver.AsyncIOMotorClient = AsyncMongoClient  # type: ignore[misc]
driver.Database = AsyncDatabase  # type: ignore[misc]

if __name__ == "__main__":
    from turnstore_service.cli import main

    main()
