"""The calls of the wire contract that this client makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from turnstore.endpoint import HISTORY_SERVICE
from turnstore.v1 import history_service_pb2 as pb

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Request, Reply]):
    """One call: its path, and the messages that go there and back."""

    path: str
    """The path on the wire."""

    request: type[Request]
    """The message that it takes."""

    reply: type[Reply]
    """The message that it answers with."""


def _rpc(name: str, request: type[Request], reply: type[Reply]) -> Rpc[Request, Reply]:
    return Rpc(f"/{HISTORY_SERVICE}/{name}", request, reply)


STORE_RESPONSE = _rpc("StoreResponse", pb.StoreResponseRequest, pb.StoreResponseResponse)
RESOLVE_HISTORY = _rpc("ResolveHistory", pb.ResolveHistoryRequest, pb.ResolveHistoryResponse)
GET_RESPONSE = _rpc("GetResponse", pb.GetResponseRequest, pb.GetResponseResponse)
SET_REPLAY_EXCLUSION = _rpc("SetReplayExclusion", pb.SetReplayExclusionRequest, pb.SetReplayExclusionResponse)
DELETE_RESPONSE = _rpc("DeleteResponse", pb.DeleteResponseRequest, pb.DeleteResponseResponse)
LIST_INPUT_ITEMS = _rpc("ListInputItems", pb.ListInputItemsRequest, pb.ListInputItemsResponse)
BATCH_GET_ITEMS = _rpc("BatchGetItems", pb.BatchGetItemsRequest, pb.BatchGetItemsResponse)
LIST_RESPONSES = _rpc("ListResponses", pb.ListResponsesRequest, pb.ListResponsesResponse)
DELETE_CONVERSATION = _rpc("DeleteConversation", pb.DeleteConversationRequest, pb.DeleteConversationResponse)
DELETE_USER_DATA = _rpc("DeleteUserData", pb.DeleteUserDataRequest, pb.DeleteUserDataResponse)

# The health protocol's request is a message with a text in field 1, its reply one with an enum there. These
# two well-known messages have the same bytes, which spares the client a package for one call.
CHECK_HEALTH = Rpc("/grpc.health.v1.Health/Check", StringValue, Int32Value)
