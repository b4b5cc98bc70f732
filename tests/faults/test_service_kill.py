"""kill -9 of the service in the middle of writes: every write that was answered is there whole, none is half there,
and repeating what was not answered ends as if nothing had happened.
"""

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import grpc
import pymongo
import pytest

from tests.conftest import StartService
from tests.service_process import ServiceProcess
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2
from turnstore_service.storage.mongo.bodies import Bodies
from turnstore_service.storage.mongo.driver import Database

MIB = 1024 * 1024
SCOPE = response_pb2.Scope(namespace="killed")
SECONDS = 60.0
NOT_ANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What a client gets whose connection breaks."""
WRITERS = 6


@dataclass
class Version:
    """One write of a response, and what became of it."""

    request: rpc.StoreResponseRequest
    answered: bool = False


@dataclass
class Written:
    """All writes of a response, in order."""

    versions: list[Version] = field(default_factory=list)


def _item(item_id: str, size: int) -> response_pb2.Item:
    return response_pb2.Item(json=json.dumps({"id": item_id, "type": "message", "text": "x" * size}))


def _request(response_id: str, **fields: Any) -> rpc.StoreResponseRequest:
    return rpc.StoreResponseRequest(
        scope=SCOPE,
        response=response_pb2.Response(id=response_id, **fields),
        request_id=str(uuid.uuid4()),
    )


class Writer:
    """Writes turns of one kind until the service is gone: each is created running, then completed."""

    def __init__(self, kind: str, name: str, written: dict[str, Written], enough: asyncio.Event) -> None:
        self._kind = kind
        self._name = name
        self._written = written
        self._enough = enough
        self.answers = 0

    async def run(self, stub: Any, wanted: int) -> None:
        """Writes until the connection breaks; sets the event when it has had so many answers."""
        number = 0
        while True:
            response_id = f"{self._name}-{number}"
            number += 1
            written = self._written.setdefault(response_id, Written())
            for request in self._requests(response_id):
                version = Version(request)
                written.versions.append(version)
                try:
                    await stub.StoreResponse(request, timeout=SECONDS)
                except grpc.aio.AioRpcError as error:
                    assert error.code() in NOT_ANSWERED, error
                    return
                version.answered = True
                self.answers += 1
                if self.answers >= wanted:
                    self._enough.set()

    def _requests(self, response_id: str) -> Iterator[rpc.StoreResponseRequest]:
        size = 3 * MIB if self._kind == "large" else 100
        link = {
            "conversation": {"conversation_id": "c"},
            "fork": {"previous_response_id": "root"},
            "large": {},
        }[self._kind]
        given = [_item(f"{response_id}-in-{index}", size) for index in range(4)]
        yield _request(
            response_id, status=response_pb2.RESPONSE_STATUS_IN_PROGRESS, input_items=given, **link
        )
        made = [_item(f"{response_id}-out-{index}", size) for index in range(4)]
        yield _request(
            response_id,
            status=response_pb2.RESPONSE_STATUS_COMPLETED,
            output_items=made,
            payload_json=json.dumps({"of": response_id}),
        )


async def _write_until_killed(
    service: ServiceProcess, written: dict[str, Written], name: str, wanted: int
) -> None:
    """Kills the service once every writer has had so many answers, with further writes on their way."""
    kinds = ("conversation", "fork", "large") * (WRITERS // 3)
    events = [asyncio.Event() for _ in kinds]
    async with grpc.aio.insecure_channel(service.target, options=OPTIONS) as channel:
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        async with asyncio.TaskGroup() as group:
            for number, (kind, event) in enumerate(zip(kinds, events, strict=True)):
                group.create_task(Writer(kind, f"{name}-{kind}-{number}", written, event).run(stub, wanted))
            for event in events:
                await event.wait()
            service.kill()


OPTIONS = [("grpc.max_receive_message_length", -1)]


async def _read(stub: Any, response_id: str) -> response_pb2.Response | None:
    request = rpc.GetResponseRequest(scope=SCOPE, response_id=response_id)
    whole: response_pb2.Response | None = None
    while True:
        try:
            reply = await stub.GetResponse(request, timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.NOT_FOUND, error
            return None
        if whole is None:
            whole = reply.response
        else:
            whole.input_items.extend(reply.response.input_items)
            whole.output_items.extend(reply.response.output_items)
        if not reply.next_page_token:
            return whole
        request.page_token = reply.next_page_token


def _state(response: response_pb2.Response | None) -> Any:
    if response is None:
        return None
    return (
        response.status,
        [item.json for item in response.input_items],
        [item.json for item in response.output_items],
        response.payload_json,
    )


def _states(written: Written) -> tuple[list[Any], int]:
    """What a response was after none, the first, the second ... of its writes, and how many were answered."""
    states: list[Any] = [None]
    given: list[str] = []
    for version in written.versions:
        response = version.request.response
        given = [item.json for item in response.input_items] or given
        made = [item.json for item in response.output_items]
        states.append((response.status, given, made, response.payload_json))
    return states, sum(version.answered for version in written.versions)


async def _check(service: ServiceProcess, written: dict[str, Written]) -> None:
    """Everything is as it was after some write, none of the answered ones missing; then writes the rest."""
    async with grpc.aio.insecure_channel(service.target, options=OPTIONS) as channel:
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        for response_id, one in written.items():
            states, answered = _states(one)
            found = _state(await _read(stub, response_id))
            assert found in states[answered:], f"{response_id} is not as any write left it"
            for version in one.versions[answered:]:
                await stub.StoreResponse(version.request, timeout=SECONDS)
                version.answered = True
            assert _state(await _read(stub, response_id)) == states[-1]
        for leaf in [name for name in written if "-fork-" in name][-3:]:
            request = rpc.ResolveHistoryRequest(scope=SCOPE, previous_response_id=leaf)
            reply = await stub.ResolveHistory(request, timeout=SECONDS)
            states, _ = _states(written[leaf])
            own = [json.loads(text)["id"] for text in (*states[-1][1], *states[-1][2])]
            assert list(reply.item_ids) == ["root-item", *own]


async def _check_documents(uri: str, database_name: str) -> None:
    """Places are dense, and no bodies are left over once a sweep has looked."""
    database = Database(uri, database_name)
    await Bodies(database).sweep(timedelta(seconds=-10))
    database.close()
    with pymongo.MongoClient[dict[str, Any]](uri) as client:
        responses = client[database_name]["responses"]
        places = sorted(one["place"] for one in responses.find({"conversation_id": "c"}, {"place": 1}))
        assert places == list(range(1, len(places) + 1))
        sides = ("input_side", "output_side", "payload_side")
        named = {one[side] for one in responses.find() for side in sides if one.get(side)}
        assert set(client[database_name]["bodies"].distinct("token")) == named


@pytest.mark.parametrize(
    ("rounds", "wanted"),
    [(2, 3), pytest.param(20, 10, marks=[pytest.mark.deep, pytest.mark.timeout(1800)])],
)
@pytest.mark.parametrize("store", ["embedded", "separate"])
async def test_answered_writes_outlive_the_service(
    start_service: StartService, store: str, rounds: int, wanted: int
) -> None:
    settings = {"TURNSTORE_MONGODB_URI": None} if store == "embedded" else {}
    service = start_service(settings).wait_ready()
    written: dict[str, Written] = {}
    async with grpc.aio.insecure_channel(service.target) as channel:
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        await stub.StoreResponse(_request("root", input_items=[_item("root-item", 0)]), timeout=SECONDS)
    for number in range(rounds):
        await _write_until_killed(service, written, f"round-{number}", wanted)
        service = start_service(settings, migrate=False).wait_ready()
        await _check(service, written)
        await _check_documents(
            service.ready["mongodb_uri"], service.settings.get("TURNSTORE_MONGODB_DATABASE", "turnstore")
        )
        if number % 5 == 4:  # reading all of them after every round would take most of the time
            written.clear()
