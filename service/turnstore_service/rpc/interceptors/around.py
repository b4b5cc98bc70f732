"""What is done before and after each call, whatever its kind: one interceptor for all of it.

A gRPC interceptor of its own for each would cost every call two more coroutines.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc

from turnstore_service.rpc.metadata import call_metadata

Call = TypeVar("Call")
"""What is kept between the beginning and the end of a call."""


class Around(Generic[Call]):
    """Something that is done around each call."""

    def begin(self, method: str, context: Any) -> Call:
        """Called in the task that will handle the call. `method` is the path, `/package.Service/Method`."""
        raise NotImplementedError

    def end(self, call: Call, code: grpc.StatusCode, error: BaseException | None) -> None:
        """Called when the handler is done, with the status that the caller gets.

        `error` is what the handler raised that nobody expected, else None.
        """
        raise NotImplementedError

    def unknown(self) -> None:
        """Called instead for a method that the server does not know; it is answered UNIMPLEMENTED."""


class AroundCalls(grpc.aio.ServerInterceptor):
    """Calls `begin` before and `end` after the handler of every method that the server knows."""

    def __init__(self, *around: Around[Any]) -> None:
        """What is named first begins first and ends last."""
        self._around = around
        self._inside_out = tuple(enumerate(around))[::-1]
        # A wrapped handler for each method, since making one costs more than using it. Only methods that are
        # served get into it, so callers cannot make it grow.
        self._wrapped: dict[str, tuple[Any, Any]] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Gives the server the wrapped handler. Runs in the task that will handle the call."""
        call_metadata.set(handler_call_details.invocation_metadata)
        handler = await continuation(handler_call_details)
        if handler is None:
            for around in self._around:
                around.unknown()
            return None
        method: str = handler_call_details.method
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, self._wrap(method, handler))
        return known[1]

    def _wrap(self, method: str, handler: Any) -> Any:
        function = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )

        async def single(request: Any, context: Any) -> Any:
            calls = [around.begin(method, context) for around in self._around]
            try:
                reply = await function(request, context)
            except BaseException as error:
                self._end(calls, *_end_of(context, error))
                raise
            self._end(calls, _code_of(context))
            return reply

        async def stream(request: Any, context: Any) -> Any:
            calls = [around.begin(method, context) for around in self._around]
            try:
                replies = function(request, context)
                if hasattr(replies, "__aiter__"):
                    async for reply in replies:
                        yield reply
                else:  # it writes its replies itself
                    await replies
            except BaseException as error:
                self._end(calls, *_end_of(context, error))
                raise
            self._end(calls, _code_of(context))

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return make(
            stream if handler.response_streaming else single,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _end(self, calls: list[Any], code: grpc.StatusCode, error: BaseException | None = None) -> None:
        for number, around in self._inside_out:
            around.end(calls[number], code, error)


def _end_of(context: Any, error: BaseException) -> tuple[grpc.StatusCode, BaseException | None]:
    """The status of a call whose handler raised this, and the error where it is a defect."""
    if isinstance(error, grpc.aio.AbortError):
        return _code_of(context), None
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        # The caller went away, or the deadline passed: the library ends the handler in the same way for both.
        remaining = context.time_remaining()
        passed = remaining is not None and remaining <= 0
        return (grpc.StatusCode.DEADLINE_EXCEEDED if passed else grpc.StatusCode.CANCELLED), None
    return grpc.StatusCode.UNKNOWN, error


def _code_of(context: Any) -> grpc.StatusCode:
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return grpc.StatusCode.OK if not code else grpc.StatusCode.UNKNOWN
