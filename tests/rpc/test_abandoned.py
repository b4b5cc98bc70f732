"""A turn that runs and has not changed for longer than TURNSTORE_ABANDON_AFTER counts as failed: a view, no write."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pymongo
import pytest

from tests.service_process import service_in_process
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import response_pb2
from turnstore.v1.history_service_pb2_grpc import HistoryServiceStub

HOUR = timedelta(hours=1)


@pytest.fixture
async def stub(mongodb_uri: str, database_name: str) -> AsyncIterator[Any]:
    settings = {"mongodb_uri": mongodb_uri, "mongodb_database": database_name, "abandon_after": HOUR}
    async with service_in_process(**settings) as service:
        yield HistoryServiceStub(service.channel)


def _age(mongodb_uri: str, database_name: str, response_id: str, age: timedelta) -> None:
    """Lets a stored response be as old as if nobody had changed it for so long."""
    with pymongo.MongoClient(mongodb_uri) as client:
        found = client[database_name]["responses"].update_one(
            {"id": response_id}, {"$set": {"update_time": datetime.now(UTC) - age}}
        )
        assert found.modified_count == 1


async def _store(stub: Any, response_id: str, status: int, item_id: str = "") -> None:
    items = [response_pb2.Item(json=f'{{"id":"{item_id}","type":"message"}}')] if item_id else []
    response = response_pb2.Response(id=response_id, status=status, conversation_id="c", input_items=items)
    await stub.StoreResponse(rpc.StoreResponseRequest(response=response))


async def _ids(stub: Any, **arguments: Any) -> list[str]:
    reply = await stub.ResolveHistory(rpc.ResolveHistoryRequest(conversation_id="c", **arguments))
    return list(reply.item_ids)


async def test_an_abandoned_turn_counts_as_failed(stub: Any, mongodb_uri: str, database_name: str) -> None:
    await _store(stub, "done", response_pb2.RESPONSE_STATUS_COMPLETED, "u1")
    await _store(stub, "runs", response_pb2.RESPONSE_STATUS_IN_PROGRESS, "u2")
    assert await _ids(stub) == ["u1", "u2"]

    _age(mongodb_uri, database_name, "runs", 2 * HOUR)

    assert await _ids(stub) == ["u1"]
    assert await _ids(stub, limit=1) == ["u1"]
    reply = await stub.ResolveHistory(rpc.ResolveHistoryRequest(conversation_id="c", explain=True))
    assert [(one.response_id, one.status) for one in reply.exclusions] == [
        ("runs", response_pb2.RESPONSE_STATUS_FAILED)
    ]
    got = await stub.GetResponse(rpc.GetResponseRequest(response_id="runs"))
    assert got.response.status == response_pb2.RESPONSE_STATUS_FAILED
    listed = await stub.ListResponses(rpc.ListResponsesRequest(conversation_id="c"))
    assert [turn.status for turn in listed.responses] == [
        response_pb2.RESPONSE_STATUS_COMPLETED,
        response_pb2.RESPONSE_STATUS_FAILED,
    ]


async def test_the_next_write_to_an_abandoned_turn_is_taken_as_usual(
    stub: Any, mongodb_uri: str, database_name: str
) -> None:
    await _store(stub, "runs", response_pb2.RESPONSE_STATUS_IN_PROGRESS, "u1")
    _age(mongodb_uri, database_name, "runs", 2 * HOUR)
    await _store(stub, "runs", response_pb2.RESPONSE_STATUS_COMPLETED)
    assert await _ids(stub) == ["u1"]


async def test_a_turn_that_was_changed_lately_is_not_abandoned(
    stub: Any, mongodb_uri: str, database_name: str
) -> None:
    await _store(stub, "runs", response_pb2.RESPONSE_STATUS_QUEUED, "u1")
    _age(mongodb_uri, database_name, "runs", HOUR / 2)
    assert await _ids(stub) == ["u1"]


async def test_items_of_an_abandoned_turn_may_be_sent_again(
    stub: Any, mongodb_uri: str, database_name: str
) -> None:
    await _store(stub, "runs", response_pb2.RESPONSE_STATUS_IN_PROGRESS, "u1")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _store(stub, "again", response_pb2.RESPONSE_STATUS_COMPLETED, "u1")
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    _age(mongodb_uri, database_name, "runs", 2 * HOUR)
    await _store(stub, "again", response_pb2.RESPONSE_STATUS_COMPLETED, "u1")
    assert await _ids(stub) == ["u1"]
