"""What the clients do when a call does not simply succeed. Both clients, against a scripted service."""

import asyncio
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.client.both_clients import KINDS, client_of
from tests.client.scripted_service import Refusal, ScriptedService, Silence
from turnstore import (
    DeadlineError,
    DeleteReceipt,
    HistoryChangedError,
    NotBuiltError,
    Response,
    ResponseNotFoundError,
    RevisionMismatchError,
    Scope,
    ServiceUnreachableError,
    StoreUnavailableError,
    TurnstoreError,
)
from turnstore.v1 import history_service_pb2 as pb
from turnstore.v1 import response_pb2

Code = grpc.StatusCode

AWAY = Refusal(Code.UNAVAILABLE, "STORE_UNAVAILABLE", retry_seconds=0.01)
CUT = Refusal(Code.UNAVAILABLE)
GONE = Refusal(Code.NOT_FOUND, "RESPONSE_NOT_FOUND", {"response_id": "r"})
CHANGED = Refusal(Code.ABORTED, "HISTORY_CHANGED", retry_seconds=0.01)

SHORT = 1.5
"""Seconds that a call may take which is to fail: enough for a busy machine to connect in."""

pytestmark = pytest.mark.parametrize("kind", KINDS)


def stored(revision: int = 1) -> pb.StoreResponseResponse:
    return pb.StoreResponseResponse(response=response_pb2.Response(id="r", revision=revision))


def history(*item_ids: str, more: str = "") -> pb.ResolveHistoryResponse:
    return pb.ResolveHistoryResponse(item_ids=item_ids, next_page_token=more)


async def test_write_is_made_again_with_the_same_request_id(kind: str) -> None:
    with ScriptedService(CUT, AWAY, stored()) as service:
        async with client_of(kind, service.target) as client:
            response = await client.store_response(Response("r"))
    assert response.revision == 1
    requests = [received.request for received in service.received]
    assert len(requests) == 3
    assert requests[0] == requests[1] == requests[2]
    assert uuid.UUID(requests[0].request_id).version == 4


async def test_each_write_has_a_request_id_of_its_own(kind: str) -> None:
    with ScriptedService(stored()) as service:
        async with client_of(kind, service.target) as client:
            await client.store_response(Response("r"))
            await client.store_response(Response("r"))
    first, second = (received.request.request_id for received in service.received)
    assert first != second


async def test_request_id_of_the_caller_is_sent(kind: str) -> None:
    request_id = str(uuid.uuid4())
    with ScriptedService(stored()) as service:
        async with client_of(kind, service.target) as client:
            await client.store_response(Response("r"), request_id=request_id)
    assert service.received[0].request.request_id == request_id


CALLS: list[tuple[str, Callable[[Any], Awaitable[Any]], Any]] = [
    ("store_response", lambda client: client.store_response(Response("r")), stored()),
    ("resolve_history", lambda client: client.resolve_history(conversation_id="c"), history("a")),
    ("get_response", lambda client: client.get_response("r"), pb.GetResponseResponse()),
    (
        "set_replay_exclusion",
        lambda client: client.set_replay_exclusion("r", True),
        pb.SetReplayExclusionResponse(),
    ),
    ("delete_response", lambda client: client.delete_response("r"), pb.DeleteResponseResponse()),
    (
        "delete_conversation",
        lambda client: client.delete_conversation("c"),
        pb.DeleteConversationResponse(),
    ),
    ("delete_user_data", lambda client: client.delete_user_data(), pb.DeleteUserDataResponse()),
    (
        "list_input_items",
        lambda client: listed(client.list_input_items("r")),
        pb.ListInputItemsResponse(),
    ),
    (
        "batch_get_items",
        lambda client: client.batch_get_items(["a"]),
        pb.BatchGetItemsResponse(items=[pb.BatchItem()]),
    ),
    (
        "list_responses",
        lambda client: listed(client.list_responses(conversation_id="c")),
        pb.ListResponsesResponse(),
    ),
]
EVERY_CALL = pytest.mark.parametrize(
    ("call", "answer"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS]
)


async def listed(iterator: Any) -> list[Any]:
    return [value async for value in iterator]


@EVERY_CALL
async def test_service_that_is_away_for_a_moment_is_not_noticed(
    kind: str, call: Callable[[Any], Awaitable[Any]], answer: Any
) -> None:
    with ScriptedService(CUT, AWAY, answer) as service:
        async with client_of(kind, service.target) as client:
            await call(client)
    assert len(service.received) == 3


