"""Pages: one consistent whole from a first page to its last, and tokens that are good for nothing else."""

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.database import drop_database
from tests.faults.calls import MIB, Caller, Refusal, item
from tests.service_process import service_in_process
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import replay_pb2, response_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")

FULL = replay_pb2.HISTORY_VIEW_FULL
RUNNING = response_pb2.RESPONSE_STATUS_IN_PROGRESS
FAILED = response_pb2.RESPONSE_STATUS_FAILED


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def targets(mongodb_uri: str) -> AsyncIterator[tuple[str, str]]:
    """Two replicas on one database."""
    name = f"turnstore_test_{uuid.uuid4().hex}"
    async with (
        service_in_process(mongodb_uri=mongodb_uri, mongodb_database=name) as one,
        service_in_process(mongodb_uri=mongodb_uri, mongodb_database=name) as other,
    ):
        yield one.target, other.target
    drop_database(mongodb_uri, name)


@pytest_asyncio.fixture(loop_scope="module")
async def caller(targets: tuple[str, str]) -> AsyncIterator[Caller]:
    """A client with gRPC's default limits."""
    async with grpc.aio.insecure_channel(targets[0]) as channel:
        yield Caller(channel, namespace=f"paging-{uuid.uuid4()}")


@pytest_asyncio.fixture(loop_scope="module")
async def replica(targets: tuple[str, str], caller: Caller) -> AsyncIterator[Caller]:
    """The same client at the other replica."""
    async with grpc.aio.insecure_channel(targets[1]) as channel:
        yield Caller(channel, namespace=caller.scope.namespace)


def _changed(answer: Any) -> bool:
    return isinstance(answer, Refusal) and (answer.code, answer.reason) == ("ABORTED", "HISTORY_CHANGED")


def _bad_token(answer: Any) -> bool:
    return isinstance(answer, Refusal) and (answer.code, answer.fields) == (
        "INVALID_ARGUMENT",
        ("page_token",),
    )


async def _fill(caller: Caller, turns: int, size: int = MIB) -> list[str]:
    texts = [item(f"i{number}", size) for number in range(turns)]
    for number, text in enumerate(texts):
        await caller.store(f"r{number}", conversation_id="c", input_items=[text])
    return texts


def _history(caller: Caller, **fields: Any) -> rpc.ResolveHistoryRequest:
    return rpc.ResolveHistoryRequest(scope=caller.scope, **{"conversation_id": "c", "view": FULL, **fields})


def _methods(caller: Caller) -> dict[str, Any]:
    """A request of each kind that has pages, to be made after `_fill` and `_large`."""
    scope = caller.scope
    return {
        "ResolveHistory": _history(caller),
        "GetResponse": rpc.GetResponseRequest(scope=scope, response_id="large"),
        "ListInputItems": rpc.ListInputItemsRequest(scope=scope, response_id="large", page_size=3),
        "BatchGetItems": rpc.BatchGetItemsRequest(scope=scope, item_ids=[f"l{n}" for n in range(8)]),
        "ListResponses": rpc.ListResponsesRequest(scope=scope, conversation_id="c", page_size=2),
    }


async def _large(caller: Caller, items: int = 8, size: int = MIB) -> list[str]:
    texts = [item(f"l{number}", size) for number in range(items)]
    await caller.store("large", input_items=texts, status=RUNNING)
    return texts


# One history from the first page to the last


