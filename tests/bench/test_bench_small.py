"""The benchmark works, and compares like with like: its bulk documents and its floor's are the service's."""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import bson
import pytest
from rich.console import Console

from tests.bench import long_runs, scaling, servers, storing
from tests.bench.beside import CALLERS, LEAST_RATE, MOST_MEDIAN, Compared, Effort
from tests.bench.calls import create_request, update_request
from tests.bench.histories import Bulk, name, store_request, talk, talk_with_forks, talk_with_tools
from tests.bench.long_runs import Contention, Growth
from tests.bench.measuring import Sample, Target
from tests.bench.plans import Plan, measure, measure_drivers, measure_long
from tests.bench.results import Results
from tests.bench.storing import Stored
from tests.service_process import service_in_process
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc
from turnstore_service.replay.values import Status
from turnstore_service.storage.mongo.driver import Database
from turnstore_service.storage.mongo.indexes import PATHS, RESPONSES, make_indexes

TINY = Plan(
    turns_read=60,
    passes=2,
    calls=Effort(rounds=2, seconds=0.01, callers=4, calls_alone=5, calls_at_once=2),
    alone=Effort(rounds=2, seconds=0.01),
    lines=scaling.Sizes(
        long_conversation=200, conversation=80, long_chain=120, chain=60, forks=10, asides=60, failed=60
    ),
    storage=storing.Sizes(depth=40, shallow=10, asides=10),
    long=long_runs.Sizes(writers=4, rounds=2, seconds=0.1, few_calls=40, many_calls=120, callers=4),
)
# What two writes of the same turn have each of their own.
OWN = {"create_time", "update_time"}


@pytest.fixture
async def database(mongodb_uri: str, database_name: str) -> AsyncIterator[Database]:
    database = Database(mongodb_uri, database_name)
    await make_indexes(database)
    yield database
    database.close()


async def _call(target: Target, request: rpc.StoreResponseRequest) -> None:
    await target.call("StoreResponse", request.SerializeToString())


async def _stored_by_service(
    mongodb_uri: str, database_name: str, requests: Iterable[rpc.StoreResponseRequest]
) -> None:
    async with service_in_process(mongodb_uri=mongodb_uri, mongodb_database=database_name) as service:
        stub = history_service_pb2_grpc.HistoryServiceStub(service.channel)
        for request in requests:
            await stub.StoreResponse(request)


async def _comparable(database: Database) -> list[dict[str, Any]]:
    """What a database holds, with threads and blocks, whose names are chosen at random, numbered as met."""
    responses = await database.find(RESPONSES, {}, sort=[("create_time", 1), ("_id", 1)])
    responses.sort(key=lambda one: (one.get("conversation_id", ""), one["place"], one["id"]))
    paths = await database.find(PATHS, {}, sort=[("_id", 1)])
    numbers: dict[bytes, int] = {}

    def number(block: bytes) -> int:
        return numbers.setdefault(block, len(numbers))

    def thread(value: bytes) -> tuple[int, bytes]:
        return number(value[1:13]), value[13:17]

    for one in responses:
        one.update(thread=thread(one["thread"]), root=thread(one["root"]))
        for field in OWN:
            one[field] = type(one[field])
    for path in paths:
        path.update(_id=number(path["_id"]), root=thread(path["root"]))
        path["pairs"] = [(thread(pair[:17]), pair[17:]) for pair in path["pairs"]]
        if "before" in path:
            path["before"] = thread(path["before"])
    return [*responses, *sorted(paths, key=lambda path: path["_id"])]


