"""Readiness and liveness of a service on a real MongoDB."""

from collections.abc import Iterator
from typing import Any

import grpc
import pymongo
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pymongo.database import Database

from tests.conftest import StartService
from tests.processes import wait_until
from tests.service_process import ServiceProcess, run_command
from turnstore_service.storage.mongo.indexes import INDEXES

QUICK = {"TURNSTORE_HEALTH_INTERVAL": "100ms"}
NAMES = ("", "turnstore.v1.HistoryService")
SECONDS = 30


@pytest.fixture
def database(mongodb_uri: str, database_name: str) -> Iterator[Database[dict[str, Any]]]:
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client[database_name]


def _problems(service: ServiceProcess) -> list[str]:
    return [problem for line in service.log_lines() for problem in line.get("problems", ())]


def test_service_is_ready_when_the_indexes_stand(start_service: StartService) -> None:
    service = start_service(QUICK).wait_ready()
    assert {name: service.health(name) for name in (*NAMES, "liveness")} == {
        "": "SERVING",
        "turnstore.v1.HistoryService": "SERVING",
        "liveness": "SERVING",
    }


def test_unknown_name_is_not_found(start_service: StartService) -> None:
    service = start_service(QUICK)
    with pytest.raises(grpc.RpcError) as refusal:
        service.health("no.such.Service")
    assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


def test_missing_indexes_keep_it_from_being_ready_until_they_are_made(start_service: StartService) -> None:
    service = start_service(QUICK, migrate=False)
    wait_until(lambda: bool(_problems(service)), SECONDS, "the log says what is missing")
    assert [service.health(name) for name in NAMES] == ["NOT_SERVING", "NOT_SERVING"]
    assert service.health("liveness") == "SERVING"
    problems = _problems(service)
    for index in INDEXES:
        assert any(f"{index.collection}.{index.name} " in problem for problem in problems)
    assert "turnstore-service migrate" in problems[0]
    made = run_command("migrate", settings=service.settings)
    assert made.returncode == 0, made.stderr
    service.wait_ready()


def test_one_wrong_index_is_named(start_service: StartService, database: Database[dict[str, Any]]) -> None:
    start_service(QUICK).wait_ready().terminate()
    database["responses"].drop_index("place")
    database["responses"].create_index([("scope", 1), ("thread", 1), ("place", 1)], name="place")
    service = start_service(QUICK, migrate=False)
    wait_until(lambda: bool(_problems(service)), SECONDS, "the log says what is wrong")
    assert service.health() == "NOT_SERVING"
    (problem,) = set(_problems(service))
    assert "responses.place" in problem


def test_wrong_index_is_left_for_the_operator_by_migrate(
    start_service: StartService, database: Database[dict[str, Any]]
) -> None:
    service = start_service(QUICK).wait_ready()
    database["responses"].drop_index("place")
    database["responses"].create_index([("scope", 1), ("thread", 1), ("place", 1)], name="place")
    refused = run_command("migrate", settings=service.settings)
    assert refused.returncode == 1
    assert "responses.place" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_watch_tells_each_change(start_service: StartService) -> None:
    service = start_service(QUICK, migrate=False)
    with grpc.insecure_channel(service.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="turnstore.v1.HistoryService"),
            timeout=SECONDS,
            wait_for_ready=True,
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert run_command("migrate", settings=service.settings).returncode == 0
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        service.process.terminate()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as end:
            next(watch)
        assert end.value.code() is grpc.StatusCode.UNAVAILABLE


def test_open_watch_does_not_hold_up_the_end(start_service: StartService) -> None:
    service = start_service({**QUICK, "TURNSTORE_SHUTDOWN_GRACE": "10m"})
    with grpc.insecure_channel(service.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="liveness"), wait_for_ready=True
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        assert service.terminate() == 0
