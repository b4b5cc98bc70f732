"""Every error as it reaches a client: code, reason, metadata, what to do, and nothing of what is behind it."""

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pymongo
import pytest
import structlog
from pymongo.database import Database

from tests.faults.calls import MIB, Caller, Refusal, item
from tests.service_process import service_in_process
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import response_pb2

WIDE = "\U0001f600" * 255
"""With one more character the longest id, in the most bytes."""
RUNNING = response_pb2.RESPONSE_STATUS_IN_PROGRESS
FAILED = response_pb2.RESPONSE_STATUS_FAILED
LEAKS = ("mongo", "bson", "127.0.0.1", "localhost", "traceback", 'file "', "exception", "errmsg", "e11000")


@pytest.fixture
async def caller(mongodb_uri: str, database_name: str) -> AsyncIterator[Caller]:
    async with service_in_process(mongodb_uri=mongodb_uri, mongodb_database=database_name) as service:
        yield Caller(service.channel)


@pytest.fixture
def database(mongodb_uri: str, database_name: str) -> Iterator[Database[dict[str, Any]]]:
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client[database_name]


def check(answer: Any, code: str, reason: str, metadata: dict[str, str]) -> None:
    assert isinstance(answer, Refusal), answer
    assert (answer.code, answer.reason, answer.metadata) == (code, reason, metadata)
    said = f"{answer.message} {answer.metadata}".lower()
    for leak in LEAKS:
        assert leak not in said


def _get(caller: Caller, response_id: str) -> Any:
    return caller.call("GetResponse", rpc.GetResponseRequest(scope=caller.scope, response_id=response_id))


async def test_response_that_is_not_there(caller: Caller) -> None:
    metadata = {"response_id": "none"}
    for method in ("GetResponse", "SetReplayExclusion", "DeleteResponse", "ListInputItems"):
        request = getattr(rpc, f"{method}Request")(scope=caller.scope, response_id="none")
        check(await caller.call(method, request), "NOT_FOUND", "RESPONSE_NOT_FOUND", metadata)
    request = rpc.ResolveHistoryRequest(scope=caller.scope, before_response_id="none")
    check(await caller.call("ResolveHistory", request), "NOT_FOUND", "RESPONSE_NOT_FOUND", metadata)


async def test_parent_that_is_not_there(caller: Caller) -> None:
    metadata = {"previous_response_id": "none"}
    answers = [
        await caller.store("child", previous_response_id="none"),
        *[
            await caller.call(method, message(scope=caller.scope, previous_response_id="none", **more))
            for method, message, more in (
                ("ResolveHistory", rpc.ResolveHistoryRequest, {}),
                ("ListResponses", rpc.ListResponsesRequest, {}),
                ("BatchGetItems", rpc.BatchGetItemsRequest, {"item_ids": ["i"]}),
            )
        ],
    ]
    for answer in answers:
        check(answer, "NOT_FOUND", "PARENT_NOT_FOUND", metadata)


async def test_response_that_exists(caller: Caller) -> None:
    await caller.store("r", status=RUNNING)
    await caller.store("r")
    answer = await caller.store("r", expected_revision=0)
    check(answer, "ALREADY_EXISTS", "RESPONSE_EXISTS", {"response_id": "r", "revision": "2"})


async def test_other_revision(caller: Caller) -> None:
    await caller.store("r")
    answer = await caller.store("r", expected_revision=7, payload_json="{}")
    check(answer, "ABORTED", "REVISION_MISMATCH", {"response_id": "r", "expected": "7", "actual": "1"})
    assert answer.retry_seconds is not None
    answer = await caller.store("none", expected_revision=7)
    check(answer, "ABORTED", "REVISION_MISMATCH", {"response_id": "none", "expected": "7", "actual": "0"})


async def test_response_that_is_finished(caller: Caller) -> None:
    await caller.store("r", status=FAILED)
    answer = await caller.store("r", status=RUNNING)
    check(
        answer,
        "FAILED_PRECONDITION",
        "RESPONSE_FINISHED",
        {"response_id": "r", "stored_status": "FAILED", "requested_status": "IN_PROGRESS"},
    )


async def test_link_that_changed(caller: Caller) -> None:
    await caller.store("parent")
    await caller.store("r", conversation_id="c", status=RUNNING)
    for field, value in (("conversation_id", "d"), ("previous_response_id", "parent")):
        answer = await caller.store("r", **{field: value})
        check(answer, "FAILED_PRECONDITION", "LINK_CHANGED", {"response_id": "r", "field": field})


async def test_duplicate_items(caller: Caller) -> None:
    texts = [item("a"), item("b"), item("c")]
    await caller.store("r", conversation_id="c", input_items=texts)
    answer = await caller.store("s", conversation_id="c", input_items=[item("x"), *texts[:2]])
    check(answer, "ALREADY_EXISTS", "DUPLICATE_ITEM", {"item_ids": '["a","b"]', "item_count": "2"})
    assert answer.message == (
        "Duplicate item found with id a. Remove duplicate items from your input and try again."
    )


async def test_history_that_changed_between_pages(caller: Caller) -> None:
    for number in range(3):
        await caller.store(f"r{number}", conversation_id="c", input_items=[item(f"i{number}", 3 * MIB)])
    request = rpc.ResolveHistoryRequest(scope=caller.scope, conversation_id="c", view=2)
    request.page_token = (await caller.call("ResolveHistory", request)).next_page_token
    await caller.call("DeleteResponse", rpc.DeleteResponseRequest(scope=caller.scope, response_id="r1"))
    answer = await caller.call("ResolveHistory", request)
    check(answer, "ABORTED", "HISTORY_CHANGED", {})
    assert answer.retry_seconds is not None


