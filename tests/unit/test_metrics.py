import socket
import urllib.request
from collections.abc import Callable

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from turnstore.v1 import history_service_pb2
from turnstore_service.operations.addresses import Address
from turnstore_service.operations.metrics import CODE_NAMES, Metrics, MetricsEndpoint

SERVICE = history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics([SERVICE])


Value = Callable[..., float | None]


@pytest.fixture
def value(metrics: Metrics) -> Value:
    return lambda name, **labels: metrics.registry.get_sample_value(name, labels)


def test_every_method_and_code_has_its_series_from_the_start(value: Value) -> None:
    for method in SERVICE.methods:
        labels = {
            "grpc_type": "server_stream" if method.server_streaming else "unary",
            "grpc_service": "turnstore.v1.HistoryService",
            "grpc_method": method.name,
        }
        assert value("grpc_server_started_total", **labels) == 0
        assert value("grpc_server_handling_seconds_count", **labels) == 0
        for code in CODE_NAMES.values():
            assert value("grpc_server_handled_total", **labels, grpc_code=code) == 0


def test_codes_are_spelt_as_dashboards_expect() -> None:
    assert sorted(CODE_NAMES.values()) == sorted(
        [
            *(
                "OK",
                "Canceled",
                "Unknown",
                "InvalidArgument",
                "DeadlineExceeded",
                "NotFound",
                "AlreadyExists",
            ),
            *("PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange"),
            *("Unimplemented", "Internal", "Unavailable", "DataLoss", "Unauthenticated"),
        ]
    )
    assert set(CODE_NAMES) == set(grpc.StatusCode)


def test_database_call_is_counted_and_timed(metrics: Metrics, value: Value) -> None:
    metrics.database_call("find", "ok", 0.003, 0.0001)
    metrics.database_call("find", "unavailable", 2.0, 0.0)
    assert value("turnstore_database_calls_total", operation="find", outcome="ok") == 1
    assert value("turnstore_database_calls_total", operation="find", outcome="unavailable") == 1
    assert value("turnstore_database_calls_total", operation="insert", outcome="ok") == 0
    assert value("turnstore_database_call_seconds_sum", operation="find") == pytest.approx(2.003)
    assert value("turnstore_database_wait_seconds_sum") == pytest.approx(0.0001)


def test_endpoint_serves_what_prometheus_reads(metrics: Metrics) -> None:
    endpoint = MetricsEndpoint(metrics.registry, Address("127.0.0.1", 0))
    try:
        with urllib.request.urlopen(f"http://{endpoint.address}/metrics", timeout=10) as reply:
            families = {
                family.name: family for family in text_string_to_metric_families(reply.read().decode())
            }
    finally:
        endpoint.close()
    assert families["grpc_server_started"].type == "counter"
    assert families["grpc_server_handling_seconds"].type == "histogram"
    (build,) = families["turnstore_build_info"].samples
    assert set(build.labels) == {"version", "python", "grpc"}
    assert [family.documentation for family in families.values() if not family.documentation] == []
    assert not [name for name in families if name.endswith("_created")]


def test_endpoint_that_is_closed_frees_its_port(metrics: Metrics) -> None:
    endpoint = MetricsEndpoint(metrics.registry, Address("127.0.0.1", 0))
    endpoint.close()
    again = MetricsEndpoint(metrics.registry, endpoint.address)
    again.close()


def test_endpoint_on_a_port_in_use_is_refused(metrics: Metrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, pytest.raises(OSError, match="in use"):
        MetricsEndpoint(metrics.registry, Address("127.0.0.1", holder.getsockname()[1]))
