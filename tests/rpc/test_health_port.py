"""Health on a port of its own, for probes that can show no certificate."""

import signal
import socket
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.conftest import StartService
from tests.processes import wait_until
from turnstore.v1 import history_service_pb2, history_service_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        return f"127.0.0.1:{holder.getsockname()[1]}"


def _status(address: str, name: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=name)
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=30, wait_for_ready=True).status)


def test_readiness_is_seen_there_and_follows_a_shutdown(start_service: StartService) -> None:
    address = _free_address()
    service = start_service({"TURNSTORE_HEALTH_LISTEN": address, "TURNSTORE_SHUTDOWN_PAUSE": "10m"})
    wait_until(lambda: _status(address) == SERVING, 30, "it is ready")
    service.process.send_signal(signal.SIGTERM)
    wait_until(lambda: _status(address) == NOT_SERVING, 30, "readiness has turned")
    assert _status(address, "liveness") == SERVING
    assert service.terminate() == 0


def test_nothing_else_is_served_there(start_service: StartService) -> None:
    address = _free_address()
    start_service({"TURNSTORE_HEALTH_LISTEN": address}).wait_ready()
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        history_service_pb2_grpc.HistoryServiceStub(channel).GetResponse(
            history_service_pb2.GetResponseRequest(response_id="r1"), timeout=30
        )
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_it_needs_no_certificate_when_the_service_does(start_service: StartService, tmp_path: Path) -> None:
    authority, address = trustme.CA(), _free_address()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    start_service(
        {
            "TURNSTORE_HEALTH_LISTEN": address,
            "TURNSTORE_SERVER_TLS_CERT": str(tmp_path / "tls.crt"),
            "TURNSTORE_SERVER_TLS_KEY": str(tmp_path / "tls.key"),
            "TURNSTORE_SERVER_TLS_CLIENT_CA": str(tmp_path / "ca.crt"),
        }
    )
    wait_until(lambda: _status(address) == SERVING, 30, "it is ready")


def test_any_of_several_workers_tells(start_service: StartService) -> None:
    address = _free_address()
    service = start_service({"TURNSTORE_HEALTH_LISTEN": address, "TURNSTORE_WORKERS": "2"}).wait_ready()

    def all_tell(name: str) -> bool:
        """Each connection may get another worker; one of them may still be starting."""
        return {_status(address, name) for _ in range(20)} == {SERVING}

    wait_until(lambda: all_tell(""), 30, "each is ready")
    assert all_tell("liveness")
    assert service.terminate() == 0


def test_port_in_use_is_told(start_service: StartService) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        service = start_service({"TURNSTORE_HEALTH_LISTEN": address})
        assert service.wait_ended() == 1
    assert f"Cannot listen on {address}" in service.log_text()
    assert "Set TURNSTORE_HEALTH_LISTEN to another one" in service.log_text()
