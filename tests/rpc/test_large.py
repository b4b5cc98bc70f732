"""Items of every shape and size come back byte for byte, to a client with gRPC's default limits."""

import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
import pymongo
import pytest
import pytest_asyncio

from tests.database import drop_database
from tests.faults.calls import KIB, MIB, Caller, Refusal, item
from tests.service_process import RunningService, service_in_process
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import replay_pb2, response_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNNING = response_pb2.RESPONSE_STATUS_IN_PROGRESS
FULL = replay_pb2.HISTORY_VIEW_FULL
REPLY_BYTES = 3584 * KIB
SIDES = ("input_side", "output_side", "payload_side")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(mongodb_uri: str) -> AsyncIterator[tuple[RunningService, str]]:
    name = f"turnstore_test_{uuid.uuid4().hex}"
    async with service_in_process(mongodb_uri=mongodb_uri, mongodb_database=name) as service:
        yield service, name
    drop_database(mongodb_uri, name)


@pytest_asyncio.fixture(loop_scope="module")
async def caller(service: tuple[RunningService, str]) -> AsyncIterator[Caller]:
    """A client with gRPC's default limits."""
    async with grpc.aio.insecure_channel(service[0].target) as channel:
        yield Caller(channel, namespace=f"large-{uuid.uuid4()}")


@pytest_asyncio.fixture(loop_scope="module")
async def patient(service: tuple[RunningService, str], caller: Caller) -> Caller:
    """A client in the same namespace that takes replies of any size: a single item may need one."""
    return Caller(service[0].channel, namespace=caller.scope.namespace)


ODD: dict[str, str] = {
    "lone surrogates": r'{"id":"a","text":"\ud800 \udfff \udc00\ud800","\ud834":1}',
    "escaped NUL": r'{"text":"a\u0000b","\u0000":"\u0000"}',
    "big integers": '{"n":123456789012345678901234567890,"m":-' + "9" * 5000 + "}",
    "big floats": '{"n":1e400,"m":-1E-400,"k":0.1000000000000000055511151231257827021181583404541015625}',
    "minus zero": '{"n":-0,"m":-0.0,"e":1E+2}',
    "keys of the database": '{"$set":{"a.b":1},"_id":{"$oid":"x"},"a.b.c":2,"":3,"$":{"$where":"1"}}',
    "keys twice": '{"id":"first","a":1,"a":2,"id":"second","type":"x","type":"message"}',
    "200 levels": '{"a":' * 199 + "{}" + "}" * 199,
    "512 levels": '{"a":' + "[" * 511 + "]" * 511 + "}",
    "white space": ' \t\r\n{ "a" : [ 1 , 2 ] , "b":{ } } \n\n',
    "order of keys": '{"z":1,"a":2,"m":{"z":1,"a":2}}',
    "escapes that need not be": r'{"\u0061":"\u0062\/\"\\\b\f\n\r\t"}',
    "text beyond ASCII": '{"é":"€ 😀 \u2028\u2029 \u202e ﷽ \x7f"}',
    "many keys": json.dumps({f"key-{number}": number for number in range(5000)}),
    "empty": "{}",
    "placeholder id": '{"id":"__fake_id__","type":"message"}',
    "null id and type": '{"id":null,"type":null}',
}
LARGE: dict[str, list[str]] = {
    "a string of 10 MiB": [item("i", 10 * MIB)],
    "exactly 16 MiB": [item("i", 16 * MIB)],
    "three of exactly 16 MiB": [item(f"i{number}", 16 * MIB) for number in range(3)],
    "40 MiB in items of 100 KiB": [item(f"i{number}", 100 * KIB) for number in range(410)],
    "10,000 items of 4 KiB": [item(f"i{number}", 4 * KIB) for number in range(10_000)],
    "small ones between large ones": [
        item(f"i{number}", 6 * MIB if number % 3 == 0 else 1000) for number in range(9)
    ],
    "at the reply limit": [item(f"i{n}", REPLY_BYTES - over) for n, over in enumerate((0, 1, 4096, 5000))],
    "4 MiB and around": [item(f"i{n}", 4 * MIB + over) for n, over in enumerate((-100, -1, 0, 1))],
}


