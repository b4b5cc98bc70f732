"""Every query of the service follows an index, sorts nothing in memory, and looks at hardly more than it gives.

A service is asked everything that there is to ask, on a database with long histories. Each query is explained
just before it is carried out. One that is not listed here fails: whoever adds a query has to say which index
bears it.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo
import pymongo.monitoring
import pytest

from tests.bench.histories import SCOPE, Bulk, name, talk, talk_with_forks, talk_with_tools
from tests.case_player import case_files, load, play
from tests.database import drop_database
from tests.model import MODEL_SAFE, RefusedError
from tests.service_driver import ServiceDriver
from tests.service_process import RunningService, service_in_process
from tests.storage.query_shapes import Plan, Recorder, shape_of
from turnstore_service.replay.values import Status
from turnstore_service.storage.mongo.driver import Database
from turnstore_service.storage.mongo.indexes import INDEXES, make_indexes

USER = SCOPE.user
MIB = 1024 * 1024
CASES_AT_ONCE = 4
FEW = 1
"""Documents or keys at which a query may look in vain: one tells that there is no more."""


@dataclass(frozen=True)
class Bearer:
    """What bears a query."""

    indexes: tuple[str, ...]
    goes_through: str = ""
    """What it goes through whole, where that is what it is for; else it looks at no more than it gives."""


def _by(*indexes: str, through: str = "") -> Bearer:
    return Bearer(indexes, through)


SHAPES = {
    # Single responses
    "responses find {_id}, limited": _by("_id_"),
    "responses find {_id: $gte $lte} by _id down, limited": _by("_id_"),
    "responses findAndModify {_id}": _by("_id_"),
    "responses update {_id}": _by("_id_"),
    "responses find {_id: $in, deleted: $ne}": _by("_id_"),
    # The turns of a line
    "responses find {place: $gte, scope, thread} by place down, limited": _by("place"),
    "responses find {replay_place: $gt, scope, thread} by replay_place down, limited": _by("replay"),
    "responses find {replay_place: $gt $lte, scope, thread} by replay_place down, limited": _by("replay"),
    "responses find {$or {replay_place: $gt $lte, thread}, scope} by replay_place down, limited": _by(
        "replay"
    ),
    "responses find {$or {replay_place, thread} or {replay_place: $gt $lte, thread}, scope}"
    " by replay_place down, limited": _by("replay"),
    "responses find {replay_place, scope, thread} by replay_place down, limited": _by("replay"),
    "responses find {$or {replay_place, thread}, scope} by replay_place down, limited": _by("replay"),
    "responses find {place, scope, thread} by place down, limited": _by("place"),
    "responses find {$or {place, thread}, scope} by place down, limited": _by("place"),
    "responses find {$or {place, thread} or {place: $gt $lte, thread}, scope} by place down, limited": _by(
        "place"
    ),
    "responses find {place: $gt, scope, thread} by place down, limited": _by("place"),
    "responses find {place: $gt $lte, scope, thread} by place down, limited": _by("place"),
    "responses find {$or {place: $gt $lte, thread}, scope} by place down, limited": _by("place"),
    "responses find {deleted: $ne, place: $gt, scope, thread} by place up, limited": _by("place"),
    "responses find {deleted: $ne, place: $gt $lte, scope, thread} by place up, limited": _by("place"),
    "responses find {$or {place: $gt $lte, thread}, deleted: $ne, scope} by place up, limited": _by("place"),
    "responses find {deleted, place: $gt, scope, thread} by place down, limited": _by("deleted"),
    "responses find {deleted, place: $gt $lte, scope, thread} by place down, limited": _by(
        "deleted", "place"
    ),
    "responses find {$or {deleted, place: $gt $lte, scope, thread}}, limited": _by("deleted"),
    "responses find {$or {deleted, place, scope, thread}}, limited": _by("deleted"),
    "responses find {$or {deleted, place, scope, thread} or {deleted, place: $gt $lte, scope, thread}}, limited": _by(
        "deleted"
    ),
    "responses find {deleted, place, scope, thread} by place down, limited": _by("deleted"),
    # Who holds an item
    "responses find {claims: $in, root, scope}": _by("claims"),
    "responses find {input.ids: $in, scope}": _by("input_ids"),
    "responses find {output.ids: $in, scope}": _by("output_ids"),
    "responses find {scope, snapshot.ids: $in}": _by("snapshot_ids"),
    "responses find {input.calls: $in, scope}": _by("input_calls"),
    "responses find {output.calls: $in, scope}": _by("output_calls"),
    # Paths
    "paths find {_id}, limited": _by("_id_"),
    "paths findAndModify {_id}": _by("_id_"),
    # Bodies
    "bodies find {index: $lte, part, scope, token}"
    " by scope up, token up, part up, index down, chunk down, limited": _by("token"),
    "bodies find {index, part, scope, token} by scope up, token up, part up, index up, chunk up": _by(
        "token"
    ),
    "bodies delete {scope, token: $in}": _by("token"),
    "bodies find {create_time: $gte $lt} by create_time up, limited": _by("age"),
    # Deletions, which go through what they delete
    "responses find {$or {deleted: $ne} or {input_side: $exists True} or {output_side: $exists True}"
    " or {payload_side: $exists True}, place: $gt $lte, scope, thread} by place up, limited": _by(
        "place", through="a conversation"
    ),
    "responses update {deleted, place: $lte, scope, snapshot: $exists True, thread}": _by(
        "place", through="a conversation"
    ),
    "responses find {_id: $gt $lt, erase_time: $exists False} by _id up, limited": _by(
        "_id_", through="a user's data"
    ),
    "responses update {_id: $in, deleted}": _by("_id_"),
    "responses find {_id: $gt $lt, deleted: $ne}": _by("_id_", through="a user's data"),
    "responses update {_id: $gt $lt, erase_time: $exists False, thread: $nin}": _by(
        "_id_", through="what tells of a user's losses"
    ),
    "paths update {scope}": _by("scope"),
    "paths update {erase_time: $exists False, erasing, root: $nin, scope}": _by(
        "scope", through="a user's paths"
    ),
}

# The driver hands its events to the listeners that were there before a client was made.
RECORDER = Recorder()
pymongo.monitoring.register(RECORDER)


@pytest.fixture(scope="module")
def recorder(mongodb_uri: str) -> Iterator[Recorder]:
    """What was seen while everything was asked."""
    database = f"turnstore_test_{uuid.uuid4().hex}"
    RECORDER.begin(mongodb_uri, database)
    try:
        asyncio.run(_ask_everything(mongodb_uri, database))
        yield RECORDER
    finally:
        RECORDER.begin("", "")
        drop_database(mongodb_uri, database)


async def _ask_everything(uri: str, name: str) -> None:
    await _fill(uri, name)
    settings: dict[str, Any] = {"mongodb_uri": uri, "mongodb_database": name}
    async with service_in_process(**settings) as service:
        driver = ServiceDriver(service.channel, SCOPE.namespace)
        await _write(driver)
        await _write_much(driver)
        await _read(driver)
        await _sweep(service, uri, name)
    async with service_in_process(**settings, abandon_after=timedelta(hours=1)) as service:
        driver = ServiceDriver(service.channel, SCOPE.namespace)
        await _read(driver)
        RECORDER.next_part()
        await _play_cases(service)
        RECORDER.next_part()
        await _delete(driver)
        assert await service.store.problems() == []


async def _fill(uri: str, name: str) -> None:
    """Lines so long that a query without its index would be told by what it looks at."""
    database = Database(uri, name)
    try:
        await make_indexes(database)
        bulk = Bulk(database)
        for line in (
            talk("long", 400),
            talk("failing", 300, status=Status.FAILED),
            talk("chain", 300, chained=True),
            talk_with_forks("asides", 150, range(1, 150)),
            talk_with_forks("branching", 150, range(2, 150, 2)),
            talk_with_tools("tools", 300),
        ):
            await bulk.put(line)
    finally:
        database.close()


CHAIN = name("resp", "chain", 299)
ASIDES = name("resp", "asides", 149)
"""Ends a line each of whose turns is a thread of its own."""
BRANCHING = name("resp", "branching", 149)
"""Ends a line of threads with two turns each."""


def _item(item_id: str, size: int = 0, **fields: str) -> str:
    return json.dumps({"id": item_id, "type": "message", "role": "user", "content": "-" * size, **fields})


async def _store(driver: ServiceDriver, response_id: str, **fields: Any) -> None:
    options = {
        option: fields.pop(option)
        for option in ("duplicate_items", "inherited_item_ids", "request_id", "expected_revision")
        if option in fields
    }
    await driver.store(USER, {"id": response_id, "status": "COMPLETED", **fields}, **options)


async def _refused(driver: ServiceDriver, reason: str, response_id: str, **fields: Any) -> None:
    with pytest.raises(RefusedError) as refused:
        await _store(driver, response_id, **fields)
    assert refused.value.reason == reason


async def _write(driver: ServiceDriver) -> None:
    """Writes to long lines, and those that meet what is there."""
    in_long = {"conversation_id": "long"}
    repeated = _item(name("msg", "long", 7, "in"))
    for number in range(3):
        new = {
            "status": "IN_PROGRESS",
            "input_items": [_item(f"new-{number}")],
            "request_id": str(uuid.UUID(int=number)),
        }
        await _store(driver, f"new-{number}", **new, **in_long)
        await _store(driver, f"new-{number}", **new, **in_long)  # a retry
        await _store(driver, f"new-{number}", output_items=[_item(f"answer-{number}")])
        await _refused(driver, "DUPLICATE_ITEM", "refused", input_items=[repeated], **in_long)
        await _store(
            driver, f"kept-{number}", input_items=[repeated], duplicate_items="KEEP_FIRST", **in_long
        )
        await _store(driver, f"failed-{number}", status="FAILED", input_items=[_item("f")], **in_long)
    await _store(driver, "open", status="IN_PROGRESS", input_items=[_item("open")], **in_long)
    await _refused(driver, "DUPLICATE_ITEM", "open", input_items=[_item("other"), repeated])
    await _store(driver, "open", status="FAILED")

    for number in range(3):
        await _store(driver, f"next-{number}", previous_response_id=CHAIN, input_items=[_item(f"n{number}")])
        fork = {"previous_response_id": f"next-{number}"}
        for again in "ab":
            await _store(driver, f"fork-{number}{again}", input_items=[_item(f"f{number}{again}")], **fork)
        deep = {"previous_response_id": f"fork-{number}b"}
        for again in "ab":
            await _store(driver, f"deep-{number}{again}", input_items=[_item(f"d{number}{again}")], **deep)
    await _store(driver, "out", previous_response_id=name("resp", "long", 399), input_items=[_item("out")])
    await _refused(driver, "PARENT_NOT_FOUND", "refused", previous_response_id="nobody")

    snapshot = [name("msg", "long", number, "in") for number in range(40)]
    await _store(driver, "snapshot", inherited_item_ids=[*snapshot, "nowhere"], input_items=[_item("s")])
    await _store(
        driver, "snapshot-2", previous_response_id="snapshot", inherited_item_ids=snapshot, status="FAILED"
    )
    for excluded in (True, False, False):
        await driver.set_replay_exclusion(USER, name("resp", "long", 390), excluded)
    await _store(driver, "open-2", status="IN_PROGRESS", input_items=[_item("open-2")], **in_long)
    await _store(driver, "open-2", exclude_from_replay=True, expected_revision=1)


async def _write_much(driver: ServiceDriver) -> None:
    """Responses that do not fit into a document."""
    small = [_item(f"small-{number}", 300_000) for number in range(20)]
    large = [_item("large", 9 * MIB)]
    running = {"status": "IN_PROGRESS", "conversation_id": "large"}
    await _store(driver, "large-1", input_items=large, output_items=small, **running)
    await _store(driver, "large-2", payload_json=_item("payload", 9 * MIB), **running)
    await _store(driver, "large-3", conversation_id="large", input_items=[_item("middle", 100_000)])
    for response_id in ("large-1", "large-2", "large-3"):
        await driver.get(USER, response_id)
    await driver.resolve(USER, conversation_id="large", view="FULL")
    await driver.batch_get(USER, ["large", "small-7", "middle"])
    await _store(driver, "large-1", output_items=[_item("replaced")])
    await _store(driver, "large-2", payload_json="{}")


async def _read(driver: ServiceDriver) -> None:
    """Reads of long lines, of each in each way."""
    lines: Sequence[dict[str, Any]] = [
        {"conversation_id": "long"},
        {"conversation_id": "failing"},
        {"conversation_id": "tools"},
        {"previous_response_id": CHAIN},
        {"previous_response_id": ASIDES},
        {"previous_response_id": BRANCHING},
        {"previous_response_id": "fork-1b"},
        {"previous_response_id": "deep-1b"},
        {"previous_response_id": "snapshot-2"},
        {"conversation_id": "long", "previous_response_id": "out"},
        {"conversation_id": "tools", "previous_response_id": ASIDES},
        {"before_response_id": "new-1"},
        {"before_response_id": ASIDES},
        {"before_response_id": "snapshot"},
    ]
    asked = [name("msg", "long", 200, "in"), name("msg", "chain", 200, "in"), "nobody"]
    for line in lines:
        questions: Sequence[dict[str, Any]] = [
            {"limit": 20},
            {"limit": 20, "view": "FULL"},
            {"limit": 5, "limit_unit": "TURNS", "policy": MODEL_SAFE},
            {"limit": 20, "policy": MODEL_SAFE},
            {"limit": 20, "answered_call_ids": [name("call", "tools", 299)], "policy": MODEL_SAFE},
            {"limit": 20, "explain": True},
            {},
        ]
        for question in questions:
            await driver.resolve(USER, **line, **question)
        if len(line) == 1 and "before_response_id" not in line:
            await driver.list_responses(USER, **line, page_size=100)
            await driver.batch_get(USER, asked, **line)
    await driver.batch_get(USER, asked)
    for response_id in ("new-1", ASIDES, "snapshot"):
        await driver.get(USER, response_id)
        await driver.list_input_items(USER, response_id, page_size=50)
        await driver.list_input_items(USER, response_id, page_size=50, include_inherited=True)
    with pytest.raises(RefusedError):
        await driver.get(USER, "nobody")


async def _sweep(service: RunningService, uri: str, name: str) -> None:
    """Bodies of which one half is named by a response."""
    with pymongo.MongoClient[dict[str, Any]](uri) as client:
        bodies = client[name]["bodies"]
        pack = {"part": 0, "index": 0, "texts": ["{}"], "create_time": datetime.now(UTC) - timedelta(hours=2)}
        bodies.insert_many(
            [
                {**pack, "scope": SCOPE.key, "token": b"%d" % number, "chunk": 0, "owner": f"nobody {number}"}
                for number in range(200)
            ]
        )
    assert await service.store.sweep() == 200


async def _play_cases(service: RunningService) -> None:
    waiting = iter(case_files())

    async def player() -> None:
        for path in waiting:
            with suppress(AssertionError):  # whether the answers are right is asked elsewhere
                await play(load(path), ServiceDriver(service.channel, f"case-{path.stem}"))

    async with asyncio.TaskGroup() as group:
        for _ in range(CASES_AT_ONCE):
            group.create_task(player())


async def _delete(driver: ServiceDriver) -> None:
    """Deletions, and what reads find after them."""
    for response_id in ("large-3", "snapshot", "kept-1", name("resp", "long", 100), ASIDES):
        await driver.delete(USER, response_id)
        with pytest.raises(RefusedError):
            await driver.delete(USER, response_id)
    lines: Sequence[dict[str, Any]] = [
        {"conversation_id": "long"},
        {"previous_response_id": name("resp", "asides", 148)},
    ]
    for line in lines:
        history = await driver.resolve(USER, **line, limit=20)
        assert history.ancestor_deleted == ("conversation_id" in line)
    await _store(driver, "snapshot", input_items=[_item("again")], expected_revision=0)
    await driver.get(USER, "snapshot")
    for conversation in ("long", "large", "failing"):
        await driver.delete_conversation(USER, conversation)
    await driver.delete_conversation(USER, "long")
    await driver.delete_user_data(USER)
    await driver.delete_user_data(USER)


def test_every_query_is_listed(recorder: Recorder) -> None:
    assert recorder.errors == []
    assert recorder.unknown == set(), "commands of which nobody has said whether they have a query"
    assert sorted(recorder.plans.keys() - SHAPES) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_listed_query_occurs(recorder: Recorder, shape: str) -> None:
    assert recorder.plans[shape]


@pytest.mark.parametrize("shape", SHAPES)
def test_query_follows_its_index(recorder: Recorder, shape: str) -> None:
    bearer = SHAPES[shape]
    for plan in recorder.plans[shape]:
        assert plan.indexes, plan
        assert plan.indexes <= set(bearer.indexes), plan


@pytest.mark.parametrize("shape", SHAPES)
def test_query_neither_scans_a_collection_nor_sorts_in_memory(recorder: Recorder, shape: str) -> None:
    for plan in recorder.plans[shape]:
        assert not plan.stages & {"COLLSCAN", "SORT"}, plan


@pytest.mark.parametrize("shape", [shape for shape, bearer in SHAPES.items() if not bearer.goes_through])
def test_query_looks_at_hardly_more_than_it_gives(recorder: Recorder, shape: str) -> None:
    for plan in recorder.plans[shape]:
        assert plan.documents <= plan.matched + FEW, plan
        assert plan.keys <= plan.matched + plan.asked + FEW, plan


def test_every_index_bears_a_query(recorder: Recorder) -> None:
    used = {
        (shape.split()[0], index)
        for shape, plans in recorder.plans.items()
        for plan in plans
        for index in plan.indexes
    }
    # An index by which the database removes what has expired is read by no query.
    wanted = {
        (index.collection, index.name) for index in INDEXES if "expireAfterSeconds" not in index.options
    }
    assert wanted - used == set()


# What the recorder would tell if something were wrong


@pytest.fixture
def plans_of(mongodb_uri: str, database_name: str) -> Iterator[Callable[[Any], list[Plan]]]:
    """The plans of what is done to a collection of twenty documents with an index by `a`."""
    recorder = Recorder()
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri, event_listeners=[recorder]) as client:
        collection = client[database_name]["some"]
        collection.create_index("a", name="by_a")
        collection.insert_many([{"a": number, "b": number % 2} for number in range(20)])
        recorder.begin(mongodb_uri, database_name)

        def plans(work: Callable[[Any], Any]) -> list[Plan]:
            work(collection)
            assert recorder.errors == []
            return [plan for found in recorder.plans.values() for plan in found]

        yield plans
        recorder.begin("", "")


@pytest.mark.parametrize(
    ("work", "indexes", "stage", "looked_at", "matched"),
    [
        (lambda some: list(some.find({"a": {"$gte": 15}})), {"by_a"}, "IXSCAN", 5, 5),
        (lambda some: list(some.find({"a": {"$gte": 10}, "b": 1})), {"by_a"}, "FETCH", 10, 5),
        (lambda some: list(some.find({"b": 1})), set(), "COLLSCAN", 20, 10),
        (lambda some: list(some.find({"a": {"$gte": 15}}).sort("b")), {"by_a"}, "SORT", 5, 5),
        (lambda some: some.update_many({"b": 1}, {"$set": {"c": 1}}), set(), "COLLSCAN", 20, 10),
        (lambda some: some.delete_many({"a": {"$lt": 3}}), {"by_a"}, "DELETE", 3, 3),
        (lambda some: some.find_one_and_update({"a": 3}, {"$set": {"c": 1}}), {"by_a"}, "UPDATE", 1, 1),
    ],
)
def test_recorder_tells_the_plan(
    plans_of: Callable[[Any], list[Plan]],
    work: Callable[[Any], Any],
    indexes: set[str],
    stage: str,
    looked_at: int,
    matched: int,
) -> None:
    (plan,) = plans_of(work)
    assert plan.indexes == indexes
    assert stage in plan.stages
    assert (plan.documents, plan.matched) == (looked_at, matched)


def test_recorder_tells_of_a_command_that_it_does_not_know(mongodb_uri: str, database_name: str) -> None:
    recorder = Recorder()
    recorder.begin(mongodb_uri, database_name)
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri, event_listeners=[recorder]) as client:
        list(client[database_name]["some"].aggregate([{"$match": {}}]))
    assert recorder.unknown == {"aggregate"}
    recorder.begin("", "")


@pytest.mark.parametrize(
    ("command", "shape"),
    [
        ({"find": "some", "filter": {"b": 2, "a": {"$lt": 1, "$gt": 0}}}, "some find {a: $gt $lt, b}"),
        ({"find": "some", "filter": {"a": {"$in": [1, 2]}}, "limit": 3}, "some find {a: $in}, limited"),
        ({"find": "some", "filter": {"a": {"$exists": False}}}, "some find {a: $exists False}"),
        ({"find": "some", "filter": {}, "sort": {"a": 1, "b": -1}}, "some find {} by a up, b down"),
        (
            {"find": "some", "filter": {"$or": [{"a": 2}, {"b": {"$gt": 1}}, {"a": 3}]}},
            "some find {$or {a} or {b: $gt}}",
        ),
        ({"find": "some", "filter": {"_id": 1, "a": {"$ne": 2}}}, "some find {_id}"),
        ({"find": "some", "filter": {"_id": {"$in": [1]}, "a": 2}}, "some find {_id: $in, a}"),
        ({"update": "some", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 2}}}]}, "some update {a}"),
        ({"delete": "some", "deletes": [{"q": {"a": 1}, "limit": 0}]}, "some delete {a}"),
        ({"findAndModify": "some", "query": {"a": 1}, "update": {}}, "some findAndModify {a}"),
    ],
)
def test_shape_has_the_structure_and_no_values(command: dict[str, Any], shape: str) -> None:
    assert shape_of(command) == shape
