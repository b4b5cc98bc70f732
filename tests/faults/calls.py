"""Calls as messages, and refusals as they are told: what the tests of errors share."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from turnstore.v1 import errors_pb2, history_service_pb2_grpc, response_pb2
from turnstore.v1 import history_service_pb2 as rpc

DETAILS = "grpc-status-details-bin"
SERVICE = "turnstore.v1.HistoryService"
SECONDS = 60.0
KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Refusal:
    """A refused call. Holds what is true of every refusal."""

    code: str
    reason: str
    fields: tuple[str, ...]
    """Of the field violations."""
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    retry_seconds: float | None = None


def refusal(error: Any) -> Refusal:
    """What an error tells, held to the form that all errors of the service have."""
    code = error.code().name
    trailers = [value for key, value in error.trailing_metadata() or () if key == DETAILS]
    assert len(trailers) == 1, f"{code} ({error.details()}) has {len(trailers)} details"
    status = status_pb2.Status.FromString(bytes(trailers[0]))
    assert (status.code, status.message) == (error.code().value[0], error.details())
    infos, violations, retries = [], [], []
    for detail in status.details:
        info, bad, retry = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.BadRequest(),
            error_details_pb2.RetryInfo(),
        )
        if detail.Unpack(info):
            infos.append(info)
        elif detail.Unpack(bad):
            violations.extend(bad.field_violations)
        elif detail.Unpack(retry):
            retries.append(retry.retry_delay.ToTimedelta().total_seconds())
        else:
            raise AssertionError(f"{code} has a {detail.TypeName()}")
    assert len(infos) == 1, f"{code} has {len(infos)} ErrorInfo"
    (info,) = infos
    assert info.domain == "turnstore"
    assert f"ERROR_REASON_{info.reason}" in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name
    assert bool(violations) == (code == "INVALID_ARGUMENT")
    assert all(violation.description for violation in violations)
    if code in ("UNAVAILABLE", "ABORTED"):
        assert retries, f"{code} does not say when to come back"
    return Refusal(
        code,
        info.reason,
        tuple(violation.field for violation in violations),
        status.message,
        dict(info.metadata),
        retries[0] if retries else None,
    )


class Caller:
    """Makes calls over a channel; a refusal is a value like another."""

    def __init__(self, channel: grpc.aio.Channel, namespace: str = "tests") -> None:
        self.channel = channel
        self.stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        self.scope = response_pb2.Scope(namespace=namespace)

    async def call(self, method: str, request: Any) -> Any:
        """The reply, or the Refusal."""
        try:
            return await getattr(self.stub, method)(request, timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            return refusal(error)

    async def send(self, method: str, data: bytes) -> Any:
        """The same for bytes that may be no message at all."""
        try:
            return await self.channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            return refusal(error)

    async def pages(self, method: str, request: Any) -> AsyncIterator[Any]:
        """The pages of a reply, each held to the reply limit of any client."""
        while True:
            reply = await self.call(method, request)
            yield reply
            if isinstance(reply, Refusal) or not reply.next_page_token:
                return
            assert reply.next_page_token != request.page_token
            request.page_token = reply.next_page_token

    async def store(self, response_id: str, **fields: Any) -> Any:
        """Stores a response whose items are JSON texts."""
        extra = {name: fields.pop(name) for name in ("expected_revision", "request_id") if name in fields}
        for part in ("input_items", "output_items"):
            fields[part] = [response_pb2.Item(json=text) for text in fields.get(part, ())]
        fields.setdefault("status", response_pb2.RESPONSE_STATUS_COMPLETED)
        response = response_pb2.Response(id=response_id, **fields)
        return await self.call(
            "StoreResponse", rpc.StoreResponseRequest(scope=self.scope, response=response, **extra)
        )


def item(item_id: str, size: int = 0) -> str:
    """A message whose JSON has exactly so many bytes, if that is not too few."""
    head = json.dumps({"id": item_id, "type": "message", "role": "user", "content": ""})
    return head[:-2] + "x" * (size - len(head)) + head[-2:]