async def test_data_that_is_missing(caller: Caller, database: Database[dict[str, Any]]) -> None:
    await caller.store("large", input_items=[item(f"i{number}", 5 * MIB) for number in range(3)])
    database["bodies"].delete_many({})
    check(await _get(caller, "large"), "DATA_LOSS", "DATA_MISSING", {"response_id": "large"})


async def test_path_that_is_missing(
    caller: Caller, database: Database[dict[str, Any]], mongodb_uri: str
) -> None:
    await caller.store("root")
    for name in ("a", "b", "c"):
        await caller.store(name, previous_response_id="root")
    database["paths"].delete_many({})
    async with service_in_process(mongodb_uri=mongodb_uri, mongodb_database=database.name) as fresh:
        # This one has not read the path before.
        request = rpc.ResolveHistoryRequest(scope=caller.scope, previous_response_id="c")
        answer = await Caller(fresh.channel).call("ResolveHistory", request)
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.reason) == ("DATA_LOSS", "DATA_MISSING")


async def test_defect_tells_one_sentence_and_where_its_cause_is(
    caller: Caller, database: Database[dict[str, Any]]
) -> None:
    await caller.store("r", conversation_id="c", input_items=[item("said-in-confidence")])
    database["responses"].update_one({"id": "r"}, {"$set": {"status": 99, "create_time": "never"}})
    with structlog.testing.capture_logs() as lines:
        answer = await _get(caller, "r")
    check(answer, "INTERNAL", "INTERNAL_ERROR", {"request_id": answer.metadata["request_id"]})
    assert answer.message == (
        "the service failed to handle the request; its log has the cause under the request id"
    )
    (failure,) = [line for line in lines if line["event"] == "call failed"]
    assert failure["exc_info"] is not None
    (call,) = [line for line in lines if line["event"] == "call"]
    assert call["request_id"] == answer.metadata["request_id"]


async def test_response_whose_heads_do_not_fit_names_its_items(caller: Caller) -> None:
    """Ids and types alone have more bytes than a document of the database."""
    texts = [
        json.dumps({"id": f"{number:05d}{WIDE[:250]}", "type": WIDE}, ensure_ascii=False)
        for number in range(9000)
    ]
    answer = await caller.store("r", input_items=texts)
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.fields) == ("INVALID_ARGUMENT", ("response.input_items",))
    assert (await _get(caller, "r")).code == "NOT_FOUND"


async def test_errors_of_the_widest_ids_reach_a_client_with_default_limits(caller: Caller) -> None:
    """GRPC clients take 8 KiB of trailing metadata, in which the message stands twice."""
    wide = f"{WIDE}x"
    await caller.store(wide, conversation_id=wide, status=FAILED)
    answers = [
        await _get(caller, f"{WIDE}y"),
        await caller.store("r", previous_response_id=f"{WIDE}y"),
        await caller.store(wide, expected_revision=0),
        await caller.store(wide, expected_revision=9, payload_json="{}"),
        await caller.store(wide, payload_json="{}"),
        await caller.store(wide, conversation_id=f"{WIDE}y"),
    ]
    assert [answer.reason for answer in answers] == [
        "RESPONSE_NOT_FOUND",
        "PARENT_NOT_FOUND",
        "RESPONSE_EXISTS",
        "REVISION_MISMATCH",
        "RESPONSE_FINISHED",
        "LINK_CHANGED",
    ]


@pytest.mark.parametrize("character", ["\U0001f600", "x", '"', "\\", "%"])
async def test_refusal_of_many_duplicates_reaches_a_client_with_default_limits(
    caller: Caller, character: str
) -> None:
    texts = [json.dumps({"id": f"{number:04d}{character * 252}"}) for number in range(1000)]
    await caller.store("r", conversation_id="c", input_items=texts)
    answer = await caller.store("s", conversation_id="c", input_items=texts)
    assert isinstance(answer, Refusal)
    assert answer.reason == "DUPLICATE_ITEM"
    assert answer.metadata["item_count"] == "1000"
    named = json.loads(answer.metadata["item_ids"])
    assert named == [json.loads(text)["id"] for text in texts[: len(named)]]
    assert 1 <= len(named) < 10


async def test_bytes_of_a_caller_are_not_repeated_at_length(caller: Caller) -> None:
    answer = await caller.store("r", request_id="z" * 100_000)
    assert isinstance(answer, Refusal)
    assert "zzz" not in answer.message


async def test_scopes_tell_nothing_of_each_other(caller: Caller) -> None:
    """What exists elsewhere is answered as what exists nowhere."""
    other = Caller(caller.channel, namespace=f"other-{uuid.uuid4()}")
    await other.store("secret", conversation_id="c", input_items=[item("secret-item")])
    assert await _get(caller, "secret") == Refusal(
        "NOT_FOUND",
        "RESPONSE_NOT_FOUND",
        (),
        "response secret does not exist, or was deleted",
        {"response_id": "secret"},
    )
    assert not isinstance(await caller.store("secret", expected_revision=0), Refusal)
    user = Caller(caller.channel)
    user.scope.user = "ada"
    assert (await _get(user, "secret")).reason == "RESPONSE_NOT_FOUND"
