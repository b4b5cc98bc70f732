"""Metrics and call log around handlers of every kind and with every end, over a real channel."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import status_pb2
from grpc_status import rpc_status

from turnstore.v1 import history_service_pb2
from turnstore_service.operations.logging import note_call, request_id
from turnstore_service.operations.metrics import Metrics
from turnstore_service.rpc.interceptors.around import AroundCalls
from turnstore_service.rpc.interceptors.call_log import REQUEST_ID_KEY, CallLog
from turnstore_service.rpc.interceptors.metrics import CallMetrics

SERVICE = history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"]
Context = grpc.aio.ServicerContext


class Handlers:
    """Handlers that end in every way, under names of the service's methods."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.request_id = ""

    async def returns(self, request: bytes, _context: Context) -> bytes:
        self.request_id = request_id()
        note_call(namespace="n", response_id="r", conversation_id="")
        return request

    async def aborts(self, _request: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        raise AssertionError

    async def aborts_with_details(self, _request: bytes, context: Context) -> bytes:
        await context.abort_with_status(rpc_status.to_status(status_pb2.Status(code=14, message="away")))
        raise AssertionError

    async def sets_a_code(self, _request: bytes, context: Context) -> bytes:
        context.set_code(grpc.StatusCode.ABORTED)
        return b""

    async def raises(self, _request: bytes, _context: Context) -> bytes:
        raise ValueError("a defect")

    async def waits(self, _request: bytes, _context: Context) -> bytes:
        self.entered.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def yields(self, request: bytes, _context: Context) -> AsyncIterator[bytes]:
        note_call(namespace="stream")
        yield request
        yield request

    async def writes(self, request: bytes, context: Context) -> None:
        await context.write(request)

    async def yields_then_aborts(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        yield request
        await context.abort(grpc.StatusCode.DATA_LOSS, "the rest is gone")

    async def yields_then_waits(self, request: bytes, _context: Context) -> AsyncIterator[bytes]:
        yield request
        await asyncio.Event().wait()

    async def joins(self, requests: AsyncIterator[bytes], _context: Context) -> bytes:
        return b"".join([request async for request in requests])

    async def echoes(self, requests: AsyncIterator[bytes], _context: Context) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request


class Harness:
    """A server with metrics and call log around the handlers, a channel to it, and what they recorded."""

    def __init__(
        self, channel: grpc.aio.Channel, metrics: Metrics, handlers: Handlers, lines: list[Any]
    ) -> None:
        self.channel = channel
        self.handlers = handlers
        self._metrics = metrics
        self._lines = lines

    async def unary(self, method: str, **options: Any) -> Any:
        call = self.channel.unary_unary(_path(method))
        return await call(b"x", **options)

    async def line(self, method: str) -> dict[str, Any]:
        """The call's log line, waited for: a caller has its answer a moment before the server has ended."""
        async with asyncio.timeout(10):
            while not (found := self.lines(method)):  # noqa: ASYNC110  # the log is a list
                await asyncio.sleep(0.005)
        (line,) = found
        return line

    def lines(self, method: str) -> list[dict[str, Any]]:
        return [dict(line) for line in self._lines if line["method"] == _path(method)]

    def handled(self, method: str) -> dict[str, float]:
        """Calls of the method by code."""
        return {
            sample.labels["grpc_code"]: sample.value
            for family in self._metrics.registry.collect()
            for sample in family.samples
            if sample.name == "grpc_server_handled_total"
            and sample.labels["grpc_method"] == method
            and sample.value
        }

    def value(self, name: str, method: str) -> float:
        return sum(
            sample.value
            for family in self._metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.labels["grpc_method"] == method
        )


def _path(method: str) -> str:
    return f"/{SERVICE.full_name}/{method}"


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    handlers = Handlers()
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods = {
        "GetResponse": unary(handlers.returns),
        "DeleteResponse": unary(handlers.aborts),
        "StoreResponse": unary(handlers.aborts_with_details),
        "RenewLease": unary(handlers.sets_a_code),
        "ListResponses": unary(handlers.raises),
        "ResolveHistory": unary(handlers.waits),
        "ReadStreamEvents": stream(handlers.yields),
        "ListInputItems": stream(handlers.writes),
        "BatchGetItems": stream(handlers.yields_then_aborts),
        "GetMetadata": stream(handlers.yields_then_waits),
        "UpdateMetadata": grpc.stream_unary_rpc_method_handler(handlers.joins),
        "AppendStreamEvents": grpc.stream_stream_rpc_method_handler(handlers.echoes),
    }
    metrics = Metrics([SERVICE])
    server = grpc.aio.server(
        interceptors=[AroundCalls(CallMetrics(metrics), CallLog())], options=[("grpc.so_reuseport", 0)]
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with structlog.testing.capture_logs() as lines:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Harness(channel, metrics, handlers, lines)
        await server.stop(None)


async def test_success(harness: Harness) -> None:
    assert await harness.unary("GetResponse") == b"x"
    line = await harness.line("GetResponse")
    assert (line["event"], line["code"], line["log_level"]) == ("call", "OK", "info")
    assert (line["namespace"], line["response_id"]) == ("n", "r")
    assert "conversation_id" not in line
    assert line["ms"] > 0
    assert harness.handled("GetResponse") == {"OK": 1}
    assert harness.value("grpc_server_started_total", "GetResponse") == 1
    assert harness.value("grpc_server_handling_seconds_count", "GetResponse") == 1


@pytest.mark.parametrize(
    ("method", "code", "label", "level"),
    [
        ("DeleteResponse", grpc.StatusCode.NOT_FOUND, "NotFound", "info"),
        ("StoreResponse", grpc.StatusCode.UNAVAILABLE, "Unavailable", "warning"),
        ("RenewLease", grpc.StatusCode.ABORTED, "Aborted", "info"),
        ("ListResponses", grpc.StatusCode.UNKNOWN, "Unknown", "error"),
    ],
)
async def test_refusal(harness: Harness, method: str, code: grpc.StatusCode, label: str, level: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await harness.unary(method)
    assert refusal.value.code() is code
    line = await harness.line(method)
    assert (line["code"], line["log_level"]) == (code.name, level)
    assert harness.handled(method) == {label: 1}


async def test_defect_is_logged_with_its_error(harness: Harness) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await harness.unary("ListResponses")
    assert isinstance((await harness.line("ListResponses"))["exc_info"], ValueError)


async def test_deadline(harness: Harness) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await harness.unary("ResolveHistory", timeout=0.1)
    assert (await harness.line("ResolveHistory"))["code"] == "DEADLINE_EXCEEDED"
    assert harness.handled("ResolveHistory") == {"DeadlineExceeded": 1}


async def test_caller_that_goes_away(harness: Harness) -> None:
    call = harness.channel.unary_unary(_path("ResolveHistory"))(b"x")
    await harness.handlers.entered.wait()
    call.cancel()
    assert (await harness.line("ResolveHistory"))["code"] == "CANCELLED"
    assert harness.handled("ResolveHistory") == {"Canceled": 1}


@pytest.mark.parametrize(("method", "replies"), [("ReadStreamEvents", 2), ("ListInputItems", 1)])
async def test_stream_of_replies(harness: Harness, method: str, replies: int) -> None:
    call = harness.channel.unary_stream(_path(method))(b"x")
    assert [reply async for reply in call] == [b"x"] * replies
    assert (await harness.line(method))["code"] == "OK"
    assert harness.handled(method) == {"OK": 1}


async def test_stream_notes_reach_its_line(harness: Harness) -> None:
    async for _ in harness.channel.unary_stream(_path("ReadStreamEvents"))(b"x"):
        pass
    assert (await harness.line("ReadStreamEvents"))["namespace"] == "stream"


async def test_stream_that_is_refused_half_way(harness: Harness) -> None:
    call = harness.channel.unary_stream(_path("BatchGetItems"))(b"x")
    assert await call.read() == b"x"
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    assert (await harness.line("BatchGetItems"))["code"] == "DATA_LOSS"
    assert harness.handled("BatchGetItems") == {"DataLoss": 1}


async def test_stream_whose_reader_goes_away(harness: Harness) -> None:
    call = harness.channel.unary_stream(_path("GetMetadata"))(b"x")
    assert await call.read() == b"x"
    call.cancel()
    assert (await harness.line("GetMetadata"))["code"] == "CANCELLED"
    assert harness.handled("GetMetadata") == {"Canceled": 1}


async def test_stream_of_requests(harness: Harness) -> None:
    assert await harness.channel.stream_unary(_path("UpdateMetadata"))(iter([b"a", b"b"])) == b"ab"
    assert (await harness.line("UpdateMetadata"))["code"] == "OK"
    assert harness.handled("UpdateMetadata") == {"OK": 1}


async def test_stream_both_ways(harness: Harness) -> None:
    call = harness.channel.stream_stream(_path("AppendStreamEvents"))(iter([b"a", b"b"]))
    assert [reply async for reply in call] == [b"a", b"b"]
    assert (await harness.line("AppendStreamEvents"))["code"] == "OK"
    assert harness.handled("AppendStreamEvents") == {"OK": 1}


async def test_unknown_methods_share_one_series(harness: Harness) -> None:
    for method in ("Nonsense", "MoreNonsense"):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await harness.unary(method)
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert harness.handled("unknown") == {"Unimplemented": 2}
    assert harness.value("grpc_server_started_total", "unknown") == 2


async def test_request_id_is_made_and_logged(harness: Harness) -> None:
    await harness.unary("GetResponse")
    made = harness.handlers.request_id
    assert len(made) == 32
    assert (await harness.line("GetResponse"))["request_id"] == made


@pytest.mark.parametrize("given", ["req-1", "01HZX:9/a+b=c@d.e_f", "x" * 128])
async def test_request_id_of_the_caller_is_taken(harness: Harness, given: str) -> None:
    await harness.unary("GetResponse", metadata=((REQUEST_ID_KEY, given),))
    assert harness.handlers.request_id == given
    assert (await harness.line("GetResponse"))["request_id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "two words", 'say "hi"', "<script>"])
async def test_request_id_that_is_not_sane_is_replaced(harness: Harness, given: str) -> None:
    await harness.unary("GetResponse", metadata=((REQUEST_ID_KEY, given),))
    made = harness.handlers.request_id
    assert len(made) == 32
    assert (await harness.line("GetResponse"))["request_id"] == made


async def test_lines_of_calls_at_one_time_do_not_mix(harness: Harness) -> None:
    replies = await asyncio.gather(
        *(
            harness.channel.unary_unary(_path("GetResponse"))(b"x", metadata=((REQUEST_ID_KEY, f"r-{n}"),))
            for n in range(50)
        )
    )
    assert replies == [b"x"] * 50
    assert harness.handled("GetResponse") == {"OK": 50}
    assert {line["request_id"] for line in harness.lines("GetResponse")} == {f"r-{n}" for n in range(50)}