async def _get(caller: Caller, response_id: str) -> tuple[list[str], list[str], str, list[int]]:
    """Input, output and payload of a response, and the sizes of the replies that have more than one thing in it."""
    given: list[str] = []
    made: list[str] = []
    payload = ""
    sizes = []
    request = rpc.GetResponseRequest(scope=caller.scope, response_id=response_id)
    async for page in caller.pages("GetResponse", request):
        assert not isinstance(page, Refusal), page
        given.extend(one.json for one in page.response.input_items)
        made.extend(one.json for one in page.response.output_items)
        assert not (payload and page.response.payload_json)
        payload = payload or page.response.payload_json
        things = len(page.response.input_items) + len(page.response.output_items)
        if things + bool(page.response.payload_json) > 1:
            sizes.append(page.ByteSize())
    return given, made, payload, sizes


async def _resolve(caller: Caller, **fields: Any) -> tuple[list[str], list[str], list[int]]:
    """Ids and JSON of a history, and the sizes of the replies that have more than one item."""
    ids: list[str] = []
    texts: list[str] = []
    sizes = []
    request = rpc.ResolveHistoryRequest(scope=caller.scope, **fields)
    async for page in caller.pages("ResolveHistory", request):
        assert not isinstance(page, Refusal), page
        ids.extend(page.item_ids)
        texts.extend(one.json for one in page.items)
        if len(page.item_ids) > 1:
            sizes.append(page.ByteSize())
    return ids, texts, sizes


@pytest.mark.parametrize("name", ODD)
async def test_odd_json_comes_back_byte_for_byte_by_every_way(caller: Caller, name: str) -> None:
    text = ODD[name]
    stored = await caller.store("r", conversation_id="c", input_items=[text], output_items=["{}"])
    (item_id,) = [one.id for one in stored.response.input_items]
    assert (await _get(caller, "r"))[0] == [text]
    assert (await _resolve(caller, conversation_id="c", view=FULL))[1] == [text, "{}"]
    for limit in (2, 2000):
        assert (await _resolve(caller, conversation_id="c", view=FULL, limit=limit))[1] == [text, "{}"]
    listed = await caller.call(
        "ListInputItems", rpc.ListInputItemsRequest(scope=caller.scope, response_id="r")
    )
    assert [one.json for one in listed.items] == [text]
    batch = await caller.call(
        "BatchGetItems", rpc.BatchGetItemsRequest(scope=caller.scope, item_ids=[item_id])
    )
    assert [one.item.json for one in batch.items] == [text]


@pytest.mark.parametrize("name", ODD)
async def test_odd_payload_comes_back_byte_for_byte(caller: Caller, name: str) -> None:
    await caller.store("r", payload_json=ODD[name])
    assert (await _get(caller, "r"))[2] == ODD[name]


@pytest.mark.parametrize("name", LARGE)
async def test_large_items_come_back_in_replies_that_every_client_takes(
    caller: Caller, patient: Caller, name: str
) -> None:
    texts = LARGE[name]
    half = len(texts) // 2
    if max(map(len, texts)) > REPLY_BYTES:
        caller = patient
    await caller.store("r", conversation_id="c", input_items=texts[:half], output_items=texts[half:])
    given, made, _, sizes = await _get(caller, "r")
    assert (given, made) == (texts[:half], texts[half:])
    ids, bodies, history_sizes = await _resolve(caller, conversation_id="c", view=FULL)
    assert bodies == texts
    assert ids == [json.loads(text)["id"] for text in texts]
    assert max([0, *sizes, *history_sizes]) <= REPLY_BYTES


