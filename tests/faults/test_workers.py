"""A service of several processes: how they start, share, and end."""

import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import StartService
from tests.processes import mongods_on, wait_until
from tests.service_process import ServiceProcess
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2
from turnstore_service.embedded.binary import find_mongod
from turnstore_service.embedded.mongod import EmbeddedMongod
from turnstore_service.operations.addresses import Address
from turnstore_service.operations.metrics import Metrics
from turnstore_service.operations.shared_port import shared_port
from turnstore_service.operations.workers import WorkerError, Workers, worker_command
from turnstore_service.server import SERVED

TWO = {"TURNSTORE_WORKERS": "2", "TURNSTORE_HEALTH_INTERVAL": "100ms"}
SECONDS = 30.0
MANY = 12
"""Connections, so that no worker is likely to be without one; nothing fails when one is."""


class Callers:
    """Calls that each have a connection of their own, and so one worker or another."""

    def __init__(self, service: ServiceProcess, stack: ExitStack) -> None:
        self._service = service
        self._stack = stack

    def call(self) -> Any:
        """A call that needs the database, begun and not waited for; it ends NOT_FOUND."""
        channel = self._stack.enter_context(
            # Channels to one address share their connection otherwise.
            grpc.insecure_channel(self._service.target, options=[("grpc.use_local_subchannel_pool", 1)])
        )
        return history_service_pb2_grpc.HistoryServiceStub(channel).GetResponse.future(
            rpc.GetResponseRequest(scope=response_pb2.Scope(namespace="acme"), response_id="none"),
            timeout=60,
            wait_for_ready=True,
        )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def mongod(tmp_path: Path) -> Iterator[EmbeddedMongod]:
    """A MongoDB of the test's own, to be stopped and let on."""
    mongod = EmbeddedMongod(tmp_path / "own", find_mongod(None))
    mongod.start()
    yield mongod
    _let_on(mongod)
    mongod.stop()


def _hold(mongod: EmbeddedMongod) -> None:
    for pid in mongods_on(mongod.data_dir):
        os.kill(pid, signal.SIGSTOP)


def _let_on(mongod: EmbeddedMongod) -> None:
    for pid in mongods_on(mongod.data_dir):
        os.kill(pid, signal.SIGCONT)


def _workers(service: ServiceProcess) -> list[int]:
    """The process ids of the workers, in order."""
    assert service.ready
    (line,) = [line for line in service.log_lines() if line["event"] == "listening" and "workers" in line]
    return list(line["workers"])


def _callers_of(service: ServiceProcess) -> set[int]:
    """The workers that have ended a call of the test's."""
    return {
        line["worker"]
        for line in service.log_lines()
        if line["event"] == "call" and line["method"].endswith("/GetResponse")
    }


def _metric(service: ServiceProcess, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    with urllib.request.urlopen(service.metrics_url, timeout=10) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert found, f"no {name} {labels}"
    return sum(found)


def _started(service: ServiceProcess) -> float:
    return _metric(service, "grpc_server_started_total", grpc_method="GetResponse")


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for_end_of(pids: list[int]) -> None:
    wait_until(lambda: not any(map(_is_alive, pids)), SECONDS, "the workers end")


def _listens(target: str) -> bool:
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except ConnectionError:
        return False


def test_connections_are_spread_and_their_calls_added_up(
    start_service: StartService, stack: ExitStack
) -> None:
    service = start_service(TWO).wait_ready()
    callers = Callers(service, stack)
    calls = 0

    def both_were_met() -> bool:
        nonlocal calls
        assert callers.call().code() is grpc.StatusCode.NOT_FOUND
        calls += 1
        return _callers_of(service) == {0, 1}

    wait_until(both_were_met, SECONDS, "both workers have calls")
    assert _started(service) == calls
    wait_until(
        lambda: _metric(service, "turnstore_errors_total", reason="response_not_found") == calls,
        SECONDS,
        "the errors of both are counted",
    )


def test_ready_file_tells_the_first_process_and_the_shared_port(start_service: StartService) -> None:
    service = start_service(TWO)
    workers = _workers(service)
    assert service.ready["pid"] == service.process.pid
    assert len(workers) == 2
    assert service.process.pid not in workers
    lines = [line for line in service.log_lines() if line["event"] == "listening"]
    assert {line["listen"] for line in lines} == {service.target}
    assert [line.get("worker") for line in lines].count(None) == 1


def test_metrics_are_those_of_a_single_process(start_service: StartService) -> None:
    names = []
    for workers in ("1", "2"):
        service = start_service({**TWO, "TURNSTORE_WORKERS": workers}).wait_ready()
        with urllib.request.urlopen(service.metrics_url, timeout=10) as reply:
            names.append(
                {
                    (sample.name, *sample.labels.items())
                    for family in text_string_to_metric_families(reply.read().decode())
                    for sample in family.samples
                }
            )
    assert names[0] == names[1]


def test_service_is_told_ready_when_every_worker_is(start_service: StartService) -> None:
    service = start_service(TWO).wait_ready()
    wait_until(lambda: _metric(service, "turnstore_ready") == 1, SECONDS, "both are ready")
    assert {line["worker"] for line in service.log_lines() if line["event"] == "ready"} == {0, 1}


def test_workers_share_one_embedded_database(start_service: StartService, tmp_path: Path) -> None:
    service = start_service({**TWO, "TURNSTORE_MONGODB_URI": None}).wait_ready()
    assert len(mongods_on(tmp_path / "data")) == 1
    assert service.terminate() == 0
    assert mongods_on(tmp_path / "data") == []


def test_terminated_service_lets_the_calls_of_all_workers_end(
    start_service: StartService, mongod: EmbeddedMongod, stack: ExitStack
) -> None:
    service = start_service({**TWO, "TURNSTORE_MONGODB_URI": mongod.uri}).wait_ready()
    workers = _workers(service)
    callers = Callers(service, stack)
    _hold(mongod)
    calls = [callers.call() for _ in range(MANY)]
    wait_until(lambda: _started(service) == MANY, SECONDS, "the calls are in flight")
    # As a stop of a systemd unit does.
    for pid in (*workers, service.process.pid):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not _listens(service.target), SECONDS, "no further calls are taken")
    _let_on(mongod)
    assert [call.code() for call in calls] == [grpc.StatusCode.NOT_FOUND] * MANY
    assert service.wait_ended() == 0
    assert not any(map(_is_alive, workers))
    assert not Path(service.settings["TURNSTORE_READY_FILE"]).exists()


