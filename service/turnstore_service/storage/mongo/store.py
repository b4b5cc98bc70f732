"""The store on MongoDB, put together."""

from datetime import timedelta

from turnstore_service.observing import NoObserver, Observer
from turnstore_service.storage.errors import StoreError
from turnstore_service.storage.mongo.bodies import Bodies
from turnstore_service.storage.mongo.driver import MAX_CALLS, Database
from turnstore_service.storage.mongo.erasing import Erasing
from turnstore_service.storage.mongo.indexes import index_problems, make_indexes
from turnstore_service.storage.mongo.lines import Lines
from turnstore_service.storage.mongo.reading import Reading
from turnstore_service.storage.mongo.writing import Writing

ORPHAN_AGE = timedelta(hours=1)
"""Bodies without a response are removed when they are older: far longer than any write takes."""


_STANDS_ALONE = (
    "the database is a single server without replication, which cannot keep what it has acknowledged: start it with"
    " --replSet and call rs.initiate() once, one member is enough"
)


class StandsAloneError(StoreError):
    """The database is no replica set; the message says what to do."""


class MongoStore:
    """Everything that is kept, in one database of MongoDB.

    `reading`, `writing` and `erasing` hold the methods, each with its guarantee. For all of them: reads go to
    the primary and see every write that was answered before; a write is durable on a majority of the members
    when it returns; StoreUnavailableError and StoreDeadlineError say that the database could not answer, and of
    a write that its outcome is unknown: it is there whole, or not at all.
    """

    def __init__(
        self,
        database: Database,
        *,
        observer: Observer | None = None,
        abandon_after: timedelta | None = None,
        erase_grace: timedelta = timedelta(hours=24),
    ) -> None:
        self._database = database
        self._bodies = Bodies(database)
        lines = Lines(database)
        self.reading = Reading(database, lines, self._bodies, abandon_after)
        self.writing = Writing(database, lines, self._bodies, self.reading, observer or NoObserver())
        self.erasing = Erasing(database, lines, self._bodies, self.reading, erase_grace)

    @classmethod
    async def open(
        cls,
        uri: str,
        database: str,
        *,
        max_calls: int = MAX_CALLS,
        observer: Observer | None = None,
        abandon_after: timedelta | None = None,
        erase_grace: timedelta = timedelta(hours=24),
    ) -> "MongoStore":
        """A store on a database; connections are made when they are first needed."""
        return cls(
            Database(uri, database, max_calls, observer),
            observer=observer,
            abandon_after=abandon_after,
            erase_grace=erase_grace,
        )

    async def ping(self) -> None:
        """Asks the primary for a sign of life, and for its time, which ours then follows.

        Raises StoreUnavailableError, StoreDeadlineError.
        """
        await self._database.now()

    async def problems(self) -> list[str]:
        """What is wrong about the database, a sentence each; empty when it can be relied on."""
        alone = await self._stands_alone()
        return [*([_STANDS_ALONE] if alone else ()), *await index_problems(self._database)]

    async def migrate(self) -> None:
        """Makes the indexes that are missing.

        Raises WrongIndexError for one that stands differently, StandsAloneError for a server without replication.
        """
        if await self._stands_alone():
            raise StandsAloneError(_STANDS_ALONE)
        await make_indexes(self._database)

    async def _stands_alone(self) -> bool:
        """Whether the server is neither a member of a replica set nor a router of a sharded cluster."""
        told = await self._database.command("hello")
        return "setName" not in told and told.get("msg") != "isdbgrid"

    async def sweep(self) -> int:
        """Removes bodies that no response names; how many chunks."""
        return await self._bodies.sweep(ORPHAN_AGE)

    async def close(self) -> None:
        """Ends all connections."""
        self._database.close()
