"""The service's process: how it starts, waits, drains and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.conftest import StartService
from tests.faults.replica_set import Member
from tests.processes import mongods_on, wait_until
from tests.service_process import ServiceProcess, clean_environment, run_command
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2
from turnstore_service.embedded.binary import find_mongod
from turnstore_service.embedded.mongod import EmbeddedMongod

QUICK = {"TURNSTORE_HEALTH_INTERVAL": "100ms"}
TURN_SECONDS = 20.0
"""Three checks of 3 s each, and some."""
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class PausableDatabase:
    """A MongoDB of the test's own that can be away for a while."""

    def __init__(self, mongod: EmbeddedMongod) -> None:
        self.settings = {"TURNSTORE_MONGODB_URI": mongod.uri, **QUICK}
        (self._pid,) = mongods_on(mongod.data_dir)

    def pause(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._pid, signal.SIGCONT)


@pytest.fixture
def pausable(tmp_path: Path) -> Iterator[PausableDatabase]:
    mongod = EmbeddedMongod(tmp_path / "pausable", find_mongod(None))
    mongod.start()
    database = PausableDatabase(mongod)
    yield database
    database.resume()
    mongod.stop()


@pytest.fixture
def free_address() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _get_response(channel: grpc.Channel) -> Any:
    """A call that needs the database, begun and not waited for; without it, it ends NOT_FOUND."""
    return history_service_pb2_grpc.HistoryServiceStub(channel).GetResponse.future(
        rpc.GetResponseRequest(scope=response_pb2.Scope(namespace="acme"), response_id="none"),
        timeout=60,
        wait_for_ready=True,
    )


def _in_flight(service: ServiceProcess) -> bool:
    name = 'grpc_server_started_total{grpc_method="GetResponse"'
    with urllib.request.urlopen(service.metrics_url, timeout=10) as reply:
        (line,) = [line for line in reply.read().decode().splitlines() if line.startswith(name)]
    return line.endswith(" 1.0")


def _listens(target: str) -> bool:
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except ConnectionResetError:  # it stops just now
        return True
    except ConnectionRefusedError:
        return False


def _wait_for_signals(service: ServiceProcess, received: int) -> None:
    wait_until(
        lambda: [line["event"] for line in service.log_lines()].count("signal received") == received,
        10,
        "the signal is received",
    )


def test_terminated_service_ends_in_order_with_status_0(start_service: StartService, tmp_path: Path) -> None:
    service = start_service().wait_ready()
    ready_file = Path(service.settings["TURNSTORE_READY_FILE"])
    assert ready_file.exists()
    assert service.terminate() == 0
    events = [line["event"] for line in service.log_lines() if line["event"] != "call"]
    assert events == ["starting", "database", "listening", "ready", "signal received", "stopped"]
    assert not ready_file.exists()


def test_ready_file_tells_where_to_find_the_service(start_service: StartService) -> None:
    service = start_service().wait_ready()
    assert service.ready["pid"] == service.process.pid
    assert {"listen", "metrics_listen", "mongodb_uri", "pid"} == set(service.ready)


def test_ready_file_that_cannot_be_written_is_told(
    mongodb_uri: str, database_name: str, tmp_path: Path
) -> None:
    ended = run_command(
        "serve",
        settings={
            "TURNSTORE_LISTEN": "127.0.0.1:0",
            "TURNSTORE_METRICS_LISTEN": "off",
            "TURNSTORE_MONGODB_URI": mongodb_uri,
            "TURNSTORE_MONGODB_DATABASE": database_name,
            "TURNSTORE_READY_FILE": str(tmp_path / "none" / "ready.json"),
        },
    )
    assert ended.returncode == 1
    assert "ready.json cannot be written: No such file or directory" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_start_waits_for_a_database_that_is_away(start_service: StartService, free_address: str) -> None:
    service = start_service({**QUICK, "TURNSTORE_MONGODB_URI": f"mongodb://{free_address}/"}, migrate=False)
    assert service.health() == "NOT_SERVING"
    assert service.health("liveness") == "SERVING"
    wait_until(
        lambda: any(line["event"] == "waiting for the database" for line in service.log_lines()),
        TURN_SECONDS,
        "the log says that it waits",
    )
    (problem,) = next(line for line in service.log_lines() if "problems" in line)["problems"]
    assert free_address in problem
    assert "Connection refused" in problem
    assert service.terminate() == 0


def test_readiness_follows_the_database_and_liveness_does_not(
    start_service: StartService, pausable: PausableDatabase
) -> None:
    service = start_service(pausable.settings)
    with grpc.insecure_channel(service.target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=3 * TURN_SECONDS, wait_for_ready=True)
        assert next(reply.status for reply in watch if reply.status == SERVING)
        pausable.pause()
        assert next(watch).status == NOT_SERVING
        assert service.health("liveness") == "SERVING"
        pausable.resume()
        assert next(watch).status == SERVING
    events = [line["event"] for line in service.log_lines()]
    assert events.count("not ready any more") == 1
    assert events.count("ready") == 2