@EVERY_CALL
async def test_what_repeating_cannot_mend_is_told_at_once(
    kind: str, call: Callable[[Any], Awaitable[Any]], answer: Any
) -> None:
    with ScriptedService(Refusal(Code.UNIMPLEMENTED, message="not built")) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(NotBuiltError, match="not built"):
                await call(client)
    assert len(service.received) == 1


@EVERY_CALL
async def test_client_s_scope_goes_with_each_call(
    kind: str, call: Callable[[Any], Awaitable[Any]], answer: Any
) -> None:
    with ScriptedService(answer) as service:
        async with client_of(kind, service.target, namespace="ns", user="anna") as client:
            await call(client)
    assert service.received[0].request.scope == response_pb2.Scope(namespace="ns", user="anna")


async def test_scope_of_a_call_takes_the_place_of_the_client_s(kind: str) -> None:
    with ScriptedService(stored()) as service:
        async with client_of(kind, service.target, namespace="ns", user="anna") as client:
            await client.store_response(Response("r"), scope=Scope("other"))
            await client.store_response(Response("r"), scope=client.scope.for_user(""))
    assert [received.request.scope for received in service.received] == [
        response_pb2.Scope(namespace="other"),
        response_pb2.Scope(namespace="ns", user=""),
    ]


async def test_revision_mismatch_is_never_repeated(kind: str) -> None:
    mismatch = Refusal(
        Code.ABORTED, "REVISION_MISMATCH", {"expected": "1", "actual": "2"}, retry_seconds=0.01
    )
    with ScriptedService(mismatch) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(RevisionMismatchError) as caught:
                await client.store_response(Response("r"), expected_revision=1)
    assert (caught.value.actual, caught.value.attempts, len(service.received)) == (2, 1, 1)


async def test_service_that_is_full_is_asked_again_when_it_says(kind: str) -> None:
    full = Refusal(Code.RESOURCE_EXHAUSTED, retry_seconds=0.3)
    with ScriptedService(full, stored()) as service:
        async with client_of(kind, service.target) as client:
            began = time.monotonic()
            await client.store_response(Response("r"))
            assert time.monotonic() - began >= 0.3
    assert len(service.received) == 2


async def test_wait_that_the_deadline_does_not_allow_is_not_begun(kind: str) -> None:
    away = Refusal(Code.UNAVAILABLE, "STORE_UNAVAILABLE", retry_seconds=60)
    with ScriptedService(away) as service:
        async with client_of(kind, service.target, timeout=30) as client:
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError) as caught:
                await client.get_response("r")
            assert time.monotonic() - began < 10
    assert caught.value.retry_delay == 60


async def test_tries_end_with_the_deadline(kind: str) -> None:
    with ScriptedService(AWAY) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(StoreUnavailableError) as caught:
                await client.get_response("r", timeout=SHORT)
    assert caught.value.attempts == len(service.received) > 1
    assert all(received.seconds_left <= SHORT for received in service.received)


async def test_deadline_of_the_client_is_15_seconds(kind: str) -> None:
    with ScriptedService(stored()) as service:
        async with client_of(kind, service.target) as client:
            await client.store_response(Response("r"))
    assert 10 < service.received[0].seconds_left <= 15


async def test_late_answer_names_the_service_and_the_time(kind: str) -> None:
    with ScriptedService(Silence()) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(DeadlineError) as caught:
                await client.get_response("r", timeout=SHORT)
    assert service.target in str(caught.value)
    assert f"did not answer within {SHORT} s. It does answer when asked for its health" in str(caught.value)


async def test_late_answer_tells_what_the_try_before_ended_in(kind: str) -> None:
    away = Refusal(Code.UNAVAILABLE, "STORE_UNAVAILABLE", retry_seconds=0.01, message="no primary")
    with ScriptedService(away, Silence()) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(DeadlineError, match="The try before the last one ended with: no primary"):
                await client.get_response("r", timeout=SHORT)


async def test_service_that_says_why_it_is_late_is_quoted(kind: str) -> None:
    late = Refusal(Code.DEADLINE_EXCEEDED, "STORE_UNAVAILABLE", message="the database was too slow")
    with ScriptedService(late) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(DeadlineError, match="It says: the database was too slow"):
                await client.get_response("r")


async def test_deleted_by_a_try_whose_reply_was_lost(kind: str) -> None:
    with ScriptedService(CUT, GONE) as service:
        async with client_of(kind, service.target) as client:
            assert await client.delete_response("r") == DeleteReceipt(0, 0)


