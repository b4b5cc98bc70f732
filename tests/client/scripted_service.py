"""A service that answers as a test tells it to, for what a real one cannot be made to do on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from turnstore.v1 import history_service_pb2 as pb

SERVICE = "turnstore.v1.HistoryService"
REQUESTS = {
    method.name: getattr(pb, method.input_type.name)
    for method in pb.DESCRIPTOR.services_by_name["HistoryService"].methods
}


@dataclass(frozen=True)
class Refusal:
    """An answer that is an error, in the form that the service gives it."""

    code: grpc.StatusCode
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_seconds: float | None = None
    domain: str = "turnstore"
    message: str = "the script says so"

    def details(self) -> bytes:
        """The status as it stands in the trailing metadata."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        if self.reason:
            info = error_details_pb2.ErrorInfo(reason=self.reason, domain=self.domain, metadata=self.metadata)
            status.details.add().Pack(info)
        if self.retry_seconds is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(int(self.retry_seconds * 1e9))
            status.details.add().Pack(retry)
        return status.SerializeToString()


@dataclass(frozen=True)
class Silence:
    """No answer until the caller gives up."""


Answer = Message | Refusal | Silence | Callable[[Any], Message]


@dataclass(frozen=True)
class Received:
    """A call that came in."""

    method: str
    request: Any
    metadata: Mapping[str, str]
    seconds_left: float


class ScriptedService(grpc.GenericRpcHandler):
    """Gives the answers of its script in turn, the last one for ever, and remembers what came in.

    Used as a context manager it listens on a free port of the loopback address.
    """

    def __init__(self, *script: Answer, credentials: grpc.ServerCredentials | None = None) -> None:
        self.received: list[Received] = []
        self._script = list(script)
        self._credentials = credentials
        self._lock = threading.Lock()
        self._serving = True
        self._health_changed = threading.Condition()
        # The watch of each channel takes one for as long as it is open.
        self._pool = ThreadPoolExecutor(16)
        self._server = grpc.server(self._pool, handlers=[self], options=[("grpc.so_reuseport", 0)])

    def __enter__(self) -> Self:
        address = "localhost:0"
        if self._credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, self._credentials)
        self.target = f"localhost:{port}"
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop, cutting off what runs. May be called again."""
        self._server.stop(None).wait()
        self._pool.shutdown()

    def set_serving(self, serving: bool) -> None:
        """Tell by its health whether it can serve."""
        with self._health_changed:
            self._serving = serving
            self._health_changed.notify_all()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a call."""
        _, service, method = handler_call_details.method.split("/")
        if service == "grpc.health.v1.Health":
            form = {"request_deserializer": health_pb2.HealthCheckRequest.FromString}
            if method == "Watch":
                return grpc.unary_stream_rpc_method_handler(self._watch_health, **form)
            return grpc.unary_unary_rpc_method_handler(lambda request, _: self._health(request), **form)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(method, request, context),
            request_deserializer=REQUESTS[method].FromString,
        )

    def _health(self, request: health_pb2.HealthCheckRequest) -> bytes:
        assert request.service == SERVICE
        status = health_pb2.HealthCheckResponse.ServingStatus
        reply = health_pb2.HealthCheckResponse(
            status=status.Value("SERVING" if self._serving else "NOT_SERVING")
        )
        return reply.SerializeToString()

    # The servicer of grpcio-health-checking can block itself when a watch ends while it begins.
    def _watch_health(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        def wake() -> None:
            with self._health_changed:
                self._health_changed.notify_all()

        told = b""
        if context.add_callback(wake):
            while told := self._next_health(request, context, told):
                yield told

    def _next_health(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext, told: bytes
    ) -> bytes:
        """The health when it is another than was told, or nothing when nobody listens any more."""
        with self._health_changed:
            self._health_changed.wait_for(lambda: not context.is_active() or self._health(request) != told)
            return self._health(request) if context.is_active() else b""

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            metadata = {key: str(value) for key, value in context.invocation_metadata()}
            self.received.append(Received(method, request, metadata, context.time_remaining()))
            answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(answer, Silence):
            gone = threading.Event()
            context.add_callback(gone.set)
            gone.wait()
            context.abort(grpc.StatusCode.CANCELLED, "the caller has gone")
        if isinstance(answer, Refusal):
            context.set_trailing_metadata((("grpc-status-details-bin", answer.details()),))
            context.abort(answer.code, answer.message)
        message = answer if isinstance(answer, Message) else answer(request)
        return message.SerializeToString()
