"""What a service on a real MongoDB tells of its calls: metrics and log."""

import urllib.request
from collections.abc import Iterator

import grpc
import pytest

from tests.conftest import StartService
from tests.processes import wait_until
from tests.service_process import ServiceProcess
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2

SECRET = "what-somebody-said-in-confidence"


@pytest.fixture
def service(start_service: StartService) -> ServiceProcess:
    return start_service().wait_ready()


@pytest.fixture
def stub(service: ServiceProcess) -> Iterator[history_service_pb2_grpc.HistoryServiceStub]:
    with grpc.insecure_channel(service.target) as channel:
        yield history_service_pb2_grpc.HistoryServiceStub(channel)


def _store(stub: history_service_pb2_grpc.HistoryServiceStub, **metadata: str) -> None:
    stub.StoreResponse(
        rpc.StoreResponseRequest(
            scope=response_pb2.Scope(namespace="acme", user="ada"),
            response=response_pb2.Response(
                id="resp-1",
                status=response_pb2.RESPONSE_STATUS_COMPLETED,
                conversation_id="conv-1",
                input_items=[response_pb2.Item(json=f'{{"id":"i-1","type":"message","text":"{SECRET}"}}')],
            ),
        ),
        metadata=tuple(metadata.items()),
    )


def _calls(service: ServiceProcess, method: str) -> list[dict[str, object]]:
    return [
        line
        for line in service.log_lines()
        if line["event"] == "call" and str(line["method"]).endswith(f"/{method}")
    ]


def test_call_is_logged_in_one_line_without_contents(
    service: ServiceProcess, stub: history_service_pb2_grpc.HistoryServiceStub
) -> None:
    _store(stub, **{"x-request-id": "req-7", "authorization": "Bearer a-credential"})
    wait_until(lambda: bool(_calls(service, "StoreResponse")), 10, "the call is logged")
    (line,) = _calls(service, "StoreResponse")
    assert {name: line[name] for name in line if name not in {"time", "ms"}} == {
        "level": "info",
        "event": "call",
        "method": "/turnstore.v1.HistoryService/StoreResponse",
        "code": "OK",
        "request_id": "req-7",
        "namespace": "acme",
        "response_id": "resp-1",
        "conversation_id": "conv-1",
    }
    assert SECRET not in service.log_text()
    assert "a-credential" not in service.log_text()


def test_debug_log_has_no_contents_either(start_service: StartService) -> None:
    service = start_service({"TURNSTORE_LOG_LEVEL": "debug"}).wait_ready()
    with grpc.insecure_channel(service.target) as channel:
        _store(history_service_pb2_grpc.HistoryServiceStub(channel))
    wait_until(lambda: bool(_calls(service, "StoreResponse")), 10, "the call is logged")
    assert SECRET not in service.log_text()


def test_probes_are_not_logged(
    service: ServiceProcess, stub: history_service_pb2_grpc.HistoryServiceStub
) -> None:
    assert service.health() == "SERVING"
    _store(stub)
    wait_until(lambda: bool(_calls(service, "StoreResponse")), 10, "the call is logged")
    assert _calls(service, "Check") == []


def test_metrics_endpoint_counts_calls_and_their_database_calls(
    service: ServiceProcess, stub: history_service_pb2_grpc.HistoryServiceStub
) -> None:
    _store(stub)
    with pytest.raises(grpc.RpcError):
        stub.GetResponse(
            rpc.GetResponseRequest(scope=response_pb2.Scope(namespace="acme"), response_id="none")
        )

    def has(*lines: str) -> bool:
        with urllib.request.urlopen(service.metrics_url, timeout=10) as reply:
            return set(lines) <= set(reply.read().decode().splitlines())

    method = 'grpc_service="turnstore.v1.HistoryService",grpc_type="unary"'
    wait_until(
        lambda: has(
            f'grpc_server_handled_total{{grpc_code="OK",grpc_method="StoreResponse",{method}}} 1.0',
            f'grpc_server_handled_total{{grpc_code="NotFound",grpc_method="GetResponse",{method}}} 1.0',
            f'grpc_server_started_total{{grpc_method="GetResponse",{method}}} 1.0',
            f'grpc_server_handling_seconds_count{{grpc_method="StoreResponse",{method}}} 1.0',
            'turnstore_database_calls_total{operation="insert",outcome="ok"} 1.0',
            "turnstore_ready 1.0",
        ),
        10,
        "the metrics count both calls",
    )