async def test_history_of_60_mib_is_that_of_its_first_page_while_turns_are_added(caller: Caller) -> None:
    texts = await _fill(caller, 60)
    found: list[str] = []
    added = 0
    async for page in caller.pages("ResolveHistory", _history(caller)):
        assert not isinstance(page, Refusal), page
        found.extend(one.json for one in page.items)
        # A good turn, a failed one, and one that repeats an item of the history that is being read.
        await caller.store(f"new-{added}", conversation_id="c", input_items=[item(f"n{added}", 1000)])
        await caller.store(
            f"bad-{added}", conversation_id="c", status=FAILED, input_items=[item(f"b{added}")]
        )
        repeated = rpc.StoreResponseRequest(
            scope=caller.scope,
            response=response_pb2.Response(
                id=f"again-{added}", conversation_id="c", input_items=[response_pb2.Item(json=texts[0])]
            ),
            duplicate_items=replay_pb2.DUPLICATE_ITEMS_KEEP_FIRST,
        )
        assert not isinstance(await caller.call("StoreResponse", repeated), Refusal)
        added += 1
    assert found == texts
    assert added > 15


async def _fail(caller: Caller) -> None:
    await caller.store("r2", status=FAILED, expected_revision=1)


async def _delete(caller: Caller) -> None:
    request = rpc.DeleteResponseRequest(scope=caller.scope, response_id="r2")
    assert not isinstance(await caller.call("DeleteResponse", request), Refusal)


async def _hide(caller: Caller) -> None:
    request = rpc.SetReplayExclusionRequest(scope=caller.scope, response_id="r2", excluded=True)
    assert not isinstance(await caller.call("SetReplayExclusion", request), Refusal)


async def _repair(caller: Caller) -> None:
    await caller.store("r2", expected_revision=1, output_items=[item("repaired")])


async def _erase(caller: Caller) -> None:
    request = rpc.DeleteConversationRequest(scope=caller.scope, conversation_id="c")
    assert not isinstance(await caller.call("DeleteConversation", request), Refusal)


async def _create_again(caller: Caller) -> None:
    await _delete(caller)
    await caller.store("r2", conversation_id="c", expected_revision=0, input_items=[item("i2", MIB)])


@pytest.mark.parametrize("change", [_fail, _delete, _hide, _repair, _erase, _create_again])
async def test_history_that_changes_between_two_pages_is_begun_again(
    caller: Caller, change: Callable[[Caller], Awaitable[None]]
) -> None:
    await _fill(caller, 8)
    request = _history(caller)
    first = await caller.call("ResolveHistory", request)
    request.page_token = first.next_page_token
    await change(caller)
    assert _changed(await caller.call("ResolveHistory", request))
    request.page_token = ""
    again = await caller.call("ResolveHistory", request)
    assert not isinstance(again, Refusal)


async def test_what_happens_after_the_first_page_changes_nothing(caller: Caller) -> None:
    texts = await _fill(caller, 8)
    request = _history(caller)
    found: list[str] = []
    number = 0
    async for page in caller.pages("ResolveHistory", request):
        assert not isinstance(page, Refusal), page
        assert not page.ancestor_deleted
        found.extend(one.json for one in page.items)
        name = f"late-{number}"
        number += 1
        await caller.store(name, conversation_id="c", status=RUNNING, input_items=[item(name)])
        await caller.store(name, status=FAILED)
        delete = rpc.DeleteResponseRequest(scope=caller.scope, response_id=name)
        assert not isinstance(await caller.call("DeleteResponse", delete), Refusal)
        await caller.store(
            f"child-{number}", previous_response_id="r3", input_items=[item(f"child-{number}")]
        )
    assert found == texts


@pytest.mark.parametrize("limited", [{"limit": 6}, {"limit": 6, "limit_unit": 2}, {"explain": True}])
async def test_limited_and_explained_histories_have_pages_too(
    caller: Caller, limited: dict[str, Any]
) -> None:
    texts = await _fill(caller, 8)
    await caller.store("bad", conversation_id="c", status=FAILED, input_items=[item("bad")])
    found: list[str] = []
    excluded: list[str] = []
    pages = 0
    async for page in caller.pages("ResolveHistory", _history(caller, **limited)):
        assert not isinstance(page, Refusal), page
        found.extend(one.json for one in page.items)
        excluded.extend(item_id for one in page.exclusions for item_id in one.item_ids)
        pages += 1
        assert page.truncated == ("limit" in limited)
    assert found == (texts[2:] if "limit" in limited else texts)
    assert excluded == (["bad"] if "explain" in limited else [])
    assert pages > 1


