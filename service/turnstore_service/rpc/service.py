"""The gRPC service: one generic handler for every RPC of the contract.

Requests are parsed here and not by the library, whose answer to bytes that are no message would be UNKNOWN
with the parser's text. Here stands also what every call has in common: size, deadline, scope, errors.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from turnstore.v1 import history_service_pb2 as rpc
from turnstore_service.operations.logging import note_call, request_id
from turnstore_service.operations.settings import Settings
from turnstore_service.replay.values import POLICIES
from turnstore_service.rpc import errors, history, parsing, responses
from turnstore_service.rpc.calls import Backend
from turnstore_service.rpc.errors import STATUS_DETAILS, ApiError, internal, invalid, too_large, unimplemented
from turnstore_service.storage.errors import StoreBrokenError, StoreError
from turnstore_service.storage.mongo.driver import deadline
from turnstore_service.storage.mongo.store import MongoStore

SERVICE = rpc.DESCRIPTOR.services_by_name["HistoryService"]

_Implementation = Callable[[Backend, Any, Any], Awaitable[Message]]

IMPLEMENTED: Mapping[str, _Implementation] = {
    "StoreResponse": responses.store_response,
    "ResolveHistory": history.resolve_history,
    "GetResponse": responses.get_response,
    "SetReplayExclusion": responses.set_replay_exclusion,
    "DeleteResponse": responses.delete_response,
    "ListInputItems": history.list_input_items,
    "BatchGetItems": history.batch_get_items,
    "ListResponses": history.list_responses,
    "DeleteConversation": responses.delete_conversation,
    "DeleteUserData": responses.delete_user_data,
}
"""The RPCs that this version has; the others of the contract answer UNIMPLEMENTED."""

_log = structlog.get_logger()


class HistoryService:
    """`turnstore.v1.HistoryService` over a store."""

    def __init__(self, store: MongoStore, settings: Settings) -> None:
        self._backend = Backend(store, POLICIES[settings.default_policy], settings.max_reply_bytes)
        self._max_request_bytes = settings.max_request_bytes
        self._default_seconds = settings.default_deadline.total_seconds()
        self._max_seconds = settings.max_deadline.total_seconds()

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Registers every RPC of the contract."""
        handlers = {method.name: self._handler(method) for method in SERVICE.methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))

    def _handler(self, method: Any) -> Any:
        implementation = IMPLEMENTED.get(method.name)
        message = getattr(rpc, method.input_type.name)
        if implementation is not None:
            return grpc.unary_unary_rpc_method_handler(self._unary(implementation, message))

        async def refuse(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            await _abort(context, unimplemented(f"{SERVICE.full_name}/{method.name}"))

        async def refuse_stream(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            await refuse(_request, context)
            yield b""  # makes this a stream; never reached

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(refuse_stream)
        return grpc.unary_unary_rpc_method_handler(refuse)

    def _unary(
        self, implementation: _Implementation, message: type[Message]
    ) -> Callable[[bytes, grpc.aio.ServicerContext[Any, Any]], Awaitable[bytes]]:
        async def handle(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            try:
                request: Any = self._parse(message, data)
                namespace = parsing.namespace(request.scope) or DEFAULT_NAMESPACE
                scope = parsing.scope(request.scope, namespace)
                _note(request, namespace)
                self._set_deadline(context.time_remaining())
                reply = await implementation(self._backend, scope, request)
                return reply.SerializeToString()
            except ApiError as error:
                await _abort(context, error)
            except StoreError as error:
                if isinstance(error, StoreBrokenError):
                    _log.error("call failed", exc_info=error)
                await _abort(context, errors.of(error, request_id()))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets one sentence and the log the cause
                _log.error("call failed", exc_info=error)
                await _abort(context, internal(request_id()))

        return handle

    def _parse(self, message: type[Message], data: bytes) -> Message:
        if len(data) > self._max_request_bytes:
            raise too_large(self._max_request_bytes, len(data))
        try:
            return message.FromString(data)
        except DecodeError:
            raise invalid("request", f"is no {message.DESCRIPTOR.full_name}") from None

    def _set_deadline(self, remaining: float | None) -> None:
        seconds = self._default_seconds if remaining is None else min(remaining, self._max_seconds)
        deadline.set(time.monotonic() + seconds)


DEFAULT_NAMESPACE = "default"
"""The namespace of a caller who names none. Contract."""


def _note(request: Any, namespace: str) -> None:
    fields = {"namespace": namespace}
    if isinstance(request, rpc.StoreResponseRequest):
        request = request.response
        fields["response_id"] = request.id
    for name in ("response_id", "conversation_id", "previous_response_id"):
        if value := getattr(request, name, ""):
            fields[name] = value
    note_call(**fields)


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: ApiError) -> NoReturn:
    await context.abort(error.code, error.message, ((STATUS_DETAILS, error.details()),))
    raise AssertionError("abort returns")  # for the type checker: abort always raises
