"""The gRPC service: one generic handler for every RPC of the contract.

Requests are parsed here and not by the library, whose answer to bytes that are no message would be UNKNOWN
with the parser's text. Here stands also what every call has in common, in this order: credential, size,
namespace and right, deadline, its turn, errors.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from turnstore.v1 import history_service_pb2 as rpc
from turnstore_service.observing import NoObserver, Observer
from turnstore_service.operations.logging import note_call, request_id
from turnstore_service.operations.settings import Settings
from turnstore_service.replay.values import POLICIES
from turnstore_service.rpc import errors, history, parsing, responses
from turnstore_service.rpc.access import RIGHTS, Access, Right, namespace_reader
from turnstore_service.rpc.calls import Backend
from turnstore_service.rpc.errors import STATUS_DETAILS, ApiError, internal, invalid, too_large, unimplemented
from turnstore_service.rpc.interceptors.call_log import REQUEST_ID_KEY
from turnstore_service.rpc.limits import CallLimits
from turnstore_service.storage.errors import StoreBrokenError, StoreError
from turnstore_service.storage.mongo.driver import deadline
from turnstore_service.storage.mongo.store import MongoStore
from turnstore_service.storage.values import Scope

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

    def __init__(
        self,
        store: MongoStore,
        settings: Settings,
        access: Access,
        observer: Observer | None = None,
    ) -> None:
        """Serves nothing yet.

        Args:
            store: Where everything is.
            settings: Limits and defaults.
            access: Checks credentials.
            observer: Counts what is answered.
        """
        self._observer = observer or NoObserver()
        self._access = access
        self.limits = CallLimits(
            settings.max_calls,
            settings.max_calls_per_namespace,
            # A call needs a database call to get on; running more than those only lets them wait there.
            settings.pool_size,
        )
        """Lets calls in."""
        self._backend = Backend(
            store, self._observer, POLICIES[settings.default_policy], settings.max_reply_bytes
        )
        self._max_request_bytes = settings.max_request_bytes
        self._default_seconds = settings.default_deadline.total_seconds()
        self._max_seconds = settings.max_deadline.total_seconds()

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Registers every RPC of the contract."""
        handlers = {method.name: self._handler(method) for method in SERVICE.methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))

    def _handler(self, method: Any) -> Any:
        handle = self._unary(
            IMPLEMENTED.get(method.name) or _not_built(method.name),
            getattr(rpc, method.input_type.name),
            RIGHTS[method.name],
        )
        if not method.server_streaming:
            return grpc.unary_unary_rpc_method_handler(handle)

        async def handle_stream(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            yield await handle(data, context)  # no stream is built yet: it aborts

        return grpc.unary_stream_rpc_method_handler(handle_stream)

    def _unary(
        self, implementation: _Implementation, message: type[Message], rights: frozenset[Right]
    ) -> Callable[[bytes, grpc.aio.ServicerContext[Any, Any]], Awaitable[bytes]]:
        requested_namespace = namespace_reader(message.DESCRIPTOR)
        note = _noting(message)
        is_scoped = "scope" in message.DESCRIPTOR.fields_by_name

        async def handle(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            try:
                principal = await self._access.authenticate(context)
                request: Any = self._parse(message, data)
                namespace = principal.namespace(requested_namespace(request), rights)
                scope = parsing.scope(request.scope, namespace) if is_scoped else Scope(namespace)
                note(request, namespace)
                seconds = self._set_deadline(context.time_remaining())
                await self.limits.enter(namespace, seconds)
                try:
                    reply = await implementation(self._backend, scope, request)
                finally:
                    self.limits.leave(namespace)
                return reply.SerializeToString()
            except ApiError as error:
                if error.code in _REFUSED:
                    note_call(refusal=error.message)
                await self._abort(context, error)
            except StoreError as error:
                if isinstance(error, StoreBrokenError):
                    _log.error("call failed", exc_info=error)
                await self._abort(context, errors.of(error, request_id()))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets one sentence and the log the cause
                _log.error("call failed", exc_info=error)
                await self._abort(context, internal(request_id()))

        return handle

    def _parse(self, message: type[Message], data: bytes) -> Message:
        if len(data) > self._max_request_bytes:
            raise too_large(self._max_request_bytes, len(data))
        try:
            return message.FromString(data)
        except DecodeError:
            raise invalid("request", f"is no {message.DESCRIPTOR.full_name}") from None

    async def _abort(self, context: grpc.aio.ServicerContext[Any, Any], error: ApiError) -> NoReturn:
        self._observer.refused(error.reason)
        # An abort replaces the trailing metadata, so the id of the call is given again.
        details = (STATUS_DETAILS, error.details()), (REQUEST_ID_KEY, request_id())
        try:
            await context.abort(error.code, error.message, details)
        except grpc.aio.AbortError:
            raise
        except Exception as unsent:  # the library's own, which it does not name: the caller has gone
            raise asyncio.CancelledError from unsent
        raise AssertionError("abort returns")  # for the type checker: abort always raises

    def _set_deadline(self, remaining: float | None) -> float | None:
        """Sets when the call must have ended; how long it may wait, None where the library sees to that."""
        seconds = self._default_seconds if remaining is None else min(remaining, self._max_seconds)
        deadline.set(time.monotonic() + seconds)
        return None if seconds == remaining else seconds


_REFUSED = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""Codes whose message an operator wants to see in the log: it says which credential, right or limit it was."""


def _not_built(name: str) -> _Implementation:
    async def refuse(_backend: Backend, _scope: Any, _request: Any) -> Message:
        raise unimplemented(f"{SERVICE.full_name}/{name}")

    return refuse


def _noting(message: type[Message]) -> Callable[[Any, str], None]:
    """A function that notes for the log line what a request of this type is about."""
    if message is rpc.StoreResponseRequest:
        return _note_response
    names = [
        name
        for name in ("response_id", "conversation_id", "previous_response_id")
        if name in message.DESCRIPTOR.fields_by_name
    ]

    def note(request: Any, namespace: str) -> None:
        note_call(namespace=namespace, **{name: getattr(request, name) for name in names})

    return note


def _note_response(request: rpc.StoreResponseRequest, namespace: str) -> None:
    response = request.response
    note_call(
        namespace=namespace,
        response_id=response.id,
        conversation_id=response.conversation_id,
        previous_response_id=response.previous_response_id,
    )
