"""What a call costs follows what it returns, not how much there is: counted are the documents that the database
hands over.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pymongo.monitoring
import pytest

from tests.storage.turns import MIB, item, items, turn
from turnstore_service.history.resolving import History, resolve
from turnstore_service.replay.values import MODEL_SAFE, LimitUnit, Question, Status
from turnstore_service.storage.mongo.store import MongoStore
from turnstore_service.storage.values import Line, Scope, Write

SCOPE = Scope("bounded", "ada")
MUCH = 250
"""Far more than any of the bounds below."""
MORE = [MUCH, pytest.param(5000, marks=[pytest.mark.deep, pytest.mark.timeout(600)])]
AT_ONCE = 20


class Counter(pymongo.monitoring.CommandListener):
    """Counts what the commands on one database give."""

    def __init__(self) -> None:
        self.database = ""
        self.begin()

    def begin(self) -> None:
        self.commands = 0
        self.documents = 0
        self.most_at_once = 0
        self.characters = 0

    def started(self, event: pymongo.monitoring.CommandStartedEvent) -> None:
        if event.database_name == self.database:
            self.commands += 1

    def succeeded(self, event: pymongo.monitoring.CommandSucceededEvent) -> None:
        if event.database_name == self.database:
            cursor: dict[str, Any] = event.reply.get("cursor", {})
            documents = [*cursor.get("firstBatch", ()), *cursor.get("nextBatch", ())]
            self.documents += len(documents)
            self.most_at_once = max(self.most_at_once, len(documents))
            self.characters += sum(map(_characters_in, documents))

    def failed(self, event: pymongo.monitoring.CommandFailedEvent) -> None:
        pass


def _characters_in(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_characters_in, value.values()))
    if isinstance(value, list):
        return sum(map(_characters_in, value))
    return len(value) if isinstance(value, str) else 0


# The driver hands its events to the listeners that were there before a client was made.
COUNTER = Counter()
pymongo.monitoring.register(COUNTER)


@pytest.fixture
def counter(database_name: str) -> Iterator[Counter]:
    COUNTER.database = database_name
    COUNTER.begin()
    yield COUNTER
    COUNTER.database = ""


async def _store(store: MongoStore, writes: Sequence[Write]) -> None:
    """Stores writes that do not depend on each other."""
    waiting = iter(writes)

    async def worker() -> None:
        for write in waiting:
            await store.writing.store(SCOPE, write)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _store_in_order(store: MongoStore, writes: Sequence[Write]) -> None:
    for write in writes:
        await store.writing.store(SCOPE, write)


async def _resolve(store: MongoStore, line: Line, question: Question, *, full: bool = False) -> History:
    return await resolve(store.reading, [line], question, explained=False, full=full)


async def _conversation(store: MongoStore, name: str, question: Question, *, full: bool = False) -> History:
    return await _resolve(store, await store.reading.line_of_conversation(SCOPE, name), question, full=full)


@pytest.mark.parametrize("much", MORE)
async def test_window_costs_the_same_however_long_the_conversation(
    store: MongoStore, counter: Counter, much: int
) -> None:
    await _store_in_order(
        store, [turn(f"r{n}", conversation="long", given=items(f"i{n}", 2)) for n in range(much)]
    )
    for full in (False, True):
        counter.begin()
        history = await _conversation(store, "long", Question(limit=20), full=full)
        assert len(history.entries) == 20
        assert counter.documents <= 12
        assert counter.commands == 1
    counter.begin()
    history = await _conversation(store, "long", Question(limit=5, unit=LimitUnit.TURNS, policy=MODEL_SAFE))
    assert len(history.entries) == 10
    assert counter.documents <= 7


async def test_failed_turns_cost_nothing(store: MongoStore, counter: Counter) -> None:
    good = [turn(f"r{n}", conversation="failing", given=items(f"i{n}", 2)) for n in range(10)]
    failed = [
        turn(f"f{n}", conversation="failing", status=Status.FAILED, given=items(f"f{n}", 2))
        for n in range(MUCH)
    ]
    await _store_in_order(store, [*good, *failed])
    counter.begin()
    history = await _conversation(store, "failing", Question(limit=10))
    assert [entry.head.id for entry in history.entries] == [
        f"i{n}-{k}" for n in range(5, 10) for k in range(2)
    ]
    assert counter.documents <= 7


async def test_leaf_of_a_fork_costs_its_own_line_alone(store: MongoStore, counter: Counter) -> None:
    await store.writing.store(SCOPE, turn("root", given=items("root", 1)))
    await _store(store, [turn(f"f{n}", parent="root", given=items(f"f{n}", 1)) for n in range(MUCH)])
    counter.begin()
    history = await _resolve(store, await store.reading.line_to(SCOPE, "f7"), Question(policy=MODEL_SAFE))
    assert [entry.head.id for entry in history.entries] == ["root-0", "f7-0"]
    assert counter.documents <= 5


async def test_side_requests_do_not_make_a_line_dear(store: MongoStore, counter: Counter) -> None:
    """A host that chains a side request before each main turn makes every main turn a fork."""
    previous = ""
    for n in range(MUCH // 2):
        if previous:
            await store.writing.store(SCOPE, turn(f"side-{n}", parent=previous, given=items(f"s{n}", 1)))
        await store.writing.store(SCOPE, turn(f"main-{n}", parent=previous, given=items(f"m{n}", 2)))
        previous = f"main-{n}"
    line = await store.reading.line_to(SCOPE, previous)
    await _resolve(store, line, Question(limit=20))  # paths that were read once stay at hand
    counter.begin()
    history = await _resolve(store, await store.reading.line_to(SCOPE, previous), Question(limit=20))
    assert len(history.entries) == 20
    assert counter.documents <= 13


async def test_listing_reads_a_page_and_no_bodies(store: MongoStore, counter: Counter) -> None:
    await _store_in_order(
        store, [turn(f"r{n}", conversation="listed", given=items(f"i{n}", 2)) for n in range(MUCH)]
    )
    line = await store.reading.line_of_conversation(SCOPE, "listed")
    counter.begin()
    assert len(await store.reading.list_turns(line, 100, 20, None)) == 20
    assert counter.documents == 20
    assert counter.commands == 1


async def test_window_of_large_turns_reads_the_bodies_of_its_page_alone(
    store: MongoStore, counter: Counter
) -> None:
    await _store_in_order(
        store, [turn(f"r{n}", conversation="large", given=[item(f"i{n}", MIB)]) for n in range(40)]
    )
    history = await _conversation(store, "large", Question(), full=True)
    refs = [entry.body for entry in history.entries if entry.body is not None]
    assert len(refs) == 40
    counter.begin()
    await store.reading.bodies(refs, history.revisions, 3 * MIB)
    assert counter.characters < 5 * MIB


async def test_deletion_reads_in_steps(store: MongoStore, counter: Counter) -> None:
    await _store_in_order(
        store, [turn(f"r{n}", conversation="gone", given=items(f"i{n}", 1)) for n in range(MUCH + 50)]
    )
    counter.begin()
    receipt = await store.erasing.conversation(SCOPE, "gone")
    assert receipt.responses == MUCH + 50
    assert counter.documents <= MUCH + 60
    assert counter.most_at_once <= 200