async def test_payload_of_40_mib_comes_back_by_itself(patient: Caller) -> None:
    payload = item("p", 40 * MIB)
    await patient.store("r", input_items=[item("i", 100)], payload_json=payload)
    given, made, found, _ = await _get(patient, "r")
    assert (given, made, found) == ([item("i", 100)], [], payload)


@pytest.mark.parametrize("way", ["ids", "list", "batch", "explain"])
async def test_other_replies_are_kept_under_the_limit_too(caller: Caller, way: str) -> None:
    wide = "\U0001f600" * 240
    ids = [f"{number:05d}{wide}" for number in range(4500)]
    texts = [json.dumps({"id": item_id, "type": "message"}, ensure_ascii=False) for item_id in ids]
    status = (
        response_pb2.RESPONSE_STATUS_FAILED if way == "explain" else response_pb2.RESPONSE_STATUS_COMPLETED
    )
    await caller.store("r", conversation_id="c", input_items=texts, status=status)
    pages: list[Any] = []
    found: list[str] = []
    if way == "ids":
        request: Any = rpc.ResolveHistoryRequest(scope=caller.scope, conversation_id="c")
        async for page in caller.pages("ResolveHistory", request):
            pages.append(page)
            found.extend(page.item_ids)
    elif way == "explain":
        request = rpc.ResolveHistoryRequest(scope=caller.scope, conversation_id="c", explain=True)
        async for page in caller.pages("ResolveHistory", request):
            pages.append(page)
            found.extend(item_id for one in page.exclusions for item_id in one.item_ids)
    elif way == "list":
        request = rpc.ListInputItemsRequest(
            scope=caller.scope, response_id="r", page_size=100, order=replay_pb2.LIST_ORDER_ASC
        )
        async for page in caller.pages("ListInputItems", request):
            pages.append(page)
            found.extend(one.id for one in page.items)
    else:
        large = [item(f"big-{number}", MIB) for number in range(9)]
        await caller.store("s", input_items=large)
        ids = [f"big-{number}" for number in range(9)] * 2 + ["none"]
        request = rpc.BatchGetItemsRequest(scope=caller.scope, item_ids=ids)
        async for page in caller.pages("BatchGetItems", request):
            pages.append(page)
            found.extend(one.item.id if one.found else "none" for one in page.items)
    assert found == ids
    assert len(pages) > 1
    assert all(page.ByteSize() <= REPLY_BYTES for page in pages)


async def test_write_of_more_heads_than_a_reply_takes_succeeds(caller: Caller) -> None:
    wide = "\U0001f600" * 200
    texts = [json.dumps({"id": f"{number:05d}{wide}"}, ensure_ascii=False) for number in range(5000)]
    answer = await caller.store("r", input_items=texts)
    assert not isinstance(answer, Refusal)
    assert answer.response.revision == 1
    assert answer.ByteSize() <= REPLY_BYTES


async def test_updates_of_large_bodies_leave_none_behind(
    patient: Caller, service: tuple[RunningService, str], mongodb_uri: str
) -> None:
    running, name = service
    given = [item(f"in-{number}", 4 * MIB) for number in range(3)]
    await patient.store("r", conversation_id="c", status=RUNNING, input_items=given)
    for draft in range(3):
        made = [item(f"out-{draft}-{number}", 3 * MIB) for number in range(4)]
        await patient.store("r", status=RUNNING, output_items=made, payload_json=item("p", 9 * MIB))
    made = [item("end", 100)]
    await patient.store("r", output_items=made)
    assert (await _get(patient, "r"))[:3] == (given, made, "")
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri) as client:
        database = client[name]
        named = {one[side] for one in database["responses"].find() for side in SIDES if one.get(side)}
        assert set(database["bodies"].distinct("token")) == named
        database["bodies"].insert_one(
            {**database["bodies"].find_one({}, {"_id": 0}), "token": b"left by a dead one", "owner": "none"}
        )
        assert await running.store._bodies.sweep(timedelta(seconds=-10)) == 1
        assert set(database["bodies"].distinct("token")) == named
    assert (await _get(patient, "r"))[:3] == (given, made, "")
