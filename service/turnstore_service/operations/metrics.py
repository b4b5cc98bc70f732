"""Every metric that the service exports, in a registry of its own, and the HTTP endpoint that serves them."""

import importlib.metadata
import platform
import threading
from collections.abc import Iterable, Mapping
from wsgiref.simple_server import WSGIServer

import grpc
import prometheus_client
from google.protobuf.descriptor import ServiceDescriptor
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from turnstore.v1 import errors_pb2
from turnstore_service.operations.addresses import Address
from turnstore_service.replay.values import Reason, Status

# They would be a further series for each counter and histogram.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of the histograms: a call takes about 1 ms, and its deadline is seconds."""

_ITEMS = (0, 1, 5, 10, 25, 50, 100, 250, 500, 1000, 5000, 10000)
"""Bounds for sizes of histories: most callers ask for a hundred items."""

_TYPES = {
    (False, False): "unary",
    (False, True): "server_stream",
    (True, False): "client_stream",
    (True, True): "bidi_stream",
}
"""Values of `grpc_type`, by whether request and response are streams."""

CODE_NAMES = {
    code: "OK" if code is grpc.StatusCode.OK else code.name.title().replace("_", "")
    for code in grpc.StatusCode
}
"""Values of `grpc_code` (`OK`, `NotFound`, `DeadlineExceeded`), spelt as by the Go middleware that gave these
metrics their names, so that dashboards and alerts made for it work."""
CODE_NAMES[grpc.StatusCode.CANCELLED] = "Canceled"

DATABASE_OPERATIONS = (
    "command",
    "delete",
    "find",
    "find_and_update",
    "insert",
    "list_indexes",
    "update",
)
DATABASE_OUTCOMES = ("ok", "conflict", "unavailable", "deadline", "cancelled", "error")


class MethodMetrics:
    """The series of one gRPC method, looked up once so that a call costs no look-up by labels."""

    def __init__(self, metrics: "Metrics", kind: str, service: str, method: str) -> None:
        self.started = metrics.grpc_started.labels(kind, service, method)
        self.handled = {
            code: metrics.grpc_handled.labels(kind, service, method, name)
            for code, name in CODE_NAMES.items()
        }
        self.handling = metrics.grpc_handling.labels(kind, service, method)


