"""Callers that call a service without a pause, each again as soon as it is answered, and come back when told to.

    python -m tests.rpc.steady_calls TARGET NAMESPACE CALLERS SECONDS

It prints, as JSON, the milliseconds that answered calls took and how many calls were refused.
"""

import asyncio
import json
import sys
import time

import grpc
import uvloop
from google.rpc import error_details_pb2, status_pb2

from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2

READS_PER_WRITE = 3


async def call_steadily(target: str, namespace: str, callers: int, seconds: float) -> None:
    scope = response_pb2.Scope(namespace=namespace)
    milliseconds: list[float] = []
    refused = 0
    async with grpc.aio.insecure_channel(target) as channel:
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)

        async def store(response_id: str) -> None:
            response = response_pb2.Response(
                id=response_id,
                status=response_pb2.RESPONSE_STATUS_COMPLETED,
                input_items=[response_pb2.Item(json='{"type":"message","content":"hello"}')],
            )
            await stub.StoreResponse(rpc.StoreResponseRequest(scope=scope, response=response), timeout=60)

        async def call(caller: int) -> None:
            nonlocal refused
            done = 0
            while time.monotonic() < ends:
                began = time.perf_counter()
                try:
                    if done % (READS_PER_WRITE + 1) == 0:
                        await store(f"{began}-{caller}")
                    else:
                        request = rpc.GetResponseRequest(scope=scope, response_id="first")
                        await stub.GetResponse(request, timeout=60)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    refused += 1
                    await asyncio.sleep(return_seconds(error))
                else:
                    done += 1
                    milliseconds.append((time.perf_counter() - began) * 1000)

        await store("first")
        ends = time.monotonic() + seconds
        await asyncio.gather(*(call(caller) for caller in range(callers)))
    print(json.dumps({"milliseconds": milliseconds, "refused": refused}))


def return_seconds(error: grpc.aio.AioRpcError) -> float:
    """When a refused caller is told to come back. Fails if it is not told."""
    details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    for detail in status_pb2.Status.FromString(bytes(details)).details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToTimedelta().total_seconds())
    raise AssertionError("refused without RetryInfo")


if __name__ == "__main__":
    uvloop.run(call_steadily(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
