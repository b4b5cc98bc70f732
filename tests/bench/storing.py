"""What a turn takes up, data and indexes, depending on where it stands."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.bench.histories import Bulk, talk, talk_with_forks
from tests.bench.measuring import Progress
from turnstore.v1 import history_service_pb2 as rpc
from turnstore_service.storage.mongo.driver import Database
from turnstore_service.storage.mongo.indexes import make_indexes


@dataclass(frozen=True)
class Sizes:
    """Turns in the lines that are compared."""

    depth: int = 10_000
    shallow: int = 10
    asides: int = 2000


@dataclass(frozen=True)
class Stored:
    """Bytes a turn of one kind of line beside another."""

    title: str
    base_title: str
    bound: float
    bytes_a_turn: float
    base_bytes: float

    @property
    def ratio(self) -> float:
        """How much more a turn takes up."""
        return self.bytes_a_turn / self.base_bytes


async def compare(uri: str, prefix: str, sizes: Sizes, progress: Progress) -> list[Stored]:
    """Fills databases of their own (`prefix` and a word) with each kind of line and measures them."""
    progress("bytes a turn, by depth")
    deep = await _bytes(uri, f"{prefix}_deep", [talk("deep", sizes.depth, chained=True)])
    chains = (talk(f"flat {n}", sizes.shallow, chained=True) for n in range(sizes.depth // sizes.shallow))
    flat = await _bytes(uri, f"{prefix}_flat", chains)
    progress("bytes a turn, with side requests")
    forked = talk_with_forks("asides", sizes.asides, range(1, sizes.asides))
    asides = await _bytes(uri, f"{prefix}_asides", [forked])
    # As many turns, since small collections waste more.
    plain = await _bytes(uri, f"{prefix}_plain", [talk("plain", 2 * sizes.asides - 1, chained=True)])
    return [
        Stored(f"a chain of depth {sizes.depth:,}", f"chains of depth {sizes.shallow:,}", 1.05, deep, flat),
        Stored(
            f"a chain of {sizes.asides:,} with a side request before each turn",
            "a chain without",
            1.1,
            asides,
            plain,
        ),
    ]


async def _bytes(uri: str, name: str, lines: Iterable[Iterable[rpc.StoreResponseRequest]]) -> float:
    database, admin = Database(uri, name), Database(uri, "admin")
    try:
        await make_indexes(database)
        bulk = Bulk(database)
        turns = 0
        for line in lines:
            turns += await bulk.put(line)
        # Sizes of indexes are those of the last checkpoint.
        await admin.command("fsync")
        stats = await database.command("dbStats", freeStorage=1)
        # What the database has set free in a file, and will use again, depends on when its checkpoints came.
        in_use = stats["dataSize"] + stats["indexSize"] - stats["indexFreeStorageSize"]
        return float(in_use) / turns
    finally:
        await database.command("dropDatabase")
        database.close()
        admin.close()