LINES: dict[str, Sequence[rpc.StoreResponseRequest]] = {
    "conversation": list(talk("one", 4)),
    "chain": list(talk("one", 4, chained=True)),
    "tools": list(talk_with_tools("one", 4)),
    "failed": list(talk("one", 3, status=Status.FAILED)),
    "side requests": list(talk_with_forks("one", 140, range(1, 140))),
    "forks at one place": [
        *talk("one", 3, chained=True),
        *(
            request
            for side in ("a", "b", "c")
            for request in talk(side, 2, chained=True, after=name("resp", "one", 0))
        ),
    ],
    "out of a conversation": [*talk("one", 2), *talk("two", 2, chained=True, after=name("resp", "one", 0))],
    "payload": [store_request("resp_1", payload='{"a":1}'), update_request("resp_2")],
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
async def test_bulk_documents_are_those_of_the_service(
    mongodb_uri: str, database_name: str, database: Database, line: Sequence[rpc.StoreResponseRequest]
) -> None:
    bulk_name = f"{database_name}_b"
    in_bulk = Database(mongodb_uri, bulk_name)
    try:
        await make_indexes(in_bulk)
        assert await Bulk(in_bulk).put(line) == len(line)
        await _stored_by_service(mongodb_uri, database_name, line)
        assert await _comparable(in_bulk) == await _comparable(database)
    finally:
        await in_bulk.command("dropDatabase")
        in_bulk.close()


async def test_the_floor_stores_what_the_service_stores(
    mongodb_uri: str, database_name: str, database: Database, tmp_path: Path
) -> None:
    await Bulk(database).put([*talk("service", 2), *talk("floor", 2)])
    async with (
        servers.service(tmp_path, mongodb_uri, database_name) as service,
        servers.floor(tmp_path, mongodb_uri, database_name) as floor,
    ):
        stored = []
        for target in (service, floor):
            response_id = name("resp", target.title)
            for request in (create_request(response_id, target.title), update_request(response_id)):
                await _call(target, request)
                document = await database.find_one(RESPONSES, {"id": response_id})
                assert document is not None
                stored.append({field: len(bson.encode({"": value})) for field, value in document.items()})
    # The two conversations' names differ in length by two characters.
    for sizes in stored:
        del sizes["conversation_id"]
    assert stored[0] == stored[2], "a create"
    assert stored[1] == stored[3], "an update"


async def test_a_tiny_run_has_every_figure(mongodb_uri: str) -> None:
    heard: list[str] = []
    results = await measure(mongodb_uri, TINY, heard.append)
    assert len(results.compared) == 7
    assert all(set(row.samples) == {1, 4} for row in results.compared)
    assert all(
        sample.seconds and sample.elapsed > 0
        for row in results.compared
        for by_side in row.samples.values()
        for sample in by_side.values()
    )
    assert len(results.scaled) == 7
    assert len(results.stored) == 2
    assert heard
    results.show(Console(quiet=True))
    assert json.loads(json.dumps(results.figures()))["calls"][0]["ratios"][0]["median"] > 0


async def test_a_tiny_run_compares_two_drivers(mongodb_uri: str) -> None:
    results = await measure_drivers(mongodb_uri, TINY, lambda _: None)
    assert [row.sides for row in results.drivers] == [("PyMongo", "Motor")] * 7
    assert results.missed() == []


async def test_a_tiny_long_run_has_every_figure(mongodb_uri: str) -> None:
    results = await measure_long(mongodb_uri, TINY, lambda _: None)
    assert results.contention is not None
    assert results.contention.failures == []
    assert results.contention.one.seconds
    assert results.contention.each.seconds
    assert results.growth is not None
    assert results.growth.few_bytes > 2**20
    results.show(Console(quiet=True))
    assert json.loads(json.dumps(results.figures()))["memory"]["ratio"] > 0


def _sample(median: float, rate: float) -> Sample:
    return Sample([median] * 10, 10 / rate)


def _compared(median: float, rate: float) -> Compared:
    sides = {"service": _sample(median, rate), "floor": _sample(1.0, 100)}
    return Compared("a call", ("service", "floor"), {1: sides, CALLERS: sides})


@pytest.mark.parametrize(
    ("results", "word"),
    [
        (Results(compared=[_compared(MOST_MEDIAN + 0.01, 100)]), "median"),
        (Results(compared=[_compared(1.0, 100 * LEAST_RATE - 1)]), "calls a second"),
        (
            Results(
                scaled=[
                    scaling.Scaled(
                        scaling.Pair(
                            "long", "short", 1.2, rpc.ResolveHistoryRequest(), rpc.ResolveHistoryRequest()
                        ),
                        _sample(1.21, 1),
                        _sample(1.0, 1),
                    )
                ]
            ),
            "long",
        ),
        (Results(stored=[Stored("deep", "flat", 1.05, 106, 100)]), "bytes a turn"),
        (Results(contention=Contention(_sample(1, 33), _sample(1, 100), [])), "one conversation"),
        (Results(contention=Contention(Sample(), Sample(), ["refused"])), "a write failed: refused"),
        (Results(growth=Growth(1, 100, 10, 111)), "memory"),
    ],
)
def test_a_ratio_beyond_its_bound_is_told(results: Results, word: str) -> None:
    (sentence,) = results.missed()
    assert word in sentence


@pytest.mark.parametrize(
    "results",
    [
        Results(compared=[_compared(MOST_MEDIAN, 100 * LEAST_RATE)]),
        Results(stored=[Stored("deep", "flat", 1.05, 105, 100)]),
        Results(contention=Contention(_sample(1, 34), _sample(1, 100), [])),
        Results(growth=Growth(1, 100, 10, 110)),
    ],
)
def test_a_ratio_within_its_bound_is_not(results: Results) -> None:
    assert results.missed() == []
