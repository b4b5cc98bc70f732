"""Requests that cannot be taken: each is answered with its code, its reason and the field that is wrong."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.database import drop_database
from tests.faults.calls import KIB, MIB, Caller, Refusal, item
from tests.service_process import service_in_process
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import lease_pb2, replay_pb2, response_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")

ITEM_BYTES = 16 * MIB
LONG = "x" * 10_000
TOO_LONG = "x" * 257
CONTROLS = [f"a{chr(number)}b" for number in (0, 7, 10, 13, 31, 127, 133, 159)]
SCOPE = response_pb2.Scope(namespace="tests")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller(mongodb_uri: str) -> AsyncIterator[Caller]:
    name = f"turnstore_test_{uuid.uuid4().hex}"
    async with service_in_process(mongodb_uri=mongodb_uri, mongodb_database=name) as service:
        yield Caller(service.channel)
    drop_database(mongodb_uri, name)


def _nested(levels: int) -> str:
    """A JSON object of so many levels."""
    return '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


def _store(**fields: Any) -> rpc.StoreResponseRequest:
    extra = {name: fields.pop(name) for name in list(fields) if name in _REQUEST_FIELDS}
    for part in ("input_items", "output_items"):
        if part in fields:
            fields[part] = [
                one if isinstance(one, response_pb2.Item) else response_pb2.Item(json=one)
                for one in fields[part]
            ]
    extra.setdefault("scope", SCOPE)
    return rpc.StoreResponseRequest(response=response_pb2.Response(**{"id": "r", **fields}), **extra)


_REQUEST_FIELDS = {
    "scope",
    "expected_revision",
    "duplicate_items",
    "inherited_item_ids",
    "request_id",
    "lease",
}


def _resolve(**fields: Any) -> rpc.ResolveHistoryRequest:
    return rpc.ResolveHistoryRequest(**{"scope": SCOPE, "conversation_id": "c", **fields})


def _policy(**fields: Any) -> rpc.ResolveHistoryRequest:
    return _resolve(policy=replay_pb2.ReplayPolicy(**fields))


BAD_JSON = {
    "empty": "",
    "text": "hello",
    "array": "[]",
    "string": '"a"',
    "number": "1",
    "null": "null",
    "cut off": '{"a":1',
    "two objects": "{}{}",
    "trailing comma": '{"a":1,}',
    "single quotes": "{'a':1}",
    "key without quotes": "{a:1}",
    "NaN": '{"a":NaN}',
    "Infinity": '{"a":Infinity}',
    "minus Infinity": '{"a":-Infinity}',
    "NaN deep inside": '{"a":[{"b":[1,2,NaN]}]}',
    "byte order mark": "\ufeff{}",
    "raw line feed in a string": '{"a":"\n"}',
    "raw NUL in a string": '{"a":"\x00"}',
    "bad escape": '{"a":"\\x41"}',
    "half an escape": '{"a":"\\u00"}',
    "leading zero": '{"a":01}',
    "plus sign": '{"a":+1}',
    "comment": '{"a":1/*b*/}',
    "form feed between": '{\x0c"a":1}',
    "513 levels": _nested(513),
    "100,000 levels": _nested(100_000),
    "100,000 levels never closed": '{"a":' + "[" * 100_000,
    "id is a number": '{"id":7}',
    "id is a large number": '{"id":123456789012345678901234567890}',
    "id is true": '{"id":true}',
    "id is false": '{"id":false}',
    "id is an object": '{"id":{}}',
    "id is an array": '{"id":["a"]}',
    "id with a lone surrogate": '{"id":"a\\ud800"}',
    "id with a reversed pair": '{"id":"\\udc00\\ud800"}',
    "id of 257 characters": json.dumps({"id": TOO_LONG}),
    "id of 10,000 characters": json.dumps({"id": LONG}),
    "id with a control character": '{"id":"a\\u0007b"}',
    "id with NUL": '{"id":"a\\u0000b"}',
    "id with a C1 control": '{"id":"a\\u0085b"}',
    "second id is bad": '{"id":"good","id":7}',
    "type is a number": '{"type":7}',
    "type is a list": '{"type":[]}',
    "type with a lone surrogate": '{"type":"\\ud800"}',
    "type of 257 characters": json.dumps({"type": TOO_LONG}),
}
PAYLOADS = {
    name: text for name, text in BAD_JSON.items() if not name.startswith(("id ", "type ", "second", "empty"))
}


def _table() -> dict[str, tuple[str, Any, str]]:
    """Name, then method, request and the field that is named."""
    table: dict[str, tuple[str, Any, str]] = {
        "no response": ("StoreResponse", rpc.StoreResponseRequest(scope=SCOPE), "response.id"),
        "no id": ("StoreResponse", _store(id=""), "response.id"),
        "id of 257 characters": ("StoreResponse", _store(id=TOO_LONG), "response.id"),
        "id of 10,000 characters": ("StoreResponse", _store(id=LONG), "response.id"),
        "both links": (
            "StoreResponse",
            _store(conversation_id="c", previous_response_id="p"),
            "response.previous_response_id",
        ),
        "long conversation": ("StoreResponse", _store(conversation_id=LONG), "response.conversation_id"),
        "long parent": ("StoreResponse", _store(previous_response_id=LONG), "response.previous_response_id"),
        "unknown status": ("StoreResponse", _store(status=7), "response.status"),
        "long error code": (
            "StoreResponse",
            _store(error=response_pb2.ResponseError(code="é" * 131_073)),
            "response.error.code",
        ),
        "long error": (
            "StoreResponse",
            _store(error=response_pb2.ResponseError(message="x" * 262_145)),
            "response.error.message",
        ),
        "negative status": ("StoreResponse", _store(status=-1), "response.status"),
        "unknown duplicate_items": ("StoreResponse", _store(duplicate_items=3), "duplicate_items"),
        "negative expected_revision": ("StoreResponse", _store(expected_revision=-1), "expected_revision"),
        "request id that is none": ("StoreResponse", _store(request_id="7"), "request_id"),
        "request id with signs": ("StoreResponse", _store(request_id="+" + "1" * 31), "request_id"),
        "request id of other digits": ("StoreResponse", _store(request_id="\u0661" * 32), "request_id"),
        "long namespace": (
            "StoreResponse",
            _store(scope=response_pb2.Scope(namespace=LONG)),
            "scope.namespace",
        ),
        "long user": (
            "StoreResponse",
            _store(scope=response_pb2.Scope(namespace="tests", user=LONG)),
            "scope.user",
        ),
        "empty inherited id": (
            "StoreResponse",
            _store(inherited_item_ids=["a", ""]),
            "inherited_item_ids[1]",
        ),
        "long inherited id": ("StoreResponse", _store(inherited_item_ids=[LONG]), "inherited_item_ids[0]"),
        "too many inherited ids": (
            "StoreResponse",
            _store(inherited_item_ids=["a"] * 100_001),
            "inherited_item_ids",
        ),
        "10,001 input items": ("StoreResponse", _store(input_items=["{}"] * 10_001), "response.input_items"),
        "10,001 output items": (
            "StoreResponse",
            _store(output_items=["{}"] * 10_001),
            "response.output_items",
        ),
        "item of 16 MiB and a byte": (
            "StoreResponse",
            _store(input_items=["{}", item("i", ITEM_BYTES + 1)]),
            "response.input_items[1].json",
        ),
        "item of 16 MiB and a byte in characters of two bytes": (
            "StoreResponse",
            _store(input_items=['{"a":"' + "é" * (8 * MIB) + '"}']),
            "response.input_items[0].json",
        ),
        "item of 20 MiB": (
            "StoreResponse",
            _store(output_items=[item("i", 20 * MIB)]),
            "response.output_items[0].json",
        ),
        "item's id differs": (
            "StoreResponse",
            _store(input_items=[response_pb2.Item(id="a", json='{"id":"b"}')]),
            "response.input_items[0].id",
        ),
        "item's type differs": (
            "StoreResponse",
            _store(input_items=[response_pb2.Item(type="a", json='{"type":"b"}')]),
            "response.input_items[0].type",
        ),
        "no line": ("ResolveHistory", rpc.ResolveHistoryRequest(scope=SCOPE), "conversation_id"),
        "before_response_id beside a conversation": (
            "ResolveHistory",
            _resolve(before_response_id="r"),
            "before_response_id",
        ),
        "negative limit": ("ResolveHistory", _resolve(limit=-1), "limit"),
        "least limit": ("ResolveHistory", _resolve(limit=-(1 << 31)), "limit"),
        "unknown limit_unit": ("ResolveHistory", _resolve(limit_unit=3), "limit_unit"),
        "unknown view": ("ResolveHistory", _resolve(view=3), "view"),
        "empty answered id": (
            "ResolveHistory",
            _resolve(answered_call_ids=["a", ""]),
            "answered_call_ids[1]",
        ),
        "1,001 answered ids": (
            "ResolveHistory",
            _resolve(answered_call_ids=["a"] * 1001),
            "answered_call_ids",
        ),
        "no ids to get": ("BatchGetItems", rpc.BatchGetItemsRequest(scope=SCOPE), "item_ids"),
        "1,001 ids to get": (
            "BatchGetItems",
            rpc.BatchGetItemsRequest(scope=SCOPE, item_ids=["a"] * 1001),
            "item_ids",
        ),
        "empty id to get": (
            "BatchGetItems",
            rpc.BatchGetItemsRequest(scope=SCOPE, item_ids=["a", ""]),
            "item_ids[1]",
        ),
        "long id to get": (
            "BatchGetItems",
            rpc.BatchGetItemsRequest(scope=SCOPE, item_ids=[LONG]),
            "item_ids[0]",
        ),
        "two lines to get from": (
            "BatchGetItems",
            rpc.BatchGetItemsRequest(
                scope=SCOPE, item_ids=["a"], conversation_id="c", previous_response_id="p"
            ),
            "previous_response_id",
        ),
        "no line to list": ("ListResponses", rpc.ListResponsesRequest(scope=SCOPE), "conversation_id"),
        "two lines to list": (
            "ListResponses",
            rpc.ListResponsesRequest(scope=SCOPE, conversation_id="c", previous_response_id="p"),
            "previous_response_id",
        ),
        "negative page of turns": (
            "ListResponses",
            rpc.ListResponsesRequest(scope=SCOPE, conversation_id="c", page_size=-1),
            "page_size",
        ),
        "negative page of items": (
            "ListInputItems",
            rpc.ListInputItemsRequest(scope=SCOPE, response_id="r", page_size=-1),
            "page_size",
        ),
        "unknown order": (
            "ListInputItems",
            rpc.ListInputItemsRequest(scope=SCOPE, response_id="r", order=3),
            "order",
        ),
        "long after": (
            "ListInputItems",
            rpc.ListInputItemsRequest(scope=SCOPE, response_id="r", after=LONG),
            "after",
        ),
        "long before": (
            "ListInputItems",
            rpc.ListInputItemsRequest(scope=SCOPE, response_id="r", before=LONG),
            "before",
        ),
        "no conversation to delete": (
            "DeleteConversation",
            rpc.DeleteConversationRequest(scope=SCOPE),
            "conversation_id",
        ),
        "user with a control character": (
            "DeleteUserData",
            rpc.DeleteUserDataRequest(scope=response_pb2.Scope(namespace="tests", user="a\tb")),
            "scope.user",
        ),
        "namespace with a control character": (
            "DeleteUserData",
            rpc.DeleteUserDataRequest(scope=response_pb2.Scope(namespace="a\tb")),
            "scope.namespace",
        ),
    }
    for name, text in BAD_JSON.items():
        table[f"item: {name}"] = ("StoreResponse", _store(input_items=[text]), "response.input_items[0].json")
    for name, text in PAYLOADS.items():
        table[f"payload: {name}"] = ("StoreResponse", _store(payload_json=text), "response.payload_json")
    for number, text in enumerate(CONTROLS):
        table[f"id with control {number}"] = ("StoreResponse", _store(id=text), "response.id")
        table[f"conversation with control {number}"] = (
            "StoreResponse",
            _store(conversation_id=text),
            "response.conversation_id",
        )
    for field in ("cancelled", "incomplete", "in_flight"):
        table[f"unknown rule: {field}"] = ("ResolveHistory", _policy(**{field: 5}), f"policy.{field}")
    for field in ("tool_items", "limit_cut"):
        table[f"unknown value: {field}"] = ("ResolveHistory", _policy(**{field: 3}), f"policy.{field}")
    for rule in (replay_pb2.TURN_RULE_SANITIZE, replay_pb2.TURN_RULE_INPUT_ONLY):
        table[f"in flight {rule}"] = ("ResolveHistory", _policy(in_flight=rule), "policy.in_flight")
    for field in ("conversation_id", "previous_response_id", "before_response_id"):
        for kind, text in (("long", LONG), ("control", "a\x00b")):
            request = rpc.ResolveHistoryRequest(scope=SCOPE, **{field: text})
            table[f"{kind} {field} to resolve"] = ("ResolveHistory", request, field)
    for method in ("GetResponse", "SetReplayExclusion", "DeleteResponse", "ListInputItems"):
        message = getattr(rpc, f"{method}Request")
        for kind, text in (("no", ""), ("long", LONG), ("control", "a\nb")):
            table[f"{kind} response_id: {method}"] = (
                method,
                message(scope=SCOPE, response_id=text),
                "response_id",
            )
    return table


TABLE = _table()


@pytest.mark.parametrize("name", TABLE)
async def test_request_is_refused_with_the_field_that_is_wrong(caller: Caller, name: str) -> None:
    method, request, field = TABLE[name]
    answer = await caller.call(method, request)
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.reason, answer.fields) == ("INVALID_ARGUMENT", "INVALID_FIELD", (field,))
    assert answer.metadata == {"field": field}
    assert len(answer.message) < 1000, "the refusal repeats what was sent"


async def test_nothing_of_a_refused_request_is_stored(caller: Caller) -> None:
    for method, request, _ in TABLE.values():
        if method == "StoreResponse":
            await caller.call(method, request)
    reply = await caller.call("GetResponse", rpc.GetResponseRequest(scope=SCOPE, response_id="r"))
    assert reply.reason == "RESPONSE_NOT_FOUND"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(_nested(512), id="512 levels"),
        pytest.param(_nested(512)[:-1] + ',"n":1e400}', id="512 levels for the slow parser"),
        pytest.param(json.dumps({"id": "x" * 256}), id="id of 256 characters"),
        pytest.param(json.dumps({"id": "\U0001f600" * 256}, ensure_ascii=False), id="id of 256 wide ones"),
        pytest.param(json.dumps({"type": "x" * 256}), id="type of 256 characters"),
        pytest.param(item("i", ITEM_BYTES), id="16 MiB"),
        pytest.param('{"a":"' + "é" * (8 * MIB - 4) + '"}', id="16 MiB in characters of two bytes"),
        pytest.param(' \t\r\n{"a" : 1 } \n', id="white space"),
    ],
)
async def test_request_at_a_limit_is_taken(caller: Caller, text: str) -> None:
    response_id = f"limit-{uuid.uuid4()}"
    assert not isinstance(await caller.store(response_id, input_items=[text]), Refusal)
    reply = await caller.call("GetResponse", rpc.GetResponseRequest(scope=SCOPE, response_id=response_id))
    if not reply.next_page_token:
        assert [one.json for one in reply.response.input_items] == [text]


METHODS = [
    "StoreResponse",
    "ResolveHistory",
    "GetResponse",
    "SetReplayExclusion",
    "DeleteResponse",
    "ListInputItems",
    "BatchGetItems",
    "ListResponses",
    "DeleteConversation",
    "DeleteUserData",
]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff" * 64, id="ones"),
        pytest.param(b"hello, world", id="text"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x0f", id="length beyond the end"),
        pytest.param(b"\x0a\x80", id="varint cut off"),
        pytest.param(b"\x0a\x04\x0a\x02\xff\xfe", id="text that is no UTF-8"),
        pytest.param(b"\x0a\x05\x0a\x03\xed\xa0\x80", id="surrogate in UTF-8"),
        pytest.param(b"\x0b" * 200, id="groups that never end"),
    ],
)
async def test_bytes_that_are_no_message_are_refused_as_such(caller: Caller, data: bytes) -> None:
    for method in METHODS:
        answer = await caller.send(method, data)
        assert isinstance(answer, Refusal), method
        assert (answer.code, answer.reason, answer.fields) == (
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ("request",),
        )
        assert answer.message == f"request is no turnstore.v1.{method}Request"


async def test_request_above_the_limit_tells_limit_and_size(mongodb_uri: str) -> None:
    name = f"turnstore_test_{uuid.uuid4().hex}"
    async with service_in_process(
        mongodb_uri=mongodb_uri, mongodb_database=name, max_request_bytes=64 * KIB
    ) as service:
        small = Caller(service.channel)
        request = _store(input_items=[item("i", 64 * KIB)])
        answer = await small.call("StoreResponse", request)
        assert (answer.code, answer.reason) == ("RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE")
        assert answer.metadata == {"limit_bytes": str(64 * KIB), "size_bytes": str(request.ByteSize())}
        fitting = _store(input_items=[item("i", 64 * KIB - (request.ByteSize() - 64 * KIB))])
        assert fitting.ByteSize() == 64 * KIB
        assert not isinstance(await small.call("StoreResponse", fitting), Refusal)
    drop_database(mongodb_uri, name)


async def test_request_above_64_mib_is_refused(caller: Caller) -> None:
    sizes = [ITEM_BYTES - KIB] * 4 + [512 * KIB]
    request = _store(input_items=[item(f"i{number}", size) for number, size in enumerate(sizes)])
    answer = await caller.call("StoreResponse", request)
    assert (answer.code, answer.reason) == ("RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE")
    assert answer.metadata == {"limit_bytes": str(64 * MIB), "size_bytes": str(request.ByteSize())}


async def test_request_above_the_limit_of_the_transport_is_refused_by_it(caller: Caller) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await caller.stub.StoreResponse(_store(payload_json=item("p", 66 * MIB)))
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "=",
        "AAAA",
        "not base64!",
        "é",
        "\x00",
        "A" * 1024,
        "A" * 1025,
        "A" * 100_000,
        "W1swXSwiIl0",
    ],
)
async def test_page_token_that_the_service_never_gave_is_refused(caller: Caller, token: str) -> None:
    for request in (
        _resolve(page_token=token),
        rpc.GetResponseRequest(scope=SCOPE, response_id="r", page_token=token),
        rpc.ListInputItemsRequest(scope=SCOPE, response_id="r", page_token=token),
        rpc.BatchGetItemsRequest(scope=SCOPE, item_ids=["a"], page_token=token),
        rpc.ListResponsesRequest(scope=SCOPE, conversation_id="c", page_token=token),
    ):
        answer = await caller.call(type(request).__name__.removesuffix("Request"), request)
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.fields) == ("INVALID_ARGUMENT", ("page_token",))


async def test_what_is_not_built_yet_is_named(caller: Caller) -> None:
    answer = await caller.call("StoreResponse", _store(lease=lease_pb2.TurnLease(owner="o")))
    assert answer.code == "UNIMPLEMENTED"
    assert "lease" in answer.message
    for method in ("RenewLease", "ReleaseLease", "RequestCancel", "ClaimResponses", "UpdateMetadata"):
        answer = await caller.call(method, getattr(rpc, f"{method}Request")())
        assert answer.code == "UNIMPLEMENTED"
        assert method in answer.message
