"""The runs of the benchmark: what is started, filled and measured, in which order."""

import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.bench import beside, long_runs, scaling, servers, storing
from tests.bench.beside import Compared, Effort
from tests.bench.calls import Data
from tests.bench.histories import Bulk
from tests.bench.measuring import Progress, Target
from tests.bench.results import Results
from tests.database import drop_database
from turnstore_service.storage.mongo.driver import Database
from turnstore_service.storage.mongo.indexes import make_indexes

_Sides = Callable[[], AbstractAsyncContextManager[tuple[Target, Target]]]


@dataclass(frozen=True)
class Plan:
    """How much is stored and measured."""

    turns_read: int = 1000
    passes: int = 3
    """Over the calls, each with processes of its own: two of the same kind differ by some percent for life."""
    calls: Effort = field(default_factory=Effort)
    """Of one pass."""
    alone: Effort = field(default_factory=lambda: Effort(rounds=14, seconds=0.25))
    lines: scaling.Sizes = field(default_factory=scaling.Sizes)
    storage: storing.Sizes = field(default_factory=storing.Sizes)
    long: long_runs.Sizes = field(default_factory=long_runs.Sizes)


async def measure(uri: str, plan: Plan, progress: Progress) -> Results:
    """The service beside the floor, then how its cost grows, then what a turn takes up."""
    results = Results()
    async with _begin(uri) as (directory, name, database):
        data = Data(Bulk(database), plan.turns_read)
        progress("putting the lines that are read and written")
        await data.put(("service", "floor"))
        sides = partial(_service_and_floor, directory, uri, name)
        results.compared.extend(await _in_passes(data, sides, plan, progress))
        pairs = await scaling.put(Bulk(database), plan.lines, progress)
        async with servers.service(directory, uri, name) as service:
            results.scaled.extend(await scaling.compare(pairs, service, plan.alone, progress))
    async with _begin(uri) as (_, name, _):
        results.stored.extend(await storing.compare(uri, name, plan.storage, progress))
    return results


async def measure_drivers(uri: str, plan: Plan, progress: Progress) -> Results:
    """The service on Motor beside the service on PyMongo's own client."""
    results = Results()
    async with _begin(uri) as (directory, name, database):
        data = Data(Bulk(database), plan.turns_read)
        await data.put(("PyMongo", "Motor"))
        sides = partial(_both_drivers, directory, uri, name)
        results.drivers.extend(await _in_passes(data, sides, plan, progress))
    return results


async def measure_long(uri: str, plan: Plan, progress: Progress) -> Results:
    """Many writers of one conversation, and the growth of a worker's memory."""
    results = Results()
    async with _begin(uri) as (directory, name, _):
        async with servers.service(directory, uri, name) as service:
            results.contention = await long_runs.contend(service, plan.long, progress)
        async with servers.service(directory, uri, name) as service:
            results.growth = await long_runs.grow(service, plan.long, progress)
    return results


async def _in_passes(data: Data, sides: _Sides, plan: Plan, progress: Progress) -> list[Compared]:
    """Each kind of call on both sides, by processes that are started anew for each pass."""
    compared: list[Compared] = []
    for number in range(1, plan.passes + 1):
        async with sides() as both:
            for index, row in enumerate(data.rows()):
                title = f"pass {number} of {plan.passes}"
                found = await beside.compare(row, both, plan.calls, partial(_told, progress, title))
                if number == 1:
                    compared.append(found)
                else:
                    compared[index].add(found)
    return compared


def _told(progress: Progress, title: str, text: str) -> None:
    progress(f"{title}: {text}")


@asynccontextmanager
async def _service_and_floor(directory: Path, uri: str, name: str) -> AsyncIterator[tuple[Target, Target]]:
    async with (
        servers.service(directory, uri, name) as service,
        servers.floor(directory, uri, name) as floor,
    ):
        yield service, floor


@asynccontextmanager
async def _both_drivers(directory: Path, uri: str, name: str) -> AsyncIterator[tuple[Target, Target]]:
    async with (
        servers.service(directory, uri, name, "PyMongo", "tests.bench.async_driver") as pymongo,
        servers.service(directory, uri, name, "Motor") as motor,
    ):
        yield pymongo, motor


@asynccontextmanager
async def _begin(uri: str) -> AsyncIterator[tuple[Path, str, Database]]:
    """A directory, and a database with its indexes; both are removed at the end."""
    name = f"turnstore_bench_{uuid.uuid4().hex[:12]}"
    directory = Path(tempfile.mkdtemp(prefix="turnstore-bench-"))
    database = Database(uri, name)
    try:
        await make_indexes(database)
        yield directory, name, database
    finally:
        database.close()
        drop_database(uri, name)
        shutil.rmtree(directory)
