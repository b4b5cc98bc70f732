"""A call of every RPC, for tests of what all of them answer."""

from typing import Any

from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import response_pb2


def every_call(namespace: str) -> dict[str, Any]:
    """A request for each RPC, by its name; they are about the response `r` of the conversation `c`."""
    scope = response_pb2.Scope(namespace=namespace)
    return {
        "StoreResponse": rpc.StoreResponseRequest(
            scope=scope, response=response_pb2.Response(id="r", conversation_id="c")
        ),
        "ResolveHistory": rpc.ResolveHistoryRequest(scope=scope, conversation_id="c"),
        "GetResponse": rpc.GetResponseRequest(scope=scope, response_id="r"),
        "SetReplayExclusion": rpc.SetReplayExclusionRequest(scope=scope, response_id="r", excluded=True),
        "ListInputItems": rpc.ListInputItemsRequest(scope=scope, response_id="r"),
        "BatchGetItems": rpc.BatchGetItemsRequest(scope=scope, item_ids=["i"]),
        "ListResponses": rpc.ListResponsesRequest(scope=scope, conversation_id="c"),
        "DeleteResponse": rpc.DeleteResponseRequest(scope=scope, response_id="r"),
        "DeleteConversation": rpc.DeleteConversationRequest(scope=scope, conversation_id="c"),
        "DeleteUserData": rpc.DeleteUserDataRequest(scope=scope),
    }
