"""Whatever bytes come, the service answers with a code of the contract, goes on, and does not grow."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.conftest import StartService
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import replay_pb2, response_pb2

SERVICE = rpc.DESCRIPTOR.services_by_name["HistoryService"]
AT_ONCE = 16
NEVER = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
"""Codes that would say that the service itself is at fault."""
ITEMS = (
    '{"id":"i1","type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}',
    '{"type":"function_call","call_id":"k","id":"i2"}',
    '{"type":"reasoning"}',
    '{"a":[[[[]]]],"n":1e400,"s":"\\ud800"}',
    "[]",
    "{",
)


def _valid(random_: random.Random, method: str) -> bytes:
    """A request that could be one of a client's, with ids from a small set, so that calls meet each other's data."""
    request = getattr(rpc, f"{method}Request")()
    fields = request.DESCRIPTOR.fields_by_name
    name = f"r{random_.randrange(30)}"
    if "scope" in fields:
        request.scope.namespace = f"n{random_.randrange(3)}"
    if isinstance(request, rpc.StoreResponseRequest):
        response = request.response
        response.id = name
        response.status = random_.randrange(7)  # type: ignore[assignment]
        if random_.random() < 0.5:
            response.conversation_id = f"c{random_.randrange(4)}"
        elif random_.random() < 0.5:
            response.previous_response_id = f"r{random_.randrange(30)}"
        for target in (response.input_items, response.output_items):
            target.extend(
                response_pb2.Item(json=random_.choice(ITEMS[:3])) for _ in range(random_.randrange(3))
            )
        request.duplicate_items = replay_pb2.DUPLICATE_ITEMS_KEEP_FIRST
    for field in ("response_id", "before_response_id"):
        if field in fields and random_.random() < 0.7:
            setattr(request, field, name)
    if "conversation_id" in fields and random_.random() < 0.7:
        request.conversation_id = f"c{random_.randrange(4)}"
    if "item_ids" in fields:
        request.item_ids.extend(["i1", "i2"])
    if "limit" in fields and random_.random() < 0.5:
        request.limit = random_.randrange(-1, 5)
    if "explain" in fields:
        request.explain = random_.random() < 0.3
    return bytes(request.SerializeToString())


def _hostile(random_: random.Random, valid: bytes) -> bytes:
    kind = random_.random()
    if kind < 0.15 or not valid:
        return random_.randbytes(random_.randrange(200))
    data = bytearray(valid)
    if kind < 0.3:
        return bytes(data[: random_.randrange(len(data))])
    for _ in range(random_.randrange(1, 4)):
        at = random_.randrange(len(data) + 1)
        change = random_.random()
        if change < 0.5:
            data[at : at + 1] = random_.randbytes(1)
        elif change < 0.75:
            data[at:at] = random_.randbytes(random_.randrange(1, 9))
        else:
            data[at : at + random_.randrange(1, 9)] = b""
    return bytes(data) if random_.random() < 0.9 else bytes(data + data)


def _requests(count: int) -> Iterator[tuple[str, bytes]]:
    random_ = random.Random(20)
    methods = [method for method in SERVICE.methods if not method.server_streaming]
    for _ in range(count):
        method = random_.choice(methods)
        valid = _valid(random_, method.name)
        yield method.name, valid if random_.random() < 0.2 else _hostile(random_, valid)


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [1500, pytest.param(100_000, marks=pytest.mark.deep)])
async def test_hostile_bytes_get_an_answer_of_the_contract(start_service: StartService, count: int) -> None:
    service = start_service({"TURNSTORE_LOG_LEVEL": "error"}).wait_ready()
    answers: Counter[grpc.StatusCode] = Counter()
    waiting = _requests(count)
    half: list[int] = []

    async def caller(channel: grpc.aio.Channel) -> None:
        for method, data in waiting:
            call = channel.unary_unary(f"/{SERVICE.full_name}/{method}")
            try:
                await call(data, timeout=60)
                code = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                code = error.code()
            assert code not in NEVER, f"{method} answers {code.name} to {data.hex()}"
            answers[code] += 1
            if not half and answers.total() >= count // 2:
                half.append(_resident_bytes(service.process.pid))

    async with grpc.aio.insecure_channel(service.target) as channel, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(caller(channel))

    assert answers.total() == count
    assert {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND} <= answers.keys()
    assert service.process.poll() is None
    assert "Traceback" not in service.log_text()
    if count > 10_000:  # before that, caches are still being filled
        assert _resident_bytes(service.process.pid) <= 1.1 * half[0]
