"""What a deletion leaves in the database: nothing that anybody said, and what the rest of a line needs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest

from tests.faults.replica_set import replica_set
from tests.processes import wait_until
from tests.storage.turns import ALL, MIB, Raw, item, items, read, turn
from turnstore_service.history.resolving import resolve
from turnstore_service.replay.values import Status
from turnstore_service.storage.errors import ParentNotFoundError, ResponseNotFoundError
from turnstore_service.storage.mongo.driver import Database
from turnstore_service.storage.mongo.store import MongoStore
from turnstore_service.storage.values import Receipt, Scope

MARKER = "said-in-confidence"
SCOPE = Scope("tests", "ada")
OTHER = Scope("tests", "bob")
ANONYMOUS = Scope("tests")

PLACE = {"_id", "scope", "id", "thread", "place", "root", "revision", "status", "deleted"}
"""What stays of every deleted response: its id and its place."""
WRITES = {"created_by", "written_by", "create_time", "update_time"}
"""When and under which request ids it was written: a late repetition has to be told from a new write."""
SNAPSHOT = {"snapshot", "replay_place", "claims", "repeated"}
"""What a response that was given a snapshot hands on, where it alone was deleted."""

SAID = (
    turn(
        "first",
        conversation="c",
        given=[item(f"{MARKER}-1", 9 * MIB)],
        made=items(f"{MARKER}-o", 2),
        payload=item(MARKER, 9 * MIB),
        request_id="7d8a1c52-4f0b-4a55-9d0e-7f1c2a3b4c5d",
    ),
    turn("second", conversation="c", given=items(f"{MARKER}-2", 1), snapshot=[f"{MARKER}-0"]),
    turn("third", conversation="c", status=Status.IN_PROGRESS, given=items(f"{MARKER}-3", 2)),
    turn("branch", parent="first", given=items(f"{MARKER}-b", 1)),
    turn("twig", parent="branch", given=items(f"{MARKER}-t", 1)),
    turn("twin", parent="branch", given=items(f"{MARKER}-u", 1)),
)
SAID_ITEMS = 3 + 1 + 2 + 1 + 1 + 1


async def _say(store: MongoStore, scope: Scope = SCOPE) -> None:
    for write in SAID:
        await store.writing.store(scope, write)


async def test_deleted_response_leaves_its_place_alone(store: MongoStore, raw: Raw) -> None:
    await _say(store)
    assert await store.erasing.response(SCOPE, "first") == Receipt(1, 3)
    (left,) = raw.responses(id="first")
    assert set(left) <= PLACE | WRITES
    assert (left["place"], left["status"], left["deleted"]) == (1, 0, True)
    assert raw.chunks() == set()
    assert f"{MARKER}-1" not in repr(raw.responses())


async def test_deleted_response_hands_on_its_snapshot_alone(store: MongoStore, raw: Raw) -> None:
    await _say(store)
    assert await store.erasing.response(SCOPE, "second") == Receipt(1, 1)
    (left,) = raw.responses(id="second")
    assert set(left) <= PLACE | WRITES | SNAPSHOT
    assert left["snapshot"]["ids"] == [f"{MARKER}-0"]
    assert raw.holding(f"{MARKER}-2") == []


async def test_deleted_conversation_leaves_its_places_alone(store: MongoStore, raw: Raw) -> None:
    await _say(store)
    assert await store.erasing.conversation(SCOPE, "c") == Receipt(3, 6)
    left = raw.responses(scope=SCOPE.key, deleted=True)
    assert sorted(response["place"] for response in left) == [1, 2, 3]
    for response in left:
        assert set(response) <= PLACE | WRITES
    assert await read(store, "branch") == (items(f"{MARKER}-b", 1), [], "")
    assert await store.erasing.conversation(SCOPE, "c") == Receipt(0, 0)


async def test_deleted_user_leaves_nothing_that_stays(store: MongoStore, raw: Raw) -> None:
    for scope in (SCOPE, OTHER, ANONYMOUS):
        await _say(store, scope)
    await store.erasing.response(SCOPE, "second")
    before = datetime.now(UTC)
    assert await store.erasing.user(SCOPE) == Receipt(len(SAID) - 1, SAID_ITEMS - 1)
    left = raw.responses(scope=SCOPE.key) + list(raw.database["paths"].find({"scope": SCOPE.key}))
    assert left
    for document in left:
        assert (
            timedelta(hours=23, minutes=59) < document["erase_time"] - before < timedelta(hours=24, minutes=1)
        )
        assert MARKER not in repr(document)
    for response in raw.responses(scope=SCOPE.key, place={"$exists": True}):
        assert set(response) <= PLACE | WRITES | {"erase_time"}
    assert raw.database["bodies"].count_documents({"scope": SCOPE.key}) == 0
    for scope in (OTHER, ANONYMOUS):
        assert (await read(store, "second", scope))[0] == items(f"{MARKER}-2", 1)
        for collection in ("responses", "paths"):
            assert (
                raw.database[collection].count_documents(
                    {"scope": scope.key, "erase_time": {"$exists": True}}
                )
                == 0
            )
    assert await store.erasing.user(SCOPE) == Receipt(0, 0)


async def test_erased_scope_can_be_used_again_at_once(store: MongoStore, raw: Raw) -> None:
    await _say(store)
    await store.erasing.user(SCOPE)
    for late in (SAID[2], turn("third", made=items("late", 1)), turn("new", parent="branch")):
        with pytest.raises((ParentNotFoundError, ResponseNotFoundError)):
            await store.writing.store(SCOPE, late)
    await store.writing.store(SCOPE, turn("first", conversation="c", given=items("new", 1), revision=0))
    await store.writing.store(SCOPE, turn("next", conversation="c", given=items("next", 1)))
    await store.writing.store(SCOPE, turn("fork-1", parent="first", given=items("f1", 1)))
    await store.writing.store(SCOPE, turn("fork-2", parent="first", given=items("f2", 1)))
    await store.writing.store(SCOPE, turn("fork-3", parent="fork-2", given=items("f3", 1)))
    # The database removes what was erased; here a test takes its part.
    for collection in ("responses", "paths"):
        raw.database[collection].delete_many({"erase_time": {"$exists": True}})
    for leaf, ids in {
        "next": ["new-0", "next-0"],
        "fork-1": ["new-0", "f1-0"],
        "fork-3": ["new-0", "f2-0", "f3-0"],
    }.items():
        line = await store.reading.line_to(SCOPE, leaf)
        history = await resolve(store.reading, [line], ALL, explained=True, full=True)
        assert [entry.head.id for entry in history.entries] == ids
    await store.writing.store(SCOPE, turn("late", conversation="c", given=items("late", 1)))


class BusyDatabase(Database):
    """A database at which somebody else does something before its nth call."""

    def __init__(self, uri: str, name: str, calls: int, act: Callable[[], Awaitable[None]]) -> None:
        super().__init__(uri, name)
        self._left = calls
        self._act = act

    @asynccontextmanager
    async def _call(self, operation: str) -> AsyncIterator[None]:
        self._left -= 1
        if self._left == -1:
            await self._act()
        async with super()._call(operation):
            yield


async def test_turns_that_come_during_the_erasure_are_whole_or_gone(
    mongodb_uri: str, database_name: str, store: MongoStore, raw: Raw
) -> None:
    """Wherever the writer gets in between: what survives goes on resolving when the grace is over."""
    calls = 0
    interfered = True
    while interfered:
        scope = Scope("tests", f"erased, with a writer before call {calls}")
        await store.writing.store(scope, turn("first", conversation="c", given=items(MARKER, 1)))
        for write in SAID[1:]:
            await store.writing.store(scope, write)
        interfered = False

        async def write(scope: Scope = scope) -> None:
            nonlocal interfered
            interfered = True
            await store.writing.store(scope, turn("a-new", conversation="c", given=items("n", 1)))
            await store.writing.store(scope, turn("z-1", parent="a-new", given=items("z1", 1)))
            await store.writing.store(scope, turn("b-2", parent="a-new", given=items("b2", 1)))
            await store.writing.store(scope, turn("z-3", parent="b-2", given=items("z3", 1)))
            await store.writing.store(scope, turn("b-4", parent="b-2", given=items("b4", 1)))

        busy = MongoStore(BusyDatabase(mongodb_uri, database_name, calls, write))
        await busy.erasing.user(scope)
        await busy.close()
        for collection in ("responses", "paths"):
            raw.database[collection].delete_many({"erase_time": {"$exists": True}})
        fresh = await MongoStore.open(mongodb_uri, database_name)  # knows no path by heart
        for name in ("a-new", "z-1", "b-2", "z-3", "b-4"):
            try:
                given, _, _ = await read(fresh, name, scope)
                line = await fresh.reading.line_to(scope, name)
            except ResponseNotFoundError:
                continue
            history = await resolve(fresh.reading, [line], ALL, explained=True, full=True)
            assert history.entries[-1].head.id == name[0] + name[2:] + "-0" or name == "a-new"
            assert len(given) == 1
        await fresh.erasing.user(scope)
        await fresh.close()
        assert raw.responses(scope=scope.key, erase_time={"$exists": False}) == []
        calls += 1
    assert calls > 5


async def test_response_that_changes_while_it_is_deleted_is_deleted(
    mongodb_uri: str, database_name: str, store: MongoStore, raw: Raw
) -> None:
    for calls in range(4):
        name = f"busy-{calls}"
        await store.writing.store(SCOPE, turn(name, status=Status.IN_PROGRESS, given=items(MARKER, 1)))

        async def change(name: str = name) -> None:
            write = turn(name, status=Status.IN_PROGRESS, made=[item(f"{MARKER}-{name}", 9 * MIB)])
            await store.writing.store(SCOPE, write)

        busy = MongoStore(BusyDatabase(mongodb_uri, database_name, calls, change))
        receipt = await busy.erasing.response(SCOPE, name)
        await busy.close()
        assert receipt.responses == 1
        with pytest.raises(ResponseNotFoundError):
            await read(store, name)
    assert raw.holding(MARKER) == []


async def test_deletions_at_the_same_time_count_each_response_once(store: MongoStore) -> None:
    for number in range(30):
        await store.writing.store(SCOPE, turn(f"r{number}", conversation="c", given=items(f"i{number}", 2)))
    receipts = await asyncio.gather(
        *(store.erasing.conversation(SCOPE, "c") for _ in range(3)),
        *(store.erasing.user(SCOPE) for _ in range(2)),
    )
    assert sum(receipt.responses for receipt in receipts) == 30
    assert sum(receipt.items for receipt in receipts) == 60


async def test_database_removes_what_was_erased_when_the_grace_is_over(tmp_path: Path) -> None:
    with replica_set(tmp_path, 1, {"ttlMonitorSleepSecs": "1"}) as members:
        store = await MongoStore.open(members.uri, "erasing", erase_grace=timedelta(0))
        await store.migrate()
        for scope in (SCOPE, OTHER):
            await _say(store, scope)
        await store.erasing.user(SCOPE)
        with pymongo.MongoClient[dict[str, Any]](members.uri) as client:
            raw = Raw(client, "erasing")
            kept = (
                len(raw.responses(scope=OTHER.key)),
                raw.database["paths"].count_documents({"scope": OTHER.key}),
            )

            def gone() -> bool:
                return not any(
                    raw.database[collection].count_documents({"scope": SCOPE.key})
                    for collection in ("responses", "paths", "bodies")
                )

            await asyncio.to_thread(wait_until, gone, 30, "the database has removed what was erased")
            assert kept == (
                len(raw.responses(scope=OTHER.key)),
                raw.database["paths"].count_documents({"scope": OTHER.key}),
            )
        for write in SAID:
            await store.writing.store(SCOPE, write)
        assert (await read(store, "twin"))[0] == items(f"{MARKER}-u", 1)
        await store.close()
