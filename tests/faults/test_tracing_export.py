"""A service that sends its spans to a collector, over the protocol that collectors speak."""

import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.conftest import StartService
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.address = ""
        self._lock = threading.Lock()
        self._received: list[tuple[dict[str, str], Any]] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # the protocol's name
        with self._lock:
            for group in request.resource_spans:
                resource = {one.key: one.value.string_value for one in group.resource.attributes}
                for scope in group.scope_spans:
                    self._received.extend((resource, span) for span in scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def received(self) -> list[tuple[dict[str, str], Any]]:
        """Spans, each with the resource that it is of."""
        with self._lock:
            return list(self._received)


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield collector
    server.stop(None).wait()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_spans_are_sent_before_the_service_ends(
    start_service: StartService, collector: Collector, workers: str
) -> None:
    service = start_service(
        {
            "TURNSTORE_OTEL": "on",
            "TURNSTORE_WORKERS": workers,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }
    ).wait_ready()
    with grpc.insecure_channel(service.target) as channel, pytest.raises(grpc.RpcError):
        history_service_pb2_grpc.HistoryServiceStub(channel).GetResponse(
            rpc.GetResponseRequest(scope=response_pb2.Scope(namespace="acme"), response_id="none"),
            metadata=(("traceparent", f"00-{TRACE}-{PARENT}-01"),),
            timeout=30,
        )
    assert service.terminate() == 0
    calls = [(resource, span) for resource, span in collector.received if span.parent_span_id.hex() == PARENT]
    ((resource, call),) = calls
    assert call.name == "turnstore.v1.HistoryService/GetResponse"
    assert call.trace_id.hex() == TRACE
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("turnstore", "test")
    below = [span for _, span in collector.received if span.parent_span_id == call.span_id]
    assert {span.name for span in below} == {"find"}
    (line,) = [line for line in service.log_lines() if line.get("method") == f"/{call.name}"]
    assert line["trace_id"] == TRACE
