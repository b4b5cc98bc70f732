"""A process that dies between any two of its database calls: what it was doing is there whole or not at all, what
was there before is unharmed, and doing it again ends as if nothing had happened.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from tests.storage.turns import ALL, MIB, Raw, item, items, read, turn
from turnstore_service.history.resolving import resolve
from turnstore_service.replay.values import Status
from turnstore_service.storage.errors import ParentNotFoundError, ResponseNotFoundError
from turnstore_service.storage.mongo.driver import Database
from turnstore_service.storage.mongo.store import MongoStore
from turnstore_service.storage.values import Scope, Write

MARKER = "something-said-in-confidence"
LARGE = [item(MARKER, 9 * MIB)]
"""Does not fit beside anything else: it is moved out in two chunks."""
RUNNING = Status.IN_PROGRESS
REQUEST = "7d8a1c52-4f0b-4a55-9d0e-7f1c2a3b4c5d"


class DeathError(BaseException):
    """The process has died. No code of the service catches it."""


class MortalDatabase(Database):
    """A database that can be asked so many times; then the process dies, and nothing reaches it any more."""

    def __init__(self, uri: str, name: str, calls: int) -> None:
        super().__init__(uri, name)
        self._left = calls

    @asynccontextmanager
    async def _call(self, operation: str) -> AsyncIterator[None]:
        if not self._left:
            raise DeathError
        self._left -= 1
        async with super()._call(operation):
            yield


@dataclass(frozen=True)
class Scene:
    """What is there before, and what is done then."""

    before: tuple[Write, ...]
    act: Callable[[MongoStore, Scope], Awaitable[object]]
    after: dict[str, tuple[list[str], list[str]] | None]
    """Input and output of each response when it is done; None: not there any more."""


def _writes(write: Write) -> Callable[[MongoStore, Scope], Awaitable[object]]:
    return lambda store, scope: store.writing.store(scope, write)


ROOT = turn("root", given=items("root", 1), made=items("root-out", 1))
CHILD = turn("child", parent="root", given=items("child", 1))
WRITES = {
    "create in a conversation": Scene(
        (turn("first", conversation="c", given=items("first", 1)),),
        _writes(turn("second", conversation="c", given=items("second", 2), request_id=REQUEST)),
        {"first": (items("first", 1), []), "second": (items("second", 2), [])},
    ),
    "create of a large one": Scene(
        (ROOT,),
        _writes(turn("large", parent="root", given=LARGE, made=items("out", 1), request_id=REQUEST)),
        {"root": (items("root", 1), items("root-out", 1)), "large": (LARGE, items("out", 1))},
    ),
    "fork": Scene(
        (ROOT, CHILD, turn("fork-1", parent="root", given=items("f1", 1))),
        _writes(turn("fork-2", parent="root", given=items("f2", 1), request_id=REQUEST)),
        {"child": (items("child", 1), []), "fork-2": (items("f2", 1), [])},
    ),
    "fork of a fork": Scene(
        (ROOT, CHILD, turn("fork", parent="root"), turn("leaf-1", parent="fork")),
        _writes(turn("leaf-2", parent="fork", given=items("l2", 1), request_id=REQUEST)),
        {"leaf-1": ([], []), "leaf-2": (items("l2", 1), [])},
    ),
    "create that repeats an item": Scene(
        (turn("first", conversation="c", made=items("same", 1)),),
        _writes(
            replace(
                turn(
                    "second", conversation="c", given=items("same", 1), made=items("o", 1), request_id=REQUEST
                ),
                keep_first=True,
            )
        ),
        {"first": ([], items("same", 1)), "second": (items("same", 1), items("o", 1))},
    ),
    "update": Scene(
        (turn("first", conversation="c", status=RUNNING, given=items("in", 1)),),
        _writes(turn("first", made=items("out", 2), request_id=REQUEST)),
        {"first": (items("in", 1), items("out", 2))},
    ),
    "failure": Scene(
        (turn("first", conversation="c", status=RUNNING, given=items("in", 1), made=items("draft", 1)),),
        _writes(turn("first", status=Status.FAILED, request_id=REQUEST)),
        {"first": (items("in", 1), [])},
    ),
    "update of a large one": Scene(
        (turn("first", status=RUNNING, given=LARGE, made=items("draft", 1)),),
        _writes(turn("first", made=[item("out", 9 * MIB)], request_id=REQUEST)),
        {"first": (LARGE, [item("out", 9 * MIB)])},
    ),
    "exclusion": Scene(
        (turn("first", conversation="c", given=items("in", 1)),),
        lambda store, scope: store.writing.set_exclusion(scope, "first", True),
        {"first": (items("in", 1), [])},
    ),
}


async def _look(store: MongoStore, scope: Scope, response_id: str) -> tuple[list[str], list[str]] | None:
    """Input and output of a response, None where there is none. Its history has to resolve as well."""
    try:
        line = await store.reading.line_to(scope, response_id)
        await resolve(store.reading, [line], ALL, explained=True, full=True)
        given, made, _ = await read(store, response_id, scope)
    except (ParentNotFoundError, ResponseNotFoundError):
        return None
    return given, made


async def _deaths(
    mongodb_uri: str, database_name: str, store: MongoStore, scene: Scene
) -> AsyncIterator[tuple[Scope, bool]]:
    """Plays a scene in a scope of its own for every number of calls after which the process dies, up to the one
    that suffices; gives scope and whether it sufficed.
    """
    calls = 0
    done = False
    while not done:
        scope = Scope("tests", f"dies after {calls} calls")
        for write in scene.before:
            await store.writing.store(scope, write)
        mortal = MongoStore(MortalDatabase(mongodb_uri, database_name, calls))
        try:
            await scene.act(mortal, scope)
            done = True
        except DeathError:
            calls += 1
        finally:
            await mortal.close()
        yield scope, done
    assert calls, "the scene takes no database call"


@pytest.mark.parametrize("scene", WRITES.values(), ids=WRITES)
async def test_write_is_there_whole_or_not_at_all_and_can_be_repeated(
    mongodb_uri: str, database_name: str, store: MongoStore, raw: Raw, scene: Scene
) -> None:
    before = {
        write.response_id: (list(write.input.bodies), list(write.output.bodies)) for write in scene.before
    }
    async for scope, done in _deaths(mongodb_uri, database_name, store, scene):
        for response_id, after in scene.after.items():
            found = await _look(store, scope, response_id)
            assert found == after if done else found in (before.get(response_id), after)
        await scene.act(store, scope)
        assert {name: await _look(store, scope, name) for name in scene.after} == scene.after
    await store._bodies.sweep(timedelta(seconds=-10))
    assert raw.chunks() == raw.named_chunks()
    if "c" in {write.conversation_id for write in scene.before}:
        for places in _places_by_scope(raw).values():
            assert places == list(range(1, len(places) + 1))


def _places_by_scope(raw: Raw) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for response in raw.responses(conversation_id="c"):
        places.setdefault(response["scope"], []).append(response["place"])
    return {scope: sorted(found) for scope, found in places.items()}


SAID = (
    turn("first", conversation="c", given=LARGE, made=items(f"{MARKER}-1", 1), payload=item(MARKER)),
    turn("second", conversation="c", given=items(f"{MARKER}-2", 1), snapshot=[f"{MARKER}-0"]),
    turn("branch", parent="first", given=items(f"{MARKER}-b", 1)),
    turn("third", conversation="c", given=items(f"{MARKER}-3", 2), payload=item("p", 9 * MIB)),
)


async def _delete_again(store: MongoStore, scope: Scope) -> None:
    with suppress(ResponseNotFoundError):
        await store.erasing.response(scope, "first")


ERASURES = {
    "one response": (lambda store, scope: store.erasing.response(scope, "first"), _delete_again, {"first"}),
    "a conversation": (
        lambda store, scope: store.erasing.conversation(scope, "c"),
        lambda store, scope: store.erasing.conversation(scope, "c"),
        {"first", "second", "third"},
    ),
    "all of a user": (
        lambda store, scope: store.erasing.user(scope),
        lambda store, scope: store.erasing.user(scope),
        {"first", "second", "third", "branch"},
    ),
}


@pytest.mark.parametrize("what", ERASURES)
async def test_erasure_that_is_broken_off_is_completed_by_the_next(
    mongodb_uri: str, database_name: str, store: MongoStore, raw: Raw, what: str
) -> None:
    erase, again, erased = ERASURES[what]
    said = {write.response_id: (list(write.input.bodies), list(write.output.bodies)) for write in SAID}
    async for scope, _ in _deaths(mongodb_uri, database_name, store, Scene(SAID, erase, {})):
        found = {name: await _look(store, scope, name) for name in said}
        for name, text in found.items():
            assert text == said[name] or (text is None and name in erased)
        line = await store.reading.line_of_conversation(scope, "c")
        history = await resolve(store.reading, [line], ALL, explained=False, full=True)
        lost = any(found[name] is None for name in ("first", "second", "third"))
        assert history.ancestor_deleted or not lost, "a reader meets the loss without being told"
        await again(store, scope)
        assert {name for name in said if await _look(store, scope, name) is None} == erased
        for response in raw.responses(scope=scope.key, deleted=True):
            assert MARKER not in repr(response) or what == "one response"
        tokens = {
            response[side]
            for response in raw.responses(scope=scope.key)
            for side in response
            if "_side" in side
        }
        chunks = raw.database["bodies"].find({"scope": scope.key}, {"token": 1})
        assert {chunk["token"] for chunk in chunks} == tokens, "bodies of what was erased are left"
        if what == "all of a user":
            left = [*raw.responses(scope=scope.key), *raw.database["paths"].find({"scope": scope.key})]
            assert all("erase_time" in document for document in left)
    if what == "all of a user":
        assert raw.holding(MARKER) == []