async def test_response_that_was_not_there_is_told_by_the_first_try(kind: str) -> None:
    with ScriptedService(GONE) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(ResponseNotFoundError):
                await client.delete_response("r")


async def test_pages_are_fetched_with_the_token_of_the_one_before(kind: str) -> None:
    with ScriptedService(history("a", more="1"), AWAY, history("b", more="2"), history("c")) as service:
        async with client_of(kind, service.target) as client:
            answer = await client.resolve_history(conversation_id="c", limit=9)
    assert answer.item_ids == ("a", "b", "c")
    assert [received.request.page_token for received in service.received] == ["", "1", "1", "2"]
    assert all(received.request.limit == 9 for received in service.received)


async def test_paging_begins_again_when_the_history_changed(kind: str) -> None:
    with ScriptedService(history("a", more="1"), CHANGED, history("x", more="2"), history("y")) as service:
        async with client_of(kind, service.target) as client:
            answer = await client.resolve_history(conversation_id="c")
    assert answer.item_ids == ("x", "y")
    assert [received.request.page_token for received in service.received] == ["", "1", "", "2"]


async def test_history_that_always_changes_is_told_after_six_rounds(kind: str) -> None:
    def ever_changing(request: pb.ResolveHistoryRequest) -> pb.ResolveHistoryResponse:
        return history("a", more="1")

    with ScriptedService(*[ever_changing, CHANGED] * 6, stored()) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(HistoryChangedError):
                await client.resolve_history(conversation_id="c")
    assert [received.request.page_token for received in service.received] == ["", "1"] * 6


async def test_pages_share_one_deadline(kind: str) -> None:
    # Each page takes a while, so that there is a bounded number of them.
    gate = threading.Event()

    def page(_: Any) -> pb.ResolveHistoryResponse:
        gate.wait(0.1)
        return history("a", more="1")

    with ScriptedService(page) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(DeadlineError):
                await client.resolve_history(conversation_id="c", timeout=SHORT)
    left = [received.seconds_left for received in service.received]
    assert left[0] <= SHORT
    assert left[-1] < left[0]


async def test_list_is_fetched_page_by_page_as_it_is_read(kind: str) -> None:
    def page(name: str, more: str) -> pb.ListInputItemsResponse:
        return pb.ListInputItemsResponse(items=[response_pb2.Item(id=name, json="{}")], next_page_token=more)

    with ScriptedService(page("a", "1"), page("b", "")) as service:
        async with client_of(kind, service.target) as client:
            items = client.list_input_items("r", page_size=1)
            assert (await anext(items)).id == "a"
            assert len(service.received) == 1
            assert [item.id async for item in items] == ["b"]
    assert [received.request.page_token for received in service.received] == ["", "1"]


async def test_list_that_changed_while_it_was_read_is_told(kind: str) -> None:
    first = pb.ListInputItemsResponse(items=[response_pb2.Item(id="a", json="{}")], next_page_token="1")
    with ScriptedService(first, CHANGED) as service:
        async with client_of(kind, service.target) as client:
            items = client.list_input_items("r", include_inherited=True)
            assert (await anext(items)).id == "a"
            with pytest.raises(HistoryChangedError):
                await anext(items)


async def test_no_ids_are_no_call(kind: str) -> None:
    with ScriptedService(stored()) as service:
        async with client_of(kind, service.target) as client:
            assert await client.batch_get_items([]) == []
    assert service.received == []


async def test_call_has_an_id_that_the_error_tells(kind: str) -> None:
    with ScriptedService(CUT, GONE) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(ResponseNotFoundError) as caught:
                await client.get_response("r")
    sent = {received.metadata["x-request-id"] for received in service.received}
    assert sent == {caught.value.request_id}


async def test_no_service_is_told_plainly(kind: str, unused_target: str) -> None:
    async with client_of(kind, unused_target, timeout=0.5) as client:
        began = time.monotonic()
        with pytest.raises(ServiceUnreachableError) as caught:
            await client.get_response("r")
        assert 0.3 < time.monotonic() - began < 5
    message = str(caught.value)
    assert f"No turnstore service could be reached at dns:///{unused_target}" in message
    assert "Connection refused" in message
    assert "turnstore-service serve" in message


async def test_no_service_is_told_at_once_when_it_is_not_to_be_waited_for(
    kind: str, unused_target: str
) -> None:
    async with client_of(kind, unused_target, wait_for_ready=False) as client:
        began = time.monotonic()
        with pytest.raises(ServiceUnreachableError, match="Connection refused"):
            await client.get_response("r")
        assert time.monotonic() - began < 5