async def test_history_of_parent_and_conversation_has_pages(caller: Caller) -> None:
    texts = await _fill(caller, 5)
    await caller.store("p0", input_items=[item("p0", MIB)])
    await caller.store("p1", previous_response_id="p0", input_items=[item("p1", MIB)])
    found: list[str] = []
    async for page in caller.pages("ResolveHistory", _history(caller, previous_response_id="p1")):
        assert not isinstance(page, Refusal), page
        found.extend(one.json for one in page.items)
        await caller.store(f"x{len(found)}", conversation_id="c", input_items=[item(f"x{len(found)}")])
    assert found == [item("p0", MIB), item("p1", MIB), *texts]


async def test_history_before_a_response_has_pages(caller: Caller) -> None:
    texts = await _fill(caller, 6)
    request = rpc.ResolveHistoryRequest(scope=caller.scope, before_response_id="r5", view=FULL)
    found: list[str] = []
    async for page in caller.pages("ResolveHistory", request):
        assert not isinstance(page, Refusal), page
        found.extend(one.json for one in page.items)
    assert found == texts[:5]


async def test_response_that_changes_between_two_pages_is_begun_again(caller: Caller) -> None:
    await _large(caller)
    request = rpc.GetResponseRequest(scope=caller.scope, response_id="large")
    request.page_token = (await caller.call("GetResponse", request)).next_page_token
    await caller.store("large", output_items=[item("end")])
    assert _changed(await caller.call("GetResponse", request))


async def test_response_that_is_gone_between_two_pages_is_not_found(caller: Caller) -> None:
    await _large(caller)
    request = rpc.GetResponseRequest(scope=caller.scope, response_id="large")
    request.page_token = (await caller.call("GetResponse", request)).next_page_token
    await caller.call("DeleteResponse", rpc.DeleteResponseRequest(scope=caller.scope, response_id="large"))
    answer = await caller.call("GetResponse", request)
    assert isinstance(answer, Refusal)
    assert answer.reason in {"RESPONSE_NOT_FOUND", "HISTORY_CHANGED"}


@pytest.mark.parametrize("method", ["ListInputItems", "BatchGetItems"])
async def test_items_that_change_between_two_pages_are_begun_again(caller: Caller, method: str) -> None:
    await _large(caller)
    request = _methods(caller)[method]
    request.page_token = (await caller.call(method, request)).next_page_token
    await caller.store("large", input_items=[item(f"l{number}", MIB - 1) for number in range(8)])
    assert _changed(await caller.call(method, request))


# Tokens


@pytest.mark.parametrize(
    "method", ["ResolveHistory", "GetResponse", "ListInputItems", "BatchGetItems", "ListResponses"]
)
async def test_token_is_good_for_the_same_call_alone_at_any_replica(
    caller: Caller, replica: Caller, method: str
) -> None:
    await _fill(caller, 6)
    await _large(caller)
    requests = _methods(caller)
    request = requests[method]
    token = (await caller.call(method, request)).next_page_token
    assert token
    request.page_token = token
    here, there = await caller.call(method, request), await replica.call(method, request)
    assert not isinstance(here, Refusal)
    assert here == there
    for other, stranger in requests.items():  # another call
        if other != method:
            stranger.page_token = token
            assert _bad_token(await caller.call(other, stranger)), other
    for scope in (  # another scope
        response_pb2.Scope(namespace="elsewhere"),
        response_pb2.Scope(namespace=caller.scope.namespace, user=""),
        response_pb2.Scope(namespace=caller.scope.namespace, user="ada"),
    ):
        moved = type(request)()
        moved.CopyFrom(request)
        moved.scope.CopyFrom(scope)
        answer = await caller.call(method, moved)
        assert _bad_token(answer) or answer.code == "NOT_FOUND"
    for changed in _others(request):  # other arguments
        assert _bad_token(await caller.call(method, changed)), changed