def test_second_signal_ends_it_without_waiting(
    start_service: StartService, mongod: EmbeddedMongod, stack: ExitStack
) -> None:
    settings = {**TWO, "TURNSTORE_MONGODB_URI": mongod.uri, "TURNSTORE_SHUTDOWN_GRACE": "10m"}
    service = start_service(settings).wait_ready()
    callers = Callers(service, stack)
    _hold(mongod)
    calls = [callers.call() for _ in range(MANY)]
    wait_until(lambda: _started(service) == MANY, SECONDS, "the calls are in flight")
    for received in (1, 2):
        service.process.send_signal(signal.SIGTERM)
        wait_until(
            lambda received=received: (
                [line["event"] for line in service.log_lines()].count("signal received") == received
            ),
            SECONDS,
            "the signal is received",
        )
    ends = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert {call.code() for call in calls} <= ends
    _let_on(mongod)
    assert service.wait_ended() == 0


def test_metrics_are_there_until_the_last_worker_ends(start_service: StartService, stack: ExitStack) -> None:
    service = start_service({**TWO, "TURNSTORE_SHUTDOWN_PAUSE": "10m"}).wait_ready()
    callers = Callers(service, stack)
    service.process.send_signal(signal.SIGTERM)
    wait_until(lambda: _metric(service, "turnstore_ready") == 0, SECONDS, "the metrics say that it ends")
    assert callers.call().code() is grpc.StatusCode.NOT_FOUND
    assert _started(service) == 1
    assert service.terminate() == 0


def test_worker_that_is_killed_ends_the_service(
    start_service: StartService, mongod: EmbeddedMongod, stack: ExitStack
) -> None:
    service = start_service({**TWO, "TURNSTORE_MONGODB_URI": mongod.uri}).wait_ready()
    killed, other = _workers(service)
    callers = Callers(service, stack)
    _hold(mongod)
    calls = [callers.call() for _ in range(MANY)]
    wait_until(lambda: _started(service) == MANY, SECONDS, "the calls are in flight")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not _listens(service.target), SECONDS, "no further calls are taken")
    _let_on(mongod)
    # Calls of the killed worker fail, or are begun anew with the other one by the library; those of the other
    # one end as if nothing had happened.
    ends = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE}
    assert {call.code() for call in calls} <= ends
    assert service.wait_ended() == 1
    assert f"Worker 0 (process {killed}) was ended by SIGKILL, so the service ends." in service.log_text()
    assert "Traceback" not in service.log_text()
    assert not _is_alive(other)
    assert not Path(service.settings["TURNSTORE_READY_FILE"]).exists()


def test_workers_of_a_killed_service_end_at_once_and_leave_its_port(start_service: StartService) -> None:
    service = start_service({**TWO, "TURNSTORE_SHUTDOWN_PAUSE": "10m"}).wait_ready()
    workers = _workers(service)
    service.kill()
    _wait_for_end_of(workers)
    start_service({**TWO, "TURNSTORE_LISTEN": service.target}).wait_ready()


@pytest.mark.parametrize(("first", "second"), [("2", "2"), ("1", "2"), ("2", "1")])
def test_two_services_do_not_share_a_port(start_service: StartService, first: str, second: str) -> None:
    service = start_service({**TWO, "TURNSTORE_WORKERS": first}).wait_ready()
    refused = start_service({"TURNSTORE_WORKERS": second, "TURNSTORE_LISTEN": service.target}, migrate=False)
    assert refused.wait_ended() == 1
    assert f"Cannot listen on {service.target}" in refused.log_text()
    assert service.health() == "SERVING"


async def test_worker_that_cannot_start_is_told_with_its_status() -> None:
    workers = Workers(Metrics(SERVED))
    with pytest.raises(WorkerError, match=r"Worker 0 \(process \d+\) ended with status 3"):
        await workers.run([[sys.executable, "-c", "raise SystemExit(3)"]], lambda: None)


async def test_worker_that_hangs_is_killed(
    mongodb_uri: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "MONGODB_URI": mongodb_uri,
        "MONGODB_DATABASE": database_name,
        "LOG_LEVEL": "error",
        "WORKERS": "2",
        "METRICS_LISTEN": "off",
    }.items():
        monkeypatch.setenv(f"TURNSTORE_{name}", value)
    workers = Workers(Metrics(SERVED), ping_seconds=0.05, hang_seconds=0.5)
    with shared_port(Address("127.0.0.1", 0)) as listen:
        try:
            with pytest.raises(
                WorkerError, match=r"Worker 1 .* gave no sign of life for 0.5 s and was killed"
            ):
                await workers.run(
                    [worker_command(number, listen, None) for number in range(2)],
                    lambda: os.kill(workers.processes[1], signal.SIGSTOP),
                )
        finally:
            workers.kill()
    _wait_for_end_of(workers.processes)
