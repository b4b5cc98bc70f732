"""The driver: everything that is Motor's is in this module, so that its successor is a change of one file.

Motor runs PyMongo in a thread pool. Two consequences are dealt with here: the pool is the real limit of
concurrency, so calls queue in order before it (waiters inside the driver are not first-come, and some would
wait for seconds under load); and cancelling the awaiting task does not stop the thread, only the deadline does,
which is therefore handed to the driver.
"""

import asyncio
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, NoReturn

MAX_CALLS = 24
"""Database calls at one time and process. Two cores saturate well below this; more only adds waiting."""

os.environ.setdefault("MOTOR_MAX_WORKERS", str(MAX_CALLS))  # read by Motor when it is imported

import pymongo  # noqa: E402
from bson import errors as bson_errors  # noqa: E402
from bson.codec_options import CodecOptions  # noqa: E402
from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorCollection  # noqa: E402
from pymongo import errors as driver_errors  # noqa: E402
from pymongo.read_preferences import ReadPreference  # noqa: E402
from pymongo.write_concern import WriteConcern  # noqa: E402

from turnstore_service.observing import NoObserver, Observer  # noqa: E402
from turnstore_service.storage.errors import (  # noqa: E402
    StoreBrokenError,
    StoreDeadlineError,
    StoreError,
    StoreUnavailableError,
)

Document = dict[str, Any]
_CODEC: CodecOptions[Document] = CodecOptions(tz_aware=True)

deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
"""When the present call must have ended, on the monotonic clock; None: no end."""


async def in_time(wait: Coroutine[Any, Any, object]) -> None:
    """Waits, but not beyond the present call's deadline. Raises StoreDeadlineError."""
    ends = deadline.get()
    try:
        async with asyncio.timeout(None if ends is None else max(0.0, ends - time.monotonic())):
            await wait
    except TimeoutError:
        raise StoreDeadlineError("the deadline passed before it was this call's turn") from None


DUPLICATE_KEY = 11000
_TOO_LARGE = frozenset({388, 10334, 17280, 17419, 17420})
"""Server codes for a document above 16 MiB, an index key that is too long, or (388) more index entries than one
write can have in the storage engine's cache."""
_AWAY = frozenset(
    {
        *(6, 7, 89, 9001),  # unreachable
        *(91, 189, 10107, 11600, 11602, 13435, 13436),  # no primary, or one that is stepping or shutting down
        *(64, 100, 133, 134),  # too few members for a majority
        *(63, 150, 13388),  # a sharded cluster that is moving data
        *(43, 175, 237, 246),  # a read that was cut off by one of these
        *(24, 46, 112, 262, 365, 11601),  # busy: locks, conflicts, a full cache, an operator's kill
        *(13, 18),  # what a member answers whose users are not synchronised yet
    }
)
"""Server codes for "not now"."""
_SELECTION_SECONDS = 5.0
"""How long a call waits for a primary: an election takes about as long, and the caller retries anyway."""
_CALL_SECONDS = 10.0
"""How long one call may take, also for a caller with more time. A call that meets the loss of the primary looks for
another one as long as it may, and its caller is to hear that the database is away before the deadline."""


_CLOCKS_DIFFER = timedelta(seconds=0.5)
"""What the clocks of a replica and the database may be apart before it matters."""


class DuplicateKeyError(StoreError):
    """A unique index refused a write."""

    def __init__(self, fields: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(fields)))
        self.fields = fields
        """Names of the index's fields."""


class DocumentTooLargeError(StoreError):
    """A document would have grown past the database's limit."""