def _others(request: Any) -> list[Any]:
    """The same request with one argument changed each time."""
    changes: dict[str, list[dict[str, Any]]] = {
        "ResolveHistoryRequest": [
            {"limit": 5},
            {"limit_unit": 2},
            {"view": 1},
            {"explain": True},
            {"answered_call_ids": ["a"]},
            {"policy": replay_pb2.ReplayPolicy(cancelled=1)},
            {"previous_response_id": "r1"},
        ],
        "GetResponseRequest": [{"response_id": "r0"}],
        "ListInputItemsRequest": [
            {"response_id": "r0"},
            {"order": 1},
            {"after": "l3"},
            {"before": "l3"},
            {"include_inherited": True},
        ],
        "BatchGetItemsRequest": [{"conversation_id": "c"}, {"item_ids": ["l9"]}],
        "ListResponsesRequest": [{"conversation_id": "d"}],
    }
    changed = []
    for fields in changes[type(request).__name__]:
        other = type(request)(**fields)
        copy = type(request)()
        copy.CopyFrom(request)
        for name in fields:
            copy.ClearField(name)
        copy.MergeFrom(other)
        changed.append(copy)
    return changed


async def test_page_size_may_differ_from_page_to_page(caller: Caller) -> None:
    await _fill(caller, 10, 100)
    request = rpc.ListResponsesRequest(scope=caller.scope, conversation_id="c", page_size=1)
    found: list[str] = []
    size = 0
    async for page in caller.pages("ListResponses", request):
        found.extend(turn.id for turn in page.responses)
        size += 1
        request.page_size = size
    assert found == [f"r{number}" for number in range(10)]


async def test_token_with_any_character_changed_is_refused(caller: Caller) -> None:
    await _fill(caller, 6)
    request = _history(caller)
    token = (await caller.call("ResolveHistory", request)).next_page_token
    data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        request.page_token = base64.urlsafe_b64encode(changed).decode().rstrip("=")
        assert _bad_token(await caller.call("ResolveHistory", request)), at
    for cut in (token[:-4], token[4:], token + "AAAA", token * 2):
        request.page_token = cut
        assert _bad_token(await caller.call("ResolveHistory", request))


async def test_token_outlives_the_service(mongodb_uri: str) -> None:
    name = f"turnstore_test_{uuid.uuid4().hex}"
    async with service_in_process(mongodb_uri=mongodb_uri, mongodb_database=name) as before:
        caller = Caller(before.channel)
        texts = await _fill(caller, 6)
        request = _history(caller)
        first = await caller.call("ResolveHistory", request)
        request.page_token = first.next_page_token
    async with service_in_process(mongodb_uri=mongodb_uri, mongodb_database=name) as after:
        rest = [
            one.json
            async for page in Caller(after.channel).pages("ResolveHistory", request)
            for one in page.items
        ]
    assert [one.json for one in first.items] + rest == texts
    drop_database(mongodb_uri, name)


# Sizes of pages


async def test_pages_have_20_entries_unless_asked_and_100_at_the_most(caller: Caller) -> None:
    await caller.store("r", conversation_id="c", input_items=[item(f"i{n}") for n in range(150)])
    for number in range(120):
        await caller.store(f"t{number}", conversation_id="c")
    for asked, given in ((0, 20), (1, 1), (100, 100), (101, 100), (2**31 - 1, 100)):
        items = await caller.call(
            "ListInputItems",
            rpc.ListInputItemsRequest(scope=caller.scope, response_id="r", page_size=asked),
        )
        assert len(items.items) == given
        turns = await caller.call(
            "ListResponses",
            rpc.ListResponsesRequest(scope=caller.scope, conversation_id="c", page_size=asked),
        )
        assert len(turns.responses) == given


