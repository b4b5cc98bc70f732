"""The database is away for a while: every call says so within its deadline, and all recovers by itself."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.faults.every_call import every_call
from tests.faults.replica_set import ReplicaSet, replica_set
from tests.processes import wait_until
from tests.service_process import ServiceProcess, run_command
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc

CALL_SECONDS = 20.0
"""Longer than the service looks for a primary, so that it is the service that answers."""
TURN_SECONDS = 60.0
"""Within these readiness follows, and the database is found again."""
CALLS = every_call("away")


@pytest.fixture
def members(tmp_path: Path) -> Iterator[ReplicaSet]:
    with replica_set(tmp_path / "members", 1) as members:
        yield members


@pytest.fixture
def service(members: ReplicaSet, tmp_path: Path) -> Iterator[ServiceProcess]:
    settings = {"TURNSTORE_MONGODB_URI": members.uri, "TURNSTORE_HEALTH_INTERVAL": "250ms"}
    assert run_command("migrate", settings=settings).returncode == 0
    service = ServiceProcess(tmp_path / "service", settings)
    service.wait_ready()
    yield service
    service.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [0, pytest.param(30, marks=pytest.mark.deep)])
def test_database_that_is_away_and_comes_back(
    members: ReplicaSet, service: ServiceProcess, seconds: int
) -> None:
    (member,) = members.members
    with grpc.insecure_channel(service.target) as channel:
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        stub.StoreResponse(CALLS["StoreResponse"], timeout=CALL_SECONDS)

        member.kill()
        comes_back = time.monotonic() + seconds
        while True:  # once at least
            calls = [
                getattr(stub, method).future(request, timeout=CALL_SECONDS)
                for method, request in CALLS.items()
            ]
            for call in calls:
                _check_unavailable(call)
            if time.monotonic() >= comes_back:
                break
        wait_until(lambda: service.health() == "NOT_SERVING", TURN_SECONDS, "it is not ready")
        assert service.health("liveness") == "SERVING"

        member.start()
        wait_until(lambda: service.health() == "SERVING", TURN_SECONDS, "it is ready again")
        after = rpc.StoreResponseRequest()
        after.CopyFrom(CALLS["StoreResponse"])
        after.response.id = "after"
        stub.StoreResponse(after, timeout=CALL_SECONDS)
        turns = stub.ListResponses(CALLS["ListResponses"], timeout=CALL_SECONDS).responses
        assert [turn.id for turn in turns] == ["r", "after"]
    codes = {line["code"] for line in service.log_lines() if line["event"] == "call"}
    assert codes == {"OK", "UNAVAILABLE"}


def _check_unavailable(call: Any) -> None:
    assert call.code() is grpc.StatusCode.UNAVAILABLE, call
    details = dict(call.trailing_metadata())["grpc-status-details-bin"]
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    given = status_pb2.Status.FromString(details).details
    assert given[0].Unpack(info)
    assert info.reason == "STORE_UNAVAILABLE"
    assert given[1].Unpack(retry)
