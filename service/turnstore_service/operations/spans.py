"""Spans of calls and their database calls, by OpenTelemetry. Needs the extra `otel`.

A call's span continues the trace that its caller names in the metadata (W3C `traceparent`, or what
OTEL_PROPAGATORS says). Spans carry what the log line of the call does, and never contents or credentials.
Nothing is global here: a program that traces for itself in the same process is let be.
"""

import os
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from turnstore_service.observing import Observer
from turnstore_service.operations.metrics import version
from turnstore_service.replay.values import Reason
from turnstore_service.replay.values import Status as TurnStatus

CLOSE_SECONDS = 5.0
"""How long the last spans may take to be sent when the service ends."""

_FAILED = frozenset({"unavailable", "deadline", "error"})
"""Outcomes of database calls that are errors. A conflict is none: it is how writers find each other."""


def provider_of_environment() -> TracerProvider:
    """What the variables of OpenTelemetry ask for: sampler, resource, limits, exporter.

    Raises:
        ValueError: A variable asks for another exporter or protocol than there is, or cannot be read.
        Exception: What else the library raises.
    """
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    exporter = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if exporter not in {"otlp", "none"}:
        raise ValueError(f"OTEL_TRACES_EXPORTER={exporter}: must be otlp or none")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(name) or "grpc"
        if protocol != "grpc":
            raise ValueError(f"{name}={protocol}: must be grpc")
    if exporter == "otlp":
        provider.add_span_processor(_Sender(OTLPSpanExporter()))
    return provider


def _resource() -> Resource:
    given = OTELResourceDetector().detect().attributes
    # What is given to `create` wins over the variables, and it is for them to win.
    return Resource.create(
        {
            "service.name": "turnstore",
            "service.version": version(),
            "service.instance.id": str(uuid.uuid4()),
            **given,
        }
    )


class _Sender(BatchSpanProcessor):
    """Sends spans in batches, and ends in a bounded time."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        super().__init__(exporter)
        self._sends_by = exporter

    def shutdown(self) -> None:
        # The library would wait half a minute for a collector that is away.
        giving_up = threading.Timer(CLOSE_SECONDS, self._sends_by.shutdown)
        giving_up.daemon = True
        giving_up.start()
        super().shutdown()  # type: ignore[no-untyped-call]
        giving_up.cancel()


class Spans:
    """Makes spans."""

    def __init__(self, provider: TracerProvider, database: str) -> None:
        """Begins nothing yet.

        Args:
            provider: Where spans go. It is closed with this.
            database: Name of the database, for the spans of its calls.
        """
        self._provider = provider
        self._tracer = provider.get_tracer("turnstore_service", version())
        self._database = database

    def observer(self, following: Observer) -> Observer:
        """An observer that puts what it is told into spans, and passes it on."""
        return SpanObserver(self, following)

    def close(self) -> None:
        """Sends what is left, for at most CLOSE_SECONDS."""
        self._provider.shutdown()

    def begin_call(self, method: str, metadata: Mapping[str, str]) -> Span:
        """Begins the span of a call, and makes it the present one of the task that handles it.

        Args:
            method: `package.Service/Method`.
            metadata: What the caller sent with the call, where the caller's trace is named.
        """
        parent = propagate.extract(metadata)
        span = self._tracer.start_span(
            method, parent, SpanKind.SERVER, {"rpc.system.name": "grpc", "rpc.method": method}
        )
        # Never taken back: every call has a task of its own.
        context.attach(trace.set_span_in_context(span, parent))
        return span

    def database_call(self, operation: str, outcome: str, seconds: float, waited: float) -> None:
        """Adds the span of a database call that has just ended, if it was made for a call that has one."""
        if not trace.get_current_span().is_recording():
            return
        now = time.time_ns()
        attributes: dict[str, Any] = {
            "db.system.name": "mongodb",
            "db.namespace": self._database,
            "db.operation.name": operation,
            "turnstore.outcome": outcome,
            "turnstore.waited_seconds": waited,
        }
        if outcome in _FAILED:
            attributes["error.type"] = outcome
        span = self._tracer.start_span(
            operation, kind=SpanKind.CLIENT, attributes=attributes, start_time=now - int(seconds * 1e9)
        )
        if outcome in _FAILED:
            span.set_status(Status(StatusCode.ERROR))
        span.end(now)


class SpanObserver:
    """Puts what happens into spans, and tells it to the next observer."""

    def __init__(self, spans: Spans, following: Observer) -> None:
        self._spans = spans
        self._following = following

    def database_call_began(self) -> None:
        """See Observer."""
        self._following.database_call_began()

    def database_call(self, operation: str, outcome: str, seconds: float, waited: float) -> None:
        """Adds a span below the call's."""
        self._spans.database_call(operation, outcome, seconds, waited)
        self._following.database_call(operation, outcome, seconds, waited)

    def append_retried(self) -> None:
        """Adds an event to the call's span."""
        trace.get_current_span().add_event("append retried")
        self._following.append_retried()

    def turn_stored(self, status: TurnStatus) -> None:
        """Adds the status to the call's span."""
        trace.get_current_span().set_attribute("turnstore.status", status.name.lower())
        self._following.turn_stored(status)

    def history_resolved(self, items: int, left_out: Mapping[Reason, int]) -> None:
        """Adds the numbers of items to the call's span."""
        span = trace.get_current_span()
        span.set_attribute("turnstore.history_items", items)
        span.set_attribute("turnstore.items_left_out", sum(left_out.values()))
        self._following.history_resolved(items, left_out)

    def refused(self, reason: str) -> None:
        """Adds the reason to the call's span."""
        trace.get_current_span().set_attribute("turnstore.error_reason", reason.lower())
        self._following.refused(reason)