class Metrics:
    """All metrics. Every label set exists from the start, so that ratios in rules have both sides."""

    def __init__(self, services: Iterable[ServiceDescriptor]) -> None:
        """Makes the metrics in a registry of their own.

        Args:
            services: The gRPC services that are served.
        """
        registry = self.registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.GCCollector(registry=registry)

        labels = ["grpc_type", "grpc_service", "grpc_method"]
        self.grpc_started = Counter(
            "grpc_server_started", "RPCs started on the server.", labels, registry=registry
        )
        self.grpc_handled = Counter(
            "grpc_server_handled",
            "RPCs completed on the server, whatever their outcome.",
            [*labels, "grpc_code"],
            registry=registry,
        )
        self.grpc_handling = Histogram(
            "grpc_server_handling_seconds",
            "Seconds from the start of an RPC's handling to its end.",
            labels,
            buckets=_SECONDS,
            registry=registry,
        )
        self.build = Info("turnstore_build", "What is running.", registry=registry)
        self.build.info(
            {
                "version": version(),
                "python": platform.python_version(),
                "grpc": grpc.__version__,
            }
        )
        self.ready = Gauge(
            "turnstore_ready",
            "1 while the service is ready: the database answers and its indexes stand.",
            registry=registry,
        )
        self.workers = Gauge(
            "turnstore_workers",
            "Processes that take calls, each of which can use about one processor.",
            registry=registry,
        )
        self.database_calls = Counter(
            "turnstore_database_calls",
            "Calls to the database: ok, conflict (a unique index refused), unavailable, deadline, "
            "cancelled (the caller went away), error.",
            ["operation", "outcome"],
            registry=registry,
        )
        self.database_call_seconds = Histogram(
            "turnstore_database_call_seconds",
            "Seconds that calls to the database took, without waiting for their turn.",
            ["operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.database_wait_seconds = Histogram(
            "turnstore_database_wait_seconds",
            "Seconds that calls to the database waited for their turn.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.database_calls_in_progress = Gauge(
            "turnstore_database_calls_in_progress",
            "Calls to the database that have their turn. At the limit, others wait.",
            registry=registry,
        )
        self._database_calls_now = 0
        self.database_calls_in_progress.set_function(lambda: self._database_calls_now)
        self.database_calls_limit = Gauge(
            "turnstore_database_calls_limit",
            "Calls to the database that are made at one time at the most.",
            registry=registry,
        )
        self.appends_retried = Counter(
            "turnstore_appends_retried",
            "Writes that lost their place to another writer and tried again.",
            registry=registry,
        )
        self.turns_stored = Counter(
            "turnstore_turns_stored",
            "Answered StoreResponse calls, by the status of the response then.",
            ["status"],
            registry=registry,
        )
        self.items_left_out = Counter(
            "turnstore_items_left_out",
            "Items that ResolveHistory looked at and left out, by reason. Failed turns are not looked at unless"
            " the call asks to explain.",
            ["reason"],
            registry=registry,
        )
        self.history_items = Histogram(
            "turnstore_history_items",
            "Items in the histories that ResolveHistory gave.",
            buckets=_ITEMS,
            registry=registry,
        )
        self.errors = Counter(
            "turnstore_errors",
            "Calls answered with an error, by its reason (duplicates, revision conflicts, finished responses).",
            ["reason"],
            registry=registry,
        )

        self.methods = {
            f"/{service.full_name}/{method.name}": MethodMetrics(
                self,
                _TYPES[method.client_streaming, method.server_streaming],
                service.full_name,
                method.name,
            )
            for service in services
            for method in service.methods
        }
        """The series of each method that is served, by its path
        (`/turnstore.v1.HistoryService/GetResponse`)."""
        self.unknown_method = MethodMetrics(self, "unary", "unknown", "unknown")
        """The series of calls to anything else: callers must not be able to make series."""
        self._by_status = {status: self.turns_stored.labels(status.name.lower()) for status in Status}
        self._by_reason = {reason: self.items_left_out.labels(reason.name.lower()) for reason in Reason}
        self._by_error = {
            name: self.errors.labels(name.lower())
            for name in (value.removeprefix("ERROR_REASON_") for value in errors_pb2.ErrorReason.keys())  # noqa: SIM118 - no dict
        }
        self._database_series = {
            (operation, outcome): (
                self.database_calls.labels(operation, outcome),
                self.database_call_seconds.labels(operation),
            )
            for operation in DATABASE_OPERATIONS
            for outcome in DATABASE_OUTCOMES
        }

    def database_call_began(self) -> None:
        """Counts a call to the database in."""
        self._database_calls_now += 1

    def database_call(self, operation: str, outcome: str, seconds: float, waited: float) -> None:
        """Counts one call to the database, and out. `waited`: the seconds before it, in the queue."""
        self._database_calls_now -= 1
        calls, took = self._database_series[operation, outcome]
        calls.inc()
        took.observe(seconds)
        self.database_wait_seconds.observe(waited)

    def append_retried(self) -> None:
        """Counts a write that lost its place."""
        self.appends_retried.inc()

    def turn_stored(self, status: Status) -> None:
        """Counts an answered StoreResponse."""
        self._by_status[status].inc()

    def history_resolved(self, items: int, left_out: Mapping[Reason, int]) -> None:
        """Counts a history that was given."""
        self.history_items.observe(items)
        for reason, count in left_out.items():
            self._by_reason[reason].inc(count)

    def refused(self, reason: str) -> None:
        """Counts an error. A reason that the contract does not name counts as unspecified."""
        self._by_error.get(reason, self._by_error["UNSPECIFIED"]).inc()


class MetricsEndpoint:
    """Serves the metrics over HTTP at /metrics, in a thread of its own."""

    def __init__(self, registry: CollectorRegistry, address: Address) -> None:
        """Listens at once.

        Raises:
            OSError: The address cannot be listened on.
        """
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = prometheus_client.start_http_server(
            address.port, address.host, registry=registry
        )
        self.address = Address(address.host, self._server.server_port)
        """Where it listens, with the real port."""

    def close(self) -> None:
        """Stops listening and waits for the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def version() -> str:
    """The service's version; `unknown` when it runs from a folder that is not installed."""
    try:
        return importlib.metadata.version("turnstore-service")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
