"""Server reflection: tools can find the contract in the service itself."""

from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.service_process import service_in_process
from turnstore.v1 import history_service_pb2


async def _ask(channel: grpc.aio.Channel, **question: Any) -> reflection_pb2.ServerReflectionResponse:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**question)]))
    return await call.read()


async def test_all_services_are_listed(history_channel: grpc.aio.Channel) -> None:
    reply = await _ask(history_channel, list_services="")
    assert sorted(service.name for service in reply.list_services_response.service) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "turnstore.v1.HistoryService",
    ]


async def test_descriptor_of_the_service_is_told(history_channel: grpc.aio.Channel) -> None:
    reply = await _ask(history_channel, file_containing_symbol="turnstore.v1.HistoryService")
    told = reply.file_descriptor_response.file_descriptor_proto
    expected = descriptor_pb2.FileDescriptorProto()
    history_service_pb2.DESCRIPTOR.CopyToProto(expected)
    assert expected in [descriptor_pb2.FileDescriptorProto.FromString(file) for file in told]


async def test_reflection_can_be_switched_off(mongodb_uri: str, database_name: str) -> None:
    async with service_in_process(
        mongodb_uri=mongodb_uri, mongodb_database=database_name, reflection=False
    ) as service:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await _ask(service.channel, list_services="")
    assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