@pytest.mark.parametrize("order", [replay_pb2.LIST_ORDER_ASC, replay_pb2.LIST_ORDER_DESC])
@pytest.mark.parametrize(
    ("after", "before"), [("", ""), ("i4", ""), ("", "i9"), ("i4", "i9"), ("none", "none")]
)
async def test_pages_of_items_lie_between_the_cursors(
    caller: Caller, order: Any, after: str, before: str
) -> None:
    await caller.store("parent", input_items=[item(f"i{n}") for n in range(6)])
    await caller.store("r", previous_response_id="parent", input_items=[item(f"i{n}") for n in range(6, 13)])
    ids = [f"i{n}" for n in range(13)]
    if order == replay_pb2.LIST_ORDER_DESC:
        ids.reverse()
        after, before = before, after
    begin = ids.index(after) + 1 if after in ids else 0
    end = ids.index(before) if before in ids else len(ids)
    request = rpc.ListInputItemsRequest(
        scope=caller.scope,
        response_id="r",
        page_size=2,
        order=order,
        after=after,
        before=before,
        include_inherited=True,
    )
    pages = [[one.id for one in page.items] async for page in caller.pages("ListInputItems", request)]
    assert [item_id for page in pages for item_id in page] == ids[begin:end]
    assert all(len(page) == 2 for page in pages[:-1])
    assert pages[-1] or not ids[begin:end]


async def test_turns_that_come_while_a_line_is_listed_come_last(caller: Caller) -> None:
    await _fill(caller, 10, 100)
    request = rpc.ListResponsesRequest(scope=caller.scope, conversation_id="c", page_size=3)
    found: list[int] = []
    async for page in caller.pages("ListResponses", request):
        found.extend(turn.place for turn in page.responses)
        if len(found) < 10:
            await caller.store(f"new-{len(found)}", conversation_id="c")
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= 12


# Readers beside writers


async def test_reader_beside_a_writer_of_large_bodies_sees_whole_states_alone(caller: Caller) -> None:
    """While the bodies are replaced again and again, every answer is one state or an honest refusal."""
    states = [[item(f"s{state}-{n}", 3 * MIB) for n in range(4)] for state in range(3)]
    await caller.store("r", conversation_id="c", status=RUNNING, output_items=states[0])
    done = asyncio.Event()

    async def write() -> None:
        for number in range(1, 9):
            answer = await caller.store("r", status=RUNNING, output_items=states[number % 3])
            assert not isinstance(answer, Refusal), answer
        done.set()

    async def read() -> int:
        whole = 0
        while not done.is_set() or not whole:
            found: list[str] = []
            request = rpc.GetResponseRequest(scope=caller.scope, response_id="r")
            async for page in caller.pages("GetResponse", request):
                if isinstance(page, Refusal):
                    assert _changed(page), page
                    break
                found.extend(one.json for one in page.response.output_items)
            else:
                assert found in states
                whole += 1
        return whole

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        readers = [group.create_task(read()) for _ in range(2)]
    assert all(reader.result() for reader in readers)


async def test_reader_beside_a_deletion_sees_a_whole_response_or_none(caller: Caller) -> None:
    for number in range(6):
        name = f"r{number}"
        texts = [item(f"{name}-{n}", 3 * MIB) for n in range(4)]
        await caller.store(name, input_items=texts, payload_json=item("p", 2 * MIB))

        async def read(name: str = name, texts: list[str] = texts) -> None:
            found: list[str] = []
            request = rpc.GetResponseRequest(scope=caller.scope, response_id=name)
            async for page in caller.pages("GetResponse", request):
                if isinstance(page, Refusal):
                    assert page.reason in {"RESPONSE_NOT_FOUND", "HISTORY_CHANGED"}, page
                    return
                found.extend(one.json for one in page.response.input_items)
            assert found == texts

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(read())
            request = rpc.DeleteResponseRequest(scope=caller.scope, response_id=name)
            group.create_task(caller.call("DeleteResponse", request))
