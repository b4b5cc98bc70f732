"""A MongoDB that has stopped answering: callers hear of it within their deadlines, and nothing of what is behind."""

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.faults.every_call import every_call
from tests.faults.replica_set import ReplicaSet, replica_set
from tests.processes import wait_until
from tests.service_process import ServiceProcess, run_command
from turnstore.v1 import history_service_pb2_grpc

DEFAULT_SECONDS = 1.0
AWAY = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
"""Once the driver has noticed that nobody is there, the answer may be that before the deadline passes."""
CALLS = every_call("deadlines")


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with replica_set(tmp_path_factory.mktemp("deadlines"), 1) as members:
        yield members


@pytest.fixture(scope="module")
def service(members: ReplicaSet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    settings = {"TURNSTORE_MONGODB_URI": members.uri, "TURNSTORE_DEFAULT_DEADLINE": f"{DEFAULT_SECONDS:g}s"}
    assert run_command("migrate", settings=settings).returncode == 0
    service = ServiceProcess(tmp_path_factory.mktemp("service"), settings)
    service.wait_ready()
    yield service
    service.kill()


@pytest.fixture
async def stub(service: ServiceProcess) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(service.target) as channel:
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        await stub.ListResponses(CALLS["ListResponses"], timeout=20)  # connected, and the database answers
        yield stub


@pytest.fixture
def stopped(members: ReplicaSet, stub: Any) -> Iterator[None]:
    """The database says nothing while the test runs."""
    members.members[0].pause()
    yield
    members.members[0].go_on()


@pytest.mark.parametrize("seconds", [0.05, 0.5])
@pytest.mark.parametrize("method", CALLS)
async def test_caller_hears_of_its_deadline_in_time(
    service: ServiceProcess, stub: Any, stopped: None, method: str, seconds: float
) -> None:
    request_id = str(uuid.uuid4())
    began = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await getattr(stub, method)(CALLS[method], timeout=seconds, metadata=(("x-request-id", request_id),))
    assert refusal.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < seconds + 5
    if seconds < 0.5:
        return  # such a call may never have got as far as the service

    def ended() -> bool:
        return any(line.get("request_id") == request_id for line in service.log_lines() if "code" in line)

    wait_until(ended, 20, "the service ends the call by itself")
    lines = [line for line in service.log_lines() if line.get("request_id") == request_id]
    (line,) = [line for line in lines if line["event"] == "call"]
    assert line["code"] not in {"OK", "INTERNAL"}, str(line)


async def test_caller_without_a_deadline_hears_of_the_default_one(
    service: ServiceProcess, stub: Any, stopped: None
) -> None:
    for method, request in CALLS.items():
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await getattr(stub, method)(request)
        error = refusal.value
        assert error.code() in AWAY, method
        (details,) = [
            value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"
        ]
        status, info = status_pb2.Status.FromString(bytes(details)), error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        assert (info.domain, info.reason) == ("turnstore", "STORE_UNAVAILABLE")
        said = f"{error.details()} {status}".lower()
        for word in ("mongo", "127.0.0.1", "localhost", "traceback", "pool", "socket", "maxtimems"):
            assert word not in said


async def test_service_goes_on_when_the_database_does(members: ReplicaSet, stub: Any) -> None:
    members.members[0].pause()
    try:
        for _ in range(100):  # more than there are places for: each gives its place back
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stub.ListResponses(CALLS["ListResponses"], timeout=0.02)
            assert refusal.value.code() in AWAY
    finally:
        members.members[0].go_on()
    await stub.StoreResponse(CALLS["StoreResponse"], timeout=20)
    reply = await stub.ListResponses(CALLS["ListResponses"], timeout=20)
    assert [turn.id for turn in reply.responses] == ["r"]


async def test_calls_that_are_given_up_leave_room_for_others(members: ReplicaSet, stub: Any) -> None:
    """A caller who goes away has no deadline that would end its database call: that one ends by the default."""
    members.members[0].pause()
    try:
        calls = [stub.GetResponse(CALLS["GetResponse"]) for _ in range(100)]
        for call in calls:
            call.cancel()
    finally:
        members.members[0].go_on()
    await stub.ListResponses(CALLS["ListResponses"], timeout=20)
