"""A replica set of three members that loses its primary, and a MongoDB that does not answer."""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.faults.replica_set import Member, ReplicaSet, replica_set
from tests.service_process import ServiceProcess, run_command
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2

SCOPE = response_pb2.Scope(namespace="failover")
CALL_SECONDS = 20.0
AFTERWARDS = 10
"""Calls of each client that have to succeed in a row before the service counts as recovered."""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with replica_set(tmp_path_factory.mktemp("failover"), 3) as members:
        yield members


@pytest.fixture(scope="module")
def service(members: ReplicaSet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    settings = {"TURNSTORE_MONGODB_URI": members.uri, "TURNSTORE_HEALTH_INTERVAL": "100ms"}
    assert run_command("migrate", settings=settings).returncode == 0
    service = ServiceProcess(tmp_path_factory.mktemp("service"), settings)
    service.wait_ready()
    yield service
    service.kill()


@pytest.fixture
async def stub(service: ServiceProcess) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(service.target) as channel:
        yield history_service_pb2_grpc.HistoryServiceStub(channel)


def _write(response_id: str, conversation_id: str) -> rpc.StoreResponseRequest:
    item = response_pb2.Item(json=json.dumps({"id": f"{response_id}-item", "type": "message"}))
    return rpc.StoreResponseRequest(
        scope=SCOPE,
        response=response_pb2.Response(
            id=response_id,
            conversation_id=conversation_id,
            status=response_pb2.RESPONSE_STATUS_COMPLETED,
            input_items=[item],
        ),
        request_id=str(uuid.uuid4()),
    )


class Clients:
    """Writers and readers that go on whatever the answers are, and remember them."""

    def __init__(self, stub: Any, conversation_id: str) -> None:
        self._stub = stub
        self._conversation_id = conversation_id
        self.codes: Counter[str] = Counter()
        self.answered: list[str] = []
        self.failures: list[grpc.aio.AioRpcError] = []
        self._in_a_row: dict[str, int] = {}
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def running(self, writers: int, readers: int) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._writer(f"w{n}")) for n in range(writers)]
        tasks += [asyncio.create_task(self._reader(f"r{n}")) for n in range(readers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def all_go_well(self) -> None:
        """Returns when every client has had enough good answers in a row from now on."""
        async with self._changed:
            for name in self._in_a_row:
                self._in_a_row[name] = 0
            async with asyncio.timeout(90):
                await self._changed.wait_for(
                    lambda: bool(self._in_a_row) and all(n >= AFTERWARDS for n in self._in_a_row.values())
                )

    async def _note(self, name: str, error: grpc.aio.AioRpcError | None) -> None:
        async with self._changed:
            self.codes[error.code().name if error else "OK"] += 1
            self._in_a_row[name] = 0 if error else self._in_a_row.get(name, 0) + 1
            if error:
                self.failures.append(error)
            self._changed.notify_all()

    async def _writer(self, name: str) -> None:
        self._in_a_row[name] = 0
        number = 0
        while True:
            request = _write(f"{self._conversation_id}-{name}-{number}", self._conversation_id)
            number += 1
            while True:  # the same write until it is answered, as clients do
                error = await self._call(self._stub.StoreResponse, request)
                await self._note(name, error)
                if error is None:
                    break
            self.answered.append(request.response.id)

    async def _reader(self, name: str) -> None:
        self._in_a_row[name] = 0
        request = rpc.ResolveHistoryRequest(scope=SCOPE, conversation_id=self._conversation_id, limit=5)
        while True:
            await self._note(name, await self._call(self._stub.ResolveHistory, request))

    async def _call(self, method: Any, request: Any) -> grpc.aio.AioRpcError | None:
        try:
            await method(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error
        return None


async def _turns(stub: Any, conversation_id: str) -> list[tuple[int, str]]:
    request = rpc.ListResponsesRequest(scope=SCOPE, conversation_id=conversation_id, page_size=100)
    turns: list[tuple[int, str]] = []
    while True:
        reply = await stub.ListResponses(request, timeout=CALL_SECONDS)
        turns.extend((turn.place, turn.id) for turn in reply.responses)
        if not reply.next_page_token:
            return turns
        request.page_token = reply.next_page_token


def _check_told(error: grpc.aio.AioRpcError) -> None:
    """An error of the service tells what to do and nothing of what is behind it."""
    (details,) = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
    status = status_pb2.Status.FromString(bytes(details))
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("turnstore", "STORE_UNAVAILABLE")
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() > 0
    said = f"{error.details()} {status}".lower()
    for word in ("mongo", "127.0.0.1", "localhost", "traceback", "pool", "socket", "topology", "primary"):
        assert word not in said


async def _lose(member: Member, how: str) -> None:
    if how == "killed":
        await asyncio.to_thread(member.kill)
    elif how == "stopped":
        await asyncio.to_thread(member.pause)
    else:
        with member.client() as client:
            await asyncio.to_thread(client.admin.command, "replSetStepDown", 30, secondaryCatchUpPeriodSecs=5)


async def _bring_back(member: Member, how: str) -> None:
    if how == "killed":
        await asyncio.to_thread(member.start)
    elif how == "stopped":
        member.go_on()


@pytest.mark.parametrize(
    "how",
    [
        "stepped down",
        "killed",
        # It takes the driver half a minute to give up on a member that only says nothing.
        pytest.param("stopped", marks=pytest.mark.deep),
    ],
)
async def test_answered_writes_survive_the_loss_of_the_primary(
    members: ReplicaSet, service: ServiceProcess, stub: Any, how: str
) -> None:
    clients = Clients(stub, f"conversation-{how}")
    primary = await asyncio.to_thread(members.primary)
    async with clients.running(writers=4, readers=2):
        await clients.all_go_well()
        before = len(clients.answered)
        await _lose(primary, how)
        try:
            await clients.all_go_well()
        finally:
            await _bring_back(primary, how)
        await asyncio.to_thread(members.wait_healthy)
        await clients.all_go_well()
    assert len(clients.answered) > before
    assert set(clients.codes) <= {"OK", "UNAVAILABLE", "DEADLINE_EXCEEDED"}, clients.codes
    for failure in clients.failures:
        if failure.code() is grpc.StatusCode.UNAVAILABLE:
            _check_told(failure)
    turns = await _turns(stub, f"conversation-{how}")
    assert [place for place, _ in turns] == list(range(1, len(turns) + 1))
    stored = [name for _, name in turns]
    assert len(set(stored)) == len(stored)
    assert set(clients.answered) <= set(stored), "a write that was answered is gone"
    for line in service.log_lines():
        assert line.get("code") not in {"INTERNAL", "UNKNOWN"}, line


async def test_without_a_majority_writes_are_unavailable_and_reads_of_no_primary_too(
    members: ReplicaSet, service: ServiceProcess, stub: Any
) -> None:
    primary = await asyncio.to_thread(members.primary)
    others = [member for member in members.members if member is not primary]
    await stub.StoreResponse(_write("before", "minority"), timeout=CALL_SECONDS)
    for member in others:
        member.kill()
    try:
        for method, request in (
            (stub.StoreResponse, _write("during", "minority")),
            (stub.ResolveHistory, rpc.ResolveHistoryRequest(scope=SCOPE, conversation_id="minority")),
        ):
            async with asyncio.timeout(60):
                while True:  # until the member that is left has noticed that it is alone
                    try:
                        await method(request, timeout=8)
                    except grpc.aio.AioRpcError as error:
                        if error.code() is grpc.StatusCode.UNAVAILABLE:
                            _check_told(error)
                            break
                        # A write that the primary took when it still was one waits for a majority.
                        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
    finally:
        for member in others:
            await asyncio.to_thread(member.start)
        await asyncio.to_thread(members.wait_healthy)
    async with asyncio.timeout(60):
        while True:
            try:
                await stub.StoreResponse(_write("after", "minority"), timeout=CALL_SECONDS)
                break
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error
    turns = await _turns(stub, "minority")
    assert [place for place, _ in turns] == list(range(1, len(turns) + 1))
    assert {"before", "after"} <= {name for _, name in turns}