class Database:
    """One database: the calls that the store makes, with deadlines, order and errors dealt with.

    Reads go to the primary. Writes are acknowledged by a majority of the members, journaled.
    Every method raises StoreUnavailableError or StoreDeadlineError when the database cannot answer in time;
    nothing of the driver's gets past it.
    """

    def __init__(
        self, uri: str, name: str, max_calls: int = MAX_CALLS, observer: Observer | None = None
    ) -> None:
        self._client: AsyncIOMotorClient[Document] = AsyncIOMotorClient(
            uri,
            maxPoolSize=max_calls + 4,
            serverSelectionTimeoutMS=int(_SELECTION_SECONDS * 1000),
            connectTimeoutMS=5000,
            retryReads=True,
            retryWrites=True,
            appname="turnstore",
        )
        self._database = self._client.get_database(
            name,
            codec_options=_CODEC,
            read_preference=ReadPreference.PRIMARY,
            write_concern=WriteConcern("majority", j=True),
        )
        self._ahead = timedelta()
        self._collections: dict[str, AsyncIOMotorCollection[Document]] = {}
        self._calls = _Calls(asyncio.Semaphore(max_calls), observer or NoObserver(), self._client)

    def _collection(self, name: str) -> AsyncIOMotorCollection[Document]:
        # Kept, because the driver makes a new one each time it is asked.
        found = self._collections.get(name)
        if found is None:
            found = self._collections[name] = self._database[name]
        return found

    async def now(self) -> datetime:
        """The time of the primary's clock. From then on `utc_now` follows it."""
        told: datetime = (await self.command("hello"))["localTime"]
        ahead = told - datetime.now(UTC)
        # What the question took is no difference of clocks.
        self._ahead = ahead if abs(ahead) >= _CLOCKS_DIFFER else timedelta()
        return told

    def utc_now(self) -> datetime:
        """Now, by the database's clock as `now` last told it: UTC, in whole milliseconds, as dates are kept there."""
        now = datetime.now(UTC) + self._ahead
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def close(self) -> None:
        """Ends all connections."""
        self._client.close()

    def _call(self, operation: str) -> "_Call":
        return _Call(self._calls, operation)

    async def find(
        self,
        collection: str,
        query: Mapping[str, Any],
        projection: Mapping[str, Any] | None = None,
        sort: Sequence[tuple[str, int]] | None = None,
        limit: int = 0,
        hint: str | None = None,
    ) -> list[Document]:
        """The documents that match, at most `limit` (0: all), by the index that `hint` names if it does."""
        async with self._call("find"):
            if limit:
                cursor = await self._find_few(collection, query, projection, sort, limit, hint)
                if not cursor["id"]:
                    found: list[Document] = cursor["firstBatch"]
                    return found
                # They do not fit into one reply, which has 16 MiB. The driver's cursor reads reply by reply.
                await self._database.command("killCursors", collection, cursors=[cursor["id"]])
            every = self._collection(collection).find(
                query, projection, limit=limit, batch_size=limit, hint=hint
            )
            if sort:
                every = every.sort(sort)
            documents: list[Document] = await every.to_list(None)
            return documents

    async def _find_few(
        self,
        collection: str,
        query: Mapping[str, Any],
        projection: Mapping[str, Any] | None,
        sort: Sequence[tuple[str, int]] | None,
        limit: int,
        hint: str | None,
    ) -> Document:
        """One reply to a find, as a bare command: that takes a sixth less of the processor than a cursor.

        A cursor repeats a read that lost its connection or its primary; so is it done here.
        """
        command: Document = {"find": collection, "filter": query, "limit": limit, "batchSize": limit}
        if projection is not None:
            command["projection"] = projection
        if sort is not None:
            command["sort"] = dict(sort)
        if hint is not None:
            command["hint"] = hint
        try:
            reply = await self._database.command(dict(command), codec_options=_CODEC)
        except driver_errors.PyMongoError as error:
            if not _passes(error):
                raise
            reply = await self._database.command(dict(command), codec_options=_CODEC)
        cursor: Document = reply["cursor"]
        return cursor

    async def find_one(
        self,
        collection: str,
        query: Mapping[str, Any],
        projection: Mapping[str, Any] | None = None,
        sort: Sequence[tuple[str, int]] | None = None,
        hint: str | None = None,
    ) -> Document | None:
        """The first document that matches."""
        documents = await self.find(collection, query, projection, sort, limit=1, hint=hint)
        return documents[0] if documents else None

    async def insert(self, collection: str, document: Document) -> None:
        """Durable on a majority when it returns. Raises DuplicateKeyError, DocumentTooLargeError."""
        async with self._call("insert"):
            await self._collection(collection).insert_one(document)

    async def insert_many(self, collection: str, documents: Sequence[Document]) -> None:
        """Durable on a majority when it returns; in order, and not all or nothing."""
        async with self._call("insert"):
            await self._collection(collection).insert_many(documents)

    async def find_and_update(
        self,
        collection: str,
        query: Mapping[str, Any],
        update: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        projection: Mapping[str, Any] | None = None,
        *,
        before: bool = False,
    ) -> Document | None:
        """Changes the document that matches, in one step, and gives it as it is then (or was before)."""
        async with self._call("find_and_update"):
            found: Document | None = await self._collection(collection).find_one_and_update(
                query, update, projection=projection, return_document=not before
            )
            return found

    async def update_one(
        self, collection: str, query: Mapping[str, Any], update: Mapping[str, Any], *, upsert: bool = False
    ) -> int:
        """Changes the first document that matches; how many matched."""
        async with self._call("update"):
            result = await self._collection(collection).update_one(query, update, upsert=upsert)
            return int(result.matched_count)

    async def update_many(
        self,
        collection: str,
        query: Mapping[str, Any],
        update: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    ) -> int:
        """Changes all documents that match, each in one step; how many were changed."""
        async with self._call("update"):
            result = await self._collection(collection).update_many(query, update)
            return int(result.modified_count)

    async def delete_many(self, collection: str, query: Mapping[str, Any]) -> int:
        """Removes all documents that match; how many."""
        async with self._call("delete"):
            return int((await self._collection(collection).delete_many(query)).deleted_count)

    async def indexes(self, collection: str) -> list[Document]:
        """The indexes of a collection; none for one that does not exist."""
        async with self._call("list_indexes"):
            return [dict(index) for index in await self._collection(collection).list_indexes().to_list(None)]

    async def command(self, name: str, value: Any = 1, **arguments: Any) -> Document:
        """Runs a database command."""
        async with self._call("command"):
            return dict(await self._database.command(name, value, codec_options=_CODEC, **arguments))


