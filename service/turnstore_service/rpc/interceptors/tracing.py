"""Makes a span of each call. Needs the extra `otel`."""

from typing import Any

import grpc
from opentelemetry.trace import Span, Status, StatusCode, format_span_id, format_trace_id

from turnstore_service.operations.logging import call_fields, note_call
from turnstore_service.operations.spans import Spans
from turnstore_service.rpc.interceptors.around import Around
from turnstore_service.rpc.metadata import metadata_of

_OF_PROBES = "/grpc."
"""Calls of health and reflection come every few seconds from every probe, and tell nothing about a turn."""

_FROM_THE_LOG = ("request_id", "namespace", "response_id", "conversation_id", "previous_response_id")
"""What a span takes over from the log line of its call."""

_SERVER_FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""What OpenTelemetry counts as an error of a server's span; the other codes are about the request."""


class CallTracing(Around[Span | None]):
    """Continues the caller's trace, and puts its id on the call's log lines. Stands inside the call log."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def begin(self, method: str, context: Any) -> Span | None:
        """Begins the span."""
        if method.startswith(_OF_PROBES):
            return None
        metadata = {k: v for k, v in metadata_of(context) if isinstance(v, str)}
        span = self._spans.begin_call(method.removeprefix("/"), metadata)
        told = span.get_span_context()
        if told.is_valid:  # else OTEL_SDK_DISABLED says that there are none
            note_call(trace_id=format_trace_id(told.trace_id), span_id=format_span_id(told.span_id))
        return span

    def end(self, call: Span | None, code: grpc.StatusCode, error: BaseException | None) -> None:  # noqa: ARG002 - the log tells the error
        """Ends the span with the status of the call."""
        if call is None:
            return
        call.set_attribute("rpc.response.status_code", code.name)
        line = call_fields.get() or {}
        for name in _FROM_THE_LOG:
            if name in line:
                call.set_attribute(f"turnstore.{name}", line[name])
        if code in _SERVER_FAULTS:
            call.set_attribute("error.type", code.name)
            call.set_status(Status(StatusCode.ERROR))
        call.end()