def test_running_call_is_let_end(start_service: StartService, pausable: PausableDatabase) -> None:
    service = start_service(pausable.settings).wait_ready()
    with grpc.insecure_channel(service.target) as channel:
        pausable.pause()
        call = _get_response(channel)
        wait_until(lambda: _in_flight(service), 10, "the call is in flight")
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not _listens(service.target), 10, "no further calls are taken")
        pausable.resume()
        assert call.code() is grpc.StatusCode.NOT_FOUND
    assert service.wait_ended() == 0


def test_second_signal_ends_it_without_waiting(
    start_service: StartService, pausable: PausableDatabase
) -> None:
    service = start_service({**pausable.settings, "TURNSTORE_SHUTDOWN_GRACE": "10m"}).wait_ready()
    with grpc.insecure_channel(service.target) as channel:
        pausable.pause()
        call = _get_response(channel)
        wait_until(lambda: _in_flight(service), 10, "the call is in flight")
        for received in (1, 2):
            service.process.send_signal(signal.SIGTERM)
            _wait_for_signals(service, received)
        assert call.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        pausable.resume()
        assert service.wait_ended() == 0


def test_calls_are_taken_during_the_pause(start_service: StartService) -> None:
    service = start_service({"TURNSTORE_SHUTDOWN_PAUSE": "10m"}).wait_ready()
    with grpc.insecure_channel(service.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(watch).status == SERVING
        service.process.send_signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        assert service.health("liveness") == "SERVING"
        assert _get_response(channel).code() is grpc.StatusCode.NOT_FOUND
        assert service.terminate() == 0


@pytest.mark.parametrize("variable", ["TURNSTORE_LISTEN", "TURNSTORE_METRICS_LISTEN"])
def test_port_in_use_is_told(start_service: StartService, variable: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        service = start_service({variable: address}, migrate=False)
        assert service.wait_ended() == 1
    assert f"Cannot listen on {address}" in service.log_text()
    assert f"Set {variable} to another one" in service.log_text()
    assert "Traceback" not in service.log_text()


def test_second_service_does_not_share_a_port(start_service: StartService) -> None:
    first = start_service().wait_ready()
    second = start_service({"TURNSTORE_LISTEN": first.target}, migrate=False)
    assert second.wait_ended() == 1
    assert first.health() == "SERVING"


def test_metrics_can_be_switched_off(start_service: StartService) -> None:
    service = start_service({"TURNSTORE_METRICS_LISTEN": "off"}).wait_ready()
    assert service.ready["metrics_listen"] is None


def test_plain_event_loop_can_be_chosen(start_service: StartService) -> None:
    service = start_service({"TURNSTORE_UVLOOP": "false"}).wait_ready()
    assert "uvloop" not in Path(f"/proc/{service.process.pid}/maps").read_text()
    assert service.terminate() == 0


def test_uvloop_is_used_unless_switched_off(start_service: StartService) -> None:
    service = start_service().wait_ready()
    assert "uvloop" in Path(f"/proc/{service.process.pid}/maps").read_text()


def test_migrate_makes_the_indexes_of_an_embedded_store(tmp_path: Path) -> None:
    settings = {"TURNSTORE_DATA_DIR": str(tmp_path / "data")}
    for _ in range(2):
        made = run_command("migrate", settings=settings)
        assert made.returncode == 0, made.stderr
        assert "The indexes stand." in made.stdout
    assert mongods_on(tmp_path / "data") == []


def test_migrate_tells_that_the_database_does_not_answer(free_address: str) -> None:
    refused = run_command("migrate", settings={"TURNSTORE_MONGODB_URI": f"mongodb://{free_address}/"})
    assert refused.returncode == 1
    assert "The indexes cannot be made" in refused.stderr
    assert "Connection refused" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_server_without_replication_is_refused(start_service: StartService, tmp_path: Path) -> None:
    member = Member(tmp_path / "alone", {}, alone=True)
    member.start()
    try:
        with member.client() as client:
            client.admin.command("ping")
        settings = {"TURNSTORE_MONGODB_URI": f"mongodb://{member.address}/", **QUICK}
        refused = run_command("migrate", settings=settings)
        assert refused.returncode == 1
        assert "a single server without replication" in refused.stderr
        assert "Traceback" not in refused.stderr
        service = start_service(settings, migrate=False)
        wait_until(
            lambda: any("without replication" in str(line.get("problems")) for line in service.log_lines()),
            TURN_SECONDS,
            "the log says what is wrong",
        )
        assert service.health() == "NOT_SERVING"
    finally:
        member.kill()


def test_log_goes_to_standard_error_alone(tmp_path: Path, mongodb_uri: str, database_name: str) -> None:
    ready_file = tmp_path / "ready.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "turnstore_service", "serve"],
        env=clean_environment(
            {
                "TURNSTORE_LISTEN": "127.0.0.1:0",
                "TURNSTORE_METRICS_LISTEN": "off",
                "TURNSTORE_MONGODB_URI": mongodb_uri,
                "TURNSTORE_MONGODB_DATABASE": database_name,
                "TURNSTORE_READY_FILE": str(ready_file),
            }
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(ready_file.exists, 30, "it listens")
    process.terminate()
    output, log = process.communicate()
    assert output == b""
    assert json.loads(log.splitlines()[0])["event"] == "starting"