class _Calls:
    """What all calls share."""

    __slots__ = ("client", "in_doubt", "observer", "turns")

    def __init__(
        self, turns: asyncio.Semaphore, observer: Observer, client: AsyncIOMotorClient[Document]
    ) -> None:
        self.turns = turns
        self.observer = observer
        self.client = client
        self.in_doubt = True
        """The last call found the database away, or there was none yet."""


class _Call:
    """Surrounds one call to the database: its turn, its deadline, and the errors that may get out."""

    __slots__ = ("_began", "_calls", "_entered", "_operation", "_timeout")

    def __init__(self, calls: _Calls, operation: str) -> None:
        self._calls = calls
        self._operation = operation
        self._timeout: AbstractContextManager[Any] | None = None

    async def __aenter__(self) -> None:
        self._began = time.monotonic()
        if self._calls.turns.locked():  # a timer costs something, and mostly nobody waits
            await self._wait_in_time()
        else:
            await self._calls.turns.acquire()
        self._entered = time.monotonic()
        self._calls.observer.database_call_began()
        ends = deadline.get()
        if ends is not None:
            if self._calls.in_doubt:
                await self._find_primary(ends)
            seconds = ends - time.monotonic()
            if seconds <= 0:
                self._end("deadline")
                raise StoreDeadlineError("the deadline passed before the database was asked")
            self._timeout = pymongo.timeout(min(seconds, _CALL_SECONDS))
            self._timeout.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timeout is not None:
            self._timeout.__exit__(kind, error, traceback)
        if error is None:
            self._calls.in_doubt = False
            self._end("ok")
        elif isinstance(error, (driver_errors.PyMongoError, bson_errors.BSONError)):
            self._raise(error)
        else:
            self._end("cancelled" if isinstance(error, asyncio.CancelledError) else "error")

    async def _wait_in_time(self) -> None:
        try:
            await in_time(self._calls.turns.acquire())
        except StoreDeadlineError:
            self._entered = time.monotonic()
            self._calls.observer.database_call_began()
            self._calls.observer.database_call(self._operation, "deadline", 0.0, self._entered - self._began)
            raise

    async def _find_primary(self, ends: float) -> None:
        """Looks for a primary for a while. A call with a deadline would look for one until then, however far that
        is: then the caller would not learn that the database is away, and others would wait for this call's turn.
        """
        seconds = min(_SELECTION_SECONDS, ends - self._entered)
        if seconds <= 0:
            return
        try:
            with pymongo.timeout(seconds):
                await self._calls.client.admin.command("ping")
        except driver_errors.PyMongoError as error:
            self._raise(error)
        except BaseException:  # the caller is gone
            self._end("cancelled")
            raise

    def _raise(self, error: driver_errors.PyMongoError | bson_errors.BSONError) -> NoReturn:
        translated, outcome = _translate(error)
        self._calls.in_doubt = outcome in ("unavailable", "deadline")
        self._end(outcome)
        raise translated from error

    def _end(self, outcome: str) -> None:
        self._calls.turns.release()
        self._calls.observer.database_call(
            self._operation, outcome, time.monotonic() - self._entered, self._entered - self._began
        )


def _passes(error: driver_errors.PyMongoError) -> bool:
    """Whether a read may do better at once, with another connection or another primary."""
    if isinstance(error, driver_errors.ServerSelectionTimeoutError) or error.timeout:
        return False
    return isinstance(error, driver_errors.AutoReconnect) or getattr(error, "code", None) in _AWAY


def _translate(error: driver_errors.PyMongoError | bson_errors.BSONError) -> tuple[StoreError, str]:
    if isinstance(error, driver_errors.DocumentTooLarge):
        return DocumentTooLargeError("the document is too large"), "error"
    if isinstance(error, bson_errors.BSONError):
        return StoreBrokenError("a document cannot be encoded or decoded"), "error"
    if isinstance(error, driver_errors.BulkWriteError):
        codes = {detail.get("code") for detail in error.details.get("writeErrors", ())}
        if codes == {DUPLICATE_KEY}:
            return DuplicateKeyError(frozenset()), "conflict"
    code = getattr(error, "code", None)
    if code == DUPLICATE_KEY:
        details = getattr(error, "details", None) or {}
        return DuplicateKeyError(frozenset(details.get("keyPattern", ()))), "conflict"
    if code in _TOO_LARGE:
        return DocumentTooLargeError("the document is too large"), "error"
    ends = deadline.get()
    if error.timeout and ends is not None and time.monotonic() >= ends - 0.005:
        return StoreDeadlineError("the deadline passed inside a database call"), "deadline"
    if isinstance(error, driver_errors.OperationFailure) and not (
        code in _AWAY or error.timeout or error.has_error_label("RetryableWriteError")
    ):
        return StoreBrokenError("the database refused a command"), "error"
    return StoreUnavailableError("the database could not answer"), "unavailable"