async def test_name_that_does_not_exist_is_told(kind: str) -> None:
    async with client_of(kind, "no-such-host.invalid:50051", wait_for_ready=False) as client:
        with pytest.raises(ServiceUnreachableError, match=r"no-such-host\.invalid"):
            await client.get_response("r")


async def test_closed_client_says_so(kind: str, unused_target: str) -> None:
    async with client_of(kind, unused_target) as client:
        pass
    with pytest.raises(RuntimeError, match="this client is closed"):
        await client.get_response("r")


async def test_ping_tells_that_the_service_serves(kind: str) -> None:
    with ScriptedService(stored()) as service:
        async with client_of(kind, service.target) as client:
            ping = await client.ping()
    assert ping.serving
    assert 0 < ping.seconds < 15


async def test_ping_reaches_a_service_that_does_not_serve(kind: str) -> None:
    with ScriptedService(stored()) as service:
        service.set_serving(False)
        async with client_of(kind, service.target) as client:
            assert not (await client.ping()).serving
            assert not (await client.ping(wait=True, timeout=SHORT)).serving


async def test_service_that_does_not_serve_is_told_apart_from_none(kind: str) -> None:
    with ScriptedService(stored()) as service:
        service.set_serving(False)
        async with client_of(kind, service.target, timeout=SHORT) as client:
            with pytest.raises(
                ServiceUnreachableError, match="A service runs there but says that it is not ready"
            ):
                await client.get_response("r")
    assert service.received == []


async def test_ping_waits_until_the_service_serves(kind: str) -> None:
    with ScriptedService(stored()) as service:
        service.set_serving(False)
        async with client_of(kind, service.target) as client:
            waiting = asyncio.ensure_future(client.ping(wait=True))
            assert not (await client.ping()).serving
            service.set_serving(True)
            assert (await waiting).serving


async def test_ping_says_that_nobody_is_there(kind: str, unused_target: str) -> None:
    async with client_of(kind, unused_target) as client:
        began = time.monotonic()
        with pytest.raises(ServiceUnreachableError, match="Connection refused"):
            await client.ping()
        assert time.monotonic() - began < 5


async def test_token_goes_with_each_try(kind: str) -> None:
    tokens = iter(["one", "two"])
    with ScriptedService(AWAY, stored()) as service:
        async with client_of(kind, service.target, token=lambda: next(tokens)) as client:
            await client.store_response(Response("r"))
    assert [received.metadata["authorization"] for received in service.received] == [
        "Bearer one",
        "Bearer two",
    ]


async def test_token_file_goes_with_a_call(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    with ScriptedService(stored()) as service:
        async with client_of(kind, service.target, token_file=path) as client:
            await client.store_response(Response("r"))
    assert service.received[0].metadata["authorization"] == "Bearer secret"


async def test_without_a_token_there_is_no_header(kind: str) -> None:
    with ScriptedService(stored()) as service:
        async with client_of(kind, service.target) as client:
            await client.store_response(Response("r"))
    assert "authorization" not in service.received[0].metadata


async def test_token_from_an_async_function(kind: str) -> None:
    async def token() -> str:
        return "async"

    with ScriptedService(stored()) as service:
        async with client_of(kind, service.target, token=token) as client:
            if kind == "plain":
                with pytest.raises(TypeError, match="from a plain function"):
                    await client.store_response(Response("r"))
            else:
                await client.store_response(Response("r"))
                assert service.received[0].metadata["authorization"] == "Bearer async"


async def test_largest_item_fits_into_a_reply(kind: str) -> None:
    text = '{"s":"' + "x" * (16 * 2**20 - 8) + '"}'
    page = pb.GetResponseResponse(
        response=response_pb2.Response(id="r", output_items=[response_pb2.Item(id="i", json=text)])
    )
    with ScriptedService(page) as service:
        async with client_of(kind, service.target) as client:
            response = await client.get_response("r")
    assert response.output_items[0].json == text


async def test_status_that_no_service_of_ours_gives_is_passed_on(kind: str) -> None:
    with ScriptedService(Refusal(Code.UNKNOWN, message="a proxy said so")) as service:
        async with client_of(kind, service.target) as client:
            with pytest.raises(TurnstoreError, match="a proxy said so") as caught:
                await client.get_response("r")
    assert caught.value.code is Code.UNKNOWN
