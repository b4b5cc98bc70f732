"""Deletions: what they erase, that nothing of it can be read again, and that their memory does not grow."""

import os
from pathlib import Path
from typing import Any

import grpc
import pymongo
import pytest

from tests.conftest import StartService
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import response_pb2
from turnstore.v1.history_service_pb2_grpc import HistoryServiceStub

SECRET = "what-nobody-may-read-again"
FAILED = response_pb2.RESPONSE_STATUS_FAILED
COMPLETED = response_pb2.RESPONSE_STATUS_COMPLETED


def _item(item_id: str) -> response_pb2.Item:
    return response_pb2.Item(json=f'{{"id":"{item_id}","type":"message","text":"{SECRET}"}}')


async def _store(stub: Any, response_id: str, **fields: Any) -> None:
    response = response_pb2.Response(
        id=response_id,
        status=fields.pop("status", COMPLETED),
        input_items=[_item(f"{SECRET}-{response_id}")],
        payload_json=f'{{"text":"{SECRET}"}}',
        error=response_pb2.ResponseError(code="c", message=SECRET),
        **fields,
    )
    await stub.StoreResponse(rpc.StoreResponseRequest(response=response))


def _everything(mongodb_uri: str, database_name: str) -> str:
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri) as client:
        database = client[database_name]
        return str([list(database[name].find()) for name in database.list_collection_names()])


async def _refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code()


@pytest.mark.parametrize("way", ["one by one", "conversation", "user"])
async def test_nothing_of_what_was_deleted_stays(
    history_channel: grpc.aio.Channel, mongodb_uri: str, database_name: str, way: str
) -> None:
    stub: Any = HistoryServiceStub(history_channel)
    await _store(stub, "r1", conversation_id="c")
    await _store(stub, "r2", conversation_id="c", status=FAILED)
    assert SECRET in _everything(mongodb_uri, database_name)

    if way == "one by one":
        for response_id in ("r1", "r2"):
            reply = await stub.DeleteResponse(rpc.DeleteResponseRequest(response_id=response_id))
            assert (reply.receipt.responses, reply.receipt.items) == (1, 1)
    elif way == "conversation":
        reply = await stub.DeleteConversation(rpc.DeleteConversationRequest(conversation_id="c"))
        assert (reply.receipt.responses, reply.receipt.items) == (2, 2)
    else:
        reply = await stub.DeleteUserData(rpc.DeleteUserDataRequest())
        assert (reply.receipt.responses, reply.receipt.items) == (2, 2)

    assert SECRET not in _everything(mongodb_uri, database_name)
    for response_id in ("r1", "r2"):
        get = rpc.GetResponseRequest(response_id=response_id)
        assert await _refused(stub.GetResponse(get)) is grpc.StatusCode.NOT_FOUND
        late = response_pb2.Response(id=response_id, status=COMPLETED, output_items=[_item("late")])
        write = rpc.StoreResponseRequest(response=late)
        assert await _refused(stub.StoreResponse(write)) is grpc.StatusCode.NOT_FOUND
    found = await stub.BatchGetItems(rpc.BatchGetItemsRequest(item_ids=[f"{SECRET}-r1", f"{SECRET}-r2"]))
    assert [one.found for one in found.items] == [False, False]
    history = await stub.ResolveHistory(rpc.ResolveHistoryRequest(conversation_id="c", explain=True))
    assert (list(history.item_ids), history.ancestor_deleted) == ([], True)
    listed = await stub.ListResponses(rpc.ListResponsesRequest(conversation_id="c"))
    assert list(listed.responses) == []


async def test_deletions_are_safe_to_repeat(history_channel: grpc.aio.Channel) -> None:
    stub: Any = HistoryServiceStub(history_channel)
    await _store(stub, "r1", conversation_id="c")
    for expected in (1, 0):
        reply = await stub.DeleteConversation(rpc.DeleteConversationRequest(conversation_id="c"))
        assert reply.receipt.responses == expected
    for _ in range(2):
        reply = await stub.DeleteUserData(rpc.DeleteUserDataRequest())
        assert reply.receipt.responses == 0


async def test_what_stays_of_a_user_is_given_a_time_to_go(
    history_channel: grpc.aio.Channel, mongodb_uri: str, database_name: str
) -> None:
    stub: Any = HistoryServiceStub(history_channel)
    await _store(stub, "r1")
    await _store(stub, "r2", previous_response_id="r1")
    await _store(stub, "r3", previous_response_id="r1")
    await stub.DeleteUserData(rpc.DeleteUserDataRequest())
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri) as client:
        for name in ("responses", "paths"):
            documents = list(client[database_name][name].find())
            assert documents
            assert all("erase_time" in document for document in documents)


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("turns", [600, pytest.param(20_000, marks=pytest.mark.deep)])
async def test_a_long_conversation_is_deleted_in_steady_memory(
    start_service: StartService, mongodb_uri: str, database_name: str, turns: int
) -> None:
    service = start_service({"TURNSTORE_LOG_LEVEL": "error"}).wait_ready()
    async with grpc.aio.insecure_channel(service.target) as channel:
        stub: Any = HistoryServiceStub(channel)
        await _store(stub, "r1", conversation_id="c")
        with pymongo.MongoClient[dict[str, Any]](mongodb_uri) as client:
            responses = client[database_name]["responses"]
            (first,) = responses.find()
            key = first["_id"].removesuffix("\nr1\n00000000")
            copies = (
                {
                    **{name: value for name, value in first.items() if name != "claims"},
                    "_id": f"{key}\nr{place}\n00000000",
                    "id": f"r{place}",
                    "place": place,
                    "replay_place": place,
                    "payload": "x" * 10_000,
                }
                for place in range(2, turns + 1)
            )
            responses.insert_many(copies)
        before = _resident_bytes(service.process.pid)
        reply = await stub.DeleteConversation(
            rpc.DeleteConversationRequest(conversation_id="c"), timeout=1200
        )
        assert reply.receipt.responses == turns
        grown = _resident_bytes(service.process.pid) - before
        # All of it would be turns * 10 kB; a batch of responses without their contents is far below this.
        assert grown < 32 * 1024 * 1024
