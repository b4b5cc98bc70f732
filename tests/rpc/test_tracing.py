"""Spans of calls to a service on a real MongoDB, and the trace that they belong to."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.service_process import RunningService, service_in_process
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2
from turnstore_service.operations.spans import Spans

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SECRET = "what-somebody-said-in-confidence"


@dataclass(frozen=True)
class Traced:
    """A service, a stub for it, the spans that have ended, and the log."""

    service: RunningService
    stub: history_service_pb2_grpc.HistoryServiceStub
    exporter: InMemorySpanExporter
    lines: list[Any]

    async def get(self, *metadata: tuple[str, str]) -> None:
        """A call that ends NOT_FOUND."""
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await self.stub.GetResponse(
                rpc.GetResponseRequest(scope=response_pb2.Scope(namespace="acme"), response_id="none"),
                metadata=metadata,
                timeout=30,
            )
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND

    async def store(self) -> None:
        await self.stub.StoreResponse(
            rpc.StoreResponseRequest(
                scope=response_pb2.Scope(namespace="acme", user="ada"),
                response=response_pb2.Response(
                    id="resp-1",
                    status=response_pb2.RESPONSE_STATUS_FAILED,
                    conversation_id="conv-1",
                    input_items=[
                        response_pb2.Item(json=f'{{"id":"i-1","type":"message","text":"{SECRET}"}}')
                    ],
                ),
            ),
            metadata=(("x-request-id", "req-7"), ("authorization", "Bearer a-credential")),
            timeout=30,
        )

    async def calls(self, count: int = 1) -> list[ReadableSpan]:
        """The spans of calls, waited for: a caller has its answer a moment before the span ends."""
        async with asyncio.timeout(10):
            while len(found := self.of(SpanKind.SERVER)) < count:  # noqa: ASYNC110  # the exporter is a list
                await asyncio.sleep(0.005)
        assert len(found) == count
        return found

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]


@pytest.fixture
async def traced(mongodb_uri: str, database_name: str) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = {"mongodb_uri": mongodb_uri, "mongodb_database": database_name}
    with structlog.testing.capture_logs() as lines:
        async with service_in_process(Spans(provider, database_name), **settings) as service:
            stub = history_service_pb2_grpc.HistoryServiceStub(service.channel)
            yield Traced(service, stub, exporter, lines)


def _trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def _span_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def _parent_id(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


async def test_span_says_what_the_log_line_does(traced: Traced) -> None:
    await traced.store()
    (span,) = await traced.calls()
    assert span.name == "turnstore.v1.HistoryService/StoreResponse"
    assert dict(span.attributes or {}) == {
        "rpc.system.name": "grpc",
        "rpc.method": "turnstore.v1.HistoryService/StoreResponse",
        "rpc.response.status_code": "OK",
        "turnstore.request_id": "req-7",
        "turnstore.namespace": "acme",
        "turnstore.response_id": "resp-1",
        "turnstore.conversation_id": "conv-1",
        "turnstore.status": "failed",
    }
    assert span.status.status_code is StatusCode.UNSET


async def test_trace_of_the_caller_is_continued(traced: Traced) -> None:
    await traced.get(("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=1"))
    (span,) = await traced.calls()
    assert (_trace_id(span), _parent_id(span)) == (TRACE, PARENT)
    assert span.context is not None
    assert span.context.trace_state.get("vendor") == "1"


@pytest.mark.parametrize(
    "traceparent",
    [
        *("", "nonsense", f"00-{TRACE}-{PARENT}", f"ff-{TRACE}-{PARENT}-01"),
        *(f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01"),
    ],
)
async def test_trace_that_is_none_is_not_continued(traced: Traced, traceparent: str) -> None:
    await traced.get(("traceparent", traceparent))
    (span,) = await traced.calls()
    assert span.parent is None
    assert _trace_id(span) != TRACE


async def test_call_without_a_trace_begins_one(traced: Traced) -> None:
    await traced.get()
    (span,) = await traced.calls()
    assert span.parent is None


async def test_trace_that_is_not_sampled_is_not_recorded_and_yet_logged(traced: Traced) -> None:
    await traced.get(("traceparent", f"00-{TRACE}-{PARENT}-00"))
    await traced.get()
    (span,) = await traced.calls()
    assert _trace_id(span) != TRACE
    assert TRACE in {line.get("trace_id") for line in traced.lines if line["event"] == "call"}


async def test_log_line_has_the_ids_of_its_span(traced: Traced) -> None:
    await traced.get()
    (span,) = await traced.calls()
    (line,) = [line for line in traced.lines if line["event"] == "call"]
    assert (line["trace_id"], line["span_id"]) == (_trace_id(span), _span_id(span))


async def test_database_calls_are_spans_below_their_call(traced: Traced) -> None:
    await traced.store()
    (call,) = await traced.calls()
    below = traced.of(SpanKind.CLIENT)
    assert below
    for span in below:
        assert (_trace_id(span), _parent_id(span)) == (_trace_id(call), _span_id(call))
        assert span.attributes is not None
        assert span.attributes["db.system.name"] == "mongodb"
        assert span.attributes["turnstore.outcome"] == "ok"
        assert span.name == span.attributes["db.operation.name"]
        assert span.start_time is not None
        assert span.end_time is not None
        assert 0 < span.end_time - span.start_time < 30e9
    assert "insert" in {span.name for span in below}


async def test_calls_at_one_time_keep_to_their_traces(traced: Traced) -> None:
    traces = [uuid.uuid4().hex for _ in range(20)]
    await asyncio.gather(*(traced.get(("traceparent", f"00-{trace}-{PARENT}-01")) for trace in traces))
    calls = await traced.calls(len(traces))
    assert {_trace_id(span) for span in calls} == set(traces)
    call_of = {_trace_id(span): _span_id(span) for span in calls}
    below = traced.of(SpanKind.CLIENT)
    assert {_trace_id(span) for span in below} == set(traces)
    assert all(_parent_id(span) == call_of[_trace_id(span)] for span in below)


async def test_refusal_is_told_with_its_reason_and_is_no_error_of_the_server(traced: Traced) -> None:
    await traced.get()
    (span,) = await traced.calls()
    assert span.attributes is not None
    assert span.attributes["rpc.response.status_code"] == "NOT_FOUND"
    assert span.attributes["turnstore.error_reason"] == "response_not_found"
    assert span.status.status_code is StatusCode.UNSET


async def test_fault_of_the_server_is_an_error(traced: Traced) -> None:
    await traced.service.store.close()
    with pytest.raises(grpc.aio.AioRpcError):
        await traced.store()
    (span,) = await traced.calls()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == span.attributes["rpc.response.status_code"]
    assert {below.status.status_code for below in traced.of(SpanKind.CLIENT)} == {StatusCode.ERROR}


async def test_history_tells_its_size(traced: Traced) -> None:
    await traced.stub.ResolveHistory(
        rpc.ResolveHistoryRequest(scope=response_pb2.Scope(namespace="acme"), conversation_id="none"),
        timeout=30,
    )
    (span,) = await traced.calls()
    assert span.attributes is not None
    assert span.attributes["turnstore.history_items"] == 0
    assert span.attributes["turnstore.items_left_out"] == 0


async def test_contents_and_credentials_are_in_no_span(traced: Traced) -> None:
    await traced.store()
    await traced.calls()
    text = "".join(span.to_json() for span in traced.exporter.get_finished_spans())
    assert "resp-1" in text
    assert not re.search(f"{SECRET}|a-credential", text)


async def test_probes_and_checks_of_the_database_have_no_spans(traced: Traced) -> None:
    await health_pb2_grpc.HealthStub(traced.service.channel).Check(
        health_pb2.HealthCheckRequest(service="liveness"), timeout=30
    )
    await traced.service.store.ping()
    await traced.get()
    (span,) = await traced.calls()
    assert span.name.endswith("/GetResponse")
    assert {_trace_id(below) for below in traced.of(SpanKind.CLIENT)} == {_trace_id(span)}
