"""The service on PyMongo's AsyncMongoClient in place of Motor: the driver exchanged, and nothing else.

Run like `python -m turnstore_service`. The differences between the two drivers, all of them here: the client is
bound to the loop that runs when it is first used, and `list_indexes` and `close` are awaited.
"""

import asyncio

from pymongo import AsyncMongoClient

from turnstore_service.storage.mongo import driver


class AsyncDatabase(driver.Database):
    """The driver's `Database` on the other client."""

    def close(self) -> None:
        self._closing = asyncio.ensure_future(self._client.close())

    async def indexes(self, collection: str) -> list[driver.Document]:
        async with self._call("list_indexes"):
            return await (await self._database[collection].list_indexes()).to_list(None)


driver.AsyncIOMotorClient = AsyncMongoClient  # type: ignore[misc]
driver.Database = AsyncDatabase  # type: ignore[misc]

if __name__ == "__main__":
    from turnstore_service.cli import main

    main()
