"""Where spans go, by the variables of OpenTelemetry, and what an observer puts into them."""

import os
import socket
import time
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, StatusCode, use_span

from tests.service_process import run_command
from turnstore.v1 import history_service_pb2
from turnstore_service.operations import spans
from turnstore_service.operations.live_files import FileError
from turnstore_service.operations.metrics import Metrics
from turnstore_service.operations.settings import Settings
from turnstore_service.operations.spans import Spans, provider_of_environment
from turnstore_service.operations.tracing import open_tracing
from turnstore_service.replay.values import Reason, Status

SERVICE = history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def silent_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A collector that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        yield


def _begun_call(made: Spans) -> Span:
    # In a context of its own, as calls have: the span stays the present one there.
    return copy_context().run(made.begin_call, "turnstore.v1.HistoryService/GetResponse", {})


def test_resource_names_the_service() -> None:
    first, second = provider_of_environment().resource, provider_of_environment().resource
    assert first.attributes["service.name"] == "turnstore"
    assert first.attributes["service.version"]
    assert first.attributes["service.instance.id"] != second.attributes["service.instance.id"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_SERVICE_NAME", "history"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=history,region=eu")],
)
def test_variables_name_it_otherwise(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    resource = provider_of_environment().resource
    assert resource.attributes["service.name"] == "history"
    assert ("region" in resource.attributes) == ("region" in value)


def test_variables_choose_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    made = Spans(provider_of_environment(), "turnstore")
    assert not _begun_call(made).is_recording()
    made.close()


REFUSAL = "TURNSTORE_OTEL=on, but OpenTelemetry cannot be set up by its variables (OTEL_*): "


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER=zipkin: must be otlp or none"),
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http/protobuf",
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf: must be grpc",
        ),
        (
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "http/json",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json: must be",
        ),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "squeeze", 'Invalid value "squeeze"'),
    ],
)
def test_variable_that_asks_for_what_there_is_not_is_told(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, problem: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(FileError) as refusal:
        open_tracing(Settings(otel="on"))
    assert str(refusal.value).startswith(REFUSAL + problem)


def test_propagator_that_there_is_not_is_told() -> None:
    ended = run_command("check-config", settings={"TURNSTORE_OTEL": "on", "OTEL_PROPAGATORS": "pigeon"})
    assert ended.returncode == 1
    assert f"{REFUSAL}Propagator pigeon not found" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_sending_nothing_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    made = open_tracing(Settings(otel="on"))
    assert made is not None
    assert _begun_call(made).is_recording()
    made.close()


@pytest.fixture
def without_the_extra(tmp_path: Path) -> dict[str, str]:
    """Variables for a process that finds no OpenTelemetry."""
    package = tmp_path / "opentelemetry"
    package.mkdir()
    (package / "__init__.py").write_text("raise ModuleNotFoundError('not installed', name='opentelemetry')\n")
    return {"PYTHONPATH": str(tmp_path), "TURNSTORE_LISTEN": "127.0.0.1:0", "TURNSTORE_METRICS_LISTEN": "off"}


def test_missing_extra_is_told(without_the_extra: dict[str, str]) -> None:
    ended = run_command("serve", settings={**without_the_extra, "TURNSTORE_OTEL": "on"})
    assert ended.returncode == 1
    assert (
        "turnstore-service: TURNSTORE_OTEL=on needs OpenTelemetry: "
        "install turnstore-service with its extra `otel`." in ended.stderr
    )
    assert "Traceback" not in ended.stderr


def test_extra_is_not_needed_while_calls_are_not_traced(without_the_extra: dict[str, str]) -> None:
    checked = run_command("check-config", settings=without_the_extra)
    assert checked.returncode == 0, checked.stderr


def test_calls_are_not_traced_unless_that_is_wished() -> None:
    assert open_tracing(Settings()) is None


@pytest.mark.usefixtures("silent_collector")
def test_end_does_not_wait_long_for_a_collector_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "CLOSE_SECONDS", 0.1)
    made = Spans(provider_of_environment(), "turnstore")
    _begun_call(made).end()
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 20  # the library by itself waits for 30 s


def _ended_span(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def test_observer_puts_into_the_span_what_it_is_told(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    observer = Spans(provider, "turnstore").observer(Metrics([SERVICE]))
    with use_span(provider.get_tracer("test").start_span("call"), end_on_exit=True):
        observer.append_retried()
        observer.turn_stored(Status.CANCELLED)
        observer.history_resolved(3, {Reason.FAILED: 2, Reason.UNPAIRED_CALL: 1})
        observer.refused("RESPONSE_NOT_FOUND")
    call = _ended_span(exporter, "call")
    assert [event.name for event in call.events] == ["append retried"]
    assert dict(call.attributes or {}) == {
        "turnstore.status": "cancelled",
        "turnstore.history_items": 3,
        "turnstore.items_left_out": 3,
        "turnstore.error_reason": "response_not_found",
    }


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("ok", StatusCode.UNSET),
        ("conflict", StatusCode.UNSET),
        *((outcome, StatusCode.ERROR) for outcome in ("unavailable", "deadline", "error")),
    ],
)
def test_database_call_is_a_span_of_its_length(
    provider: TracerProvider, exporter: InMemorySpanExporter, outcome: str, code: StatusCode
) -> None:
    observer = Spans(provider, "turns").observer(Metrics([SERVICE]))
    with use_span(provider.get_tracer("test").start_span("call"), end_on_exit=True):
        observer.database_call("find", outcome, 0.25, 0.125)
    span = _ended_span(exporter, "find")
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 250_000_000
    assert span.status.status_code is code
    assert span.attributes is not None
    assert span.attributes["db.namespace"] == "turns"
    assert span.attributes["turnstore.waited_seconds"] == 0.125
    assert span.attributes.get("error.type") == (outcome if code is StatusCode.ERROR else None)


def test_outside_of_calls_there_are_no_spans(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    observer = Spans(provider, "turnstore").observer(Metrics([SERVICE]))
    observer.database_call("command", "ok", 0.001, 0.0)
    observer.append_retried()
    assert exporter.get_finished_spans() == ()


def test_observer_passes_on_all_that_it_is_told(provider: TracerProvider) -> None:
    metrics = Metrics([SERVICE])
    observer = Spans(provider, "turnstore").observer(metrics)
    observer.database_call_began()
    observer.database_call_began()
    observer.database_call("find", "ok", 0.001, 0.0)
    observer.append_retried()
    observer.turn_stored(Status.FAILED)
    observer.history_resolved(1, {Reason.FAILED: 2})
    observer.refused("LEASE_LOST")

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    assert value("turnstore_database_calls_in_progress") == 1
    assert value("turnstore_database_calls_total", operation="find", outcome="ok") == 1
    assert value("turnstore_appends_retried_total") == 1
    assert value("turnstore_turns_stored_total", status="failed") == 1
    assert value("turnstore_history_items_count") == 1
    assert value("turnstore_items_left_out_total", reason="failed") == 2
    assert value("turnstore_errors_total", reason="lease_lost") == 1
