"""The base of interceptors that do something before and after each call, whatever its kind."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc

Call = TypeVar("Call")
"""What an interceptor keeps between the beginning and the end of a call."""


class AroundCalls(grpc.aio.ServerInterceptor, Generic[Call]):
    """Calls `begin` before and `end` after the handler of every method that the server knows."""

    def __init__(self) -> None:
        # A wrapped handler for each method, since making one costs more than using it. Only methods that are
        # served get into it, so callers cannot make it grow.
        self._wrapped: dict[str, tuple[Any, Any]] = {}

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

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Gives the server the wrapped handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            self.unknown()
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
            call = self.begin(method, context)
            try:
                reply = await function(request, context)
            except BaseException as error:
                self._end_failed(call, context, error)
                raise
            self.end(call, _code_of(context), None)
            return reply

        async def stream(request: Any, context: Any) -> Any:
            call = self.begin(method, context)
            try:
                replies = function(request, context)
                if hasattr(replies, "__aiter__"):
                    async for reply in replies:
                        yield reply
                else:  # it writes its replies itself
                    await replies
            except BaseException as error:
                self._end_failed(call, context, error)
                raise
            self.end(call, _code_of(context), None)

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

    def _end_failed(self, call: Call, context: Any, error: BaseException) -> None:
        if isinstance(error, grpc.aio.AbortError):
            self.end(call, _code_of(context), None)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            # The caller went away, or the deadline passed: the library ends the handler in the same way for
            # both.
            remaining = context.time_remaining()
            passed = remaining is not None and remaining <= 0
            code = grpc.StatusCode.DEADLINE_EXCEEDED if passed else grpc.StatusCode.CANCELLED
            self.end(call, code, None)
        else:
            self.end(call, grpc.StatusCode.UNKNOWN, error)


def _code_of(context: Any) -> grpc.StatusCode:
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return grpc.StatusCode.OK if not code else grpc.StatusCode.UNKNOWN
