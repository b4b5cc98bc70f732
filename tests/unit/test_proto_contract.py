"""The wire contract as callers outside this repository know it: names, numbers and types.

A name or a number that has been published can never change. Adding to the contract adds a line here; a test
that fails for any other reason tells of a change that breaks callers.
"""

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from turnstore.v1 import errors_pb2, history_service_pb2, lease_pb2, replay_pb2, response_pb2

CONTRACT = """
enum ResponseStatus
    0 RESPONSE_STATUS_UNSPECIFIED
    1 RESPONSE_STATUS_QUEUED
    2 RESPONSE_STATUS_IN_PROGRESS
    3 RESPONSE_STATUS_COMPLETED
    4 RESPONSE_STATUS_INCOMPLETE
    5 RESPONSE_STATUS_CANCELLED
    6 RESPONSE_STATUS_FAILED
message Scope
    1 string namespace
    2 optional string user
message Item
    1 string id
    2 string type
    3 string json
    4 bool partial
message ResponseError
    1 string code
    2 string message
message Response
    1 string id
    2 ResponseStatus status
    3 string conversation_id
    4 string previous_response_id
    5 repeated Item input_items
    6 repeated Item output_items
    7 string payload_json
    8 ResponseError error
    9 optional bool exclude_from_replay
    10 int64 revision
    11 google.protobuf.Timestamp create_time
    12 google.protobuf.Timestamp update_time
enum TurnRule
    0 TURN_RULE_UNSPECIFIED
    1 TURN_RULE_INCLUDE
    2 TURN_RULE_SANITIZE
    3 TURN_RULE_INPUT_ONLY
    4 TURN_RULE_EXCLUDE
enum ToolItems
    0 TOOL_ITEMS_UNSPECIFIED
    1 TOOL_ITEMS_KEEP
    2 TOOL_ITEMS_PAIRED
enum LimitCut
    0 LIMIT_CUT_UNSPECIFIED
    1 LIMIT_CUT_EXACT
    2 LIMIT_CUT_WHOLE
enum ExclusionReason
    0 EXCLUSION_REASON_UNSPECIFIED
    1 EXCLUSION_REASON_FAILED
    2 EXCLUSION_REASON_EXCLUDED_BY_CALLER
    3 EXCLUSION_REASON_DELETED
    4 EXCLUSION_REASON_CANCELLED
    5 EXCLUSION_REASON_INCOMPLETE
    6 EXCLUSION_REASON_IN_FLIGHT
    7 EXCLUSION_REASON_UNPAIRED_CALL
    8 EXCLUSION_REASON_UNPAIRED_OUTPUT
    9 EXCLUSION_REASON_TIED_REASONING
    10 EXCLUSION_REASON_PENDING_REQUEST
    11 EXCLUSION_REASON_EMPTY_CONTENT
    12 EXCLUSION_REASON_DUPLICATE
    13 EXCLUSION_REASON_SPLIT_UNIT
    14 EXCLUSION_REASON_NO_CONTRIBUTOR
enum DuplicateItems
    0 DUPLICATE_ITEMS_UNSPECIFIED
    1 DUPLICATE_ITEMS_REJECT
    2 DUPLICATE_ITEMS_KEEP_FIRST
enum LimitUnit
    0 LIMIT_UNIT_UNSPECIFIED
    1 LIMIT_UNIT_ITEMS
    2 LIMIT_UNIT_TURNS
enum HistoryView
    0 HISTORY_VIEW_UNSPECIFIED
    1 HISTORY_VIEW_ITEM_IDS
    2 HISTORY_VIEW_FULL
enum ListOrder
    0 LIST_ORDER_UNSPECIFIED
    1 LIST_ORDER_ASC
    2 LIST_ORDER_DESC
message ReplayPolicy
    1 TurnRule cancelled
    2 TurnRule incomplete
    3 TurnRule in_flight
    4 ToolItems tool_items
    5 LimitCut limit_cut
message Exclusion
    1 string response_id
    2 ResponseStatus status
    3 ExclusionReason reason
    4 repeated string item_ids
message TurnLease
    1 string owner
    2 google.protobuf.Duration ttl
    3 string token
    4 bool recoverable
    5 google.protobuf.Timestamp expire_time
    6 int32 attempt
enum ErrorReason
    0 ERROR_REASON_UNSPECIFIED
    1 ERROR_REASON_RESPONSE_EXISTS
    2 ERROR_REASON_REVISION_MISMATCH
    3 ERROR_REASON_RESPONSE_FINISHED
    4 ERROR_REASON_LINK_CHANGED
    5 ERROR_REASON_DUPLICATE_ITEM
    6 ERROR_REASON_RESPONSE_NOT_FOUND
    7 ERROR_REASON_PARENT_NOT_FOUND
    8 ERROR_REASON_INVALID_FIELD
    9 ERROR_REASON_REQUEST_TOO_LARGE
    10 ERROR_REASON_NAMESPACE_DENIED
    11 ERROR_REASON_CREDENTIAL_INVALID
    12 ERROR_REASON_STORE_UNAVAILABLE
    13 ERROR_REASON_DATA_MISSING
    14 ERROR_REASON_INTERNAL_ERROR
    15 ERROR_REASON_CONVERSATION_LOCKED
    16 ERROR_REASON_LEASE_LOST
    17 ERROR_REASON_HISTORY_CHANGED
message StoreResponseRequest
    1 Scope scope
    2 Response response
    3 optional int64 expected_revision
    4 DuplicateItems duplicate_items
    5 repeated string inherited_item_ids
    6 string request_id
    7 TurnLease lease
message StoreResponseResponse
    1 Response response
message ResolveHistoryRequest
    1 Scope scope
    2 string conversation_id
    3 string previous_response_id
    4 optional int32 limit
    5 LimitUnit limit_unit
    6 HistoryView view
    7 ReplayPolicy policy
    8 repeated string answered_call_ids
    9 bool explain
    10 string page_token
    11 string before_response_id
message ResolveHistoryResponse
    1 repeated string item_ids
    2 string next_page_token
    3 repeated Item items
    4 repeated Exclusion exclusions
    5 bool ancestor_deleted
    6 bool truncated
message GetResponseRequest
    1 Scope scope
    2 string response_id
    3 string page_token
message GetResponseResponse
    1 Response response
    2 string next_page_token
message SetReplayExclusionRequest
    1 Scope scope
    2 string response_id
    3 bool excluded
message SetReplayExclusionResponse
    1 int64 revision
message DeleteResponseRequest
    1 Scope scope
    2 string response_id
message DeleteResponseResponse
    1 DeleteReceipt receipt
message DeleteReceipt
    1 int64 responses
    2 int64 items
message ListInputItemsRequest
    1 Scope scope
    2 string response_id
    3 int32 page_size
    4 string page_token
    5 ListOrder order
    6 string after
    7 string before
    8 bool include_inherited
message ListInputItemsResponse
    1 repeated Item items
    2 string next_page_token
message BatchGetItemsRequest
    1 Scope scope
    2 repeated string item_ids
    3 string conversation_id
    4 string previous_response_id
    5 string page_token
message BatchItem
    1 Item item
    2 bool found
message BatchGetItemsResponse
    1 repeated BatchItem items
    2 string next_page_token
message ListResponsesRequest
    1 Scope scope
    2 string conversation_id
    3 string previous_response_id
    4 int32 page_size
    5 string page_token
message ResponseSummary
    1 string id
    2 ResponseStatus status
    3 int64 revision
    4 google.protobuf.Timestamp create_time
    5 google.protobuf.Timestamp update_time
    6 int32 input_item_count
    7 int32 output_item_count
    8 string conversation_id
    9 string previous_response_id
    10 bool exclude_from_replay
    11 int64 place
message ListResponsesResponse
    1 repeated ResponseSummary responses
    2 string next_page_token
message DeleteConversationRequest
    1 Scope scope
    2 string conversation_id
message DeleteConversationResponse
    1 DeleteReceipt receipt
message DeleteUserDataRequest
    1 Scope scope
message DeleteUserDataResponse
    1 DeleteReceipt receipt
message RenewLeaseRequest
    1 Scope scope
    2 string response_id
    3 string token
    4 google.protobuf.Duration ttl
message RenewLeaseResponse
    1 google.protobuf.Timestamp expire_time
    2 bool cancel_requested
message ReleaseLeaseRequest
    1 Scope scope
    2 string response_id
    3 string token
message ReleaseLeaseResponse
message RequestCancelRequest
    1 Scope scope
    2 string response_id
message RequestCancelResponse
message ClaimResponsesRequest
    1 string namespace
    2 string owner
    3 google.protobuf.Duration ttl
    4 int32 max_count
    5 string request_id
message ClaimedResponse
    1 Scope scope
    2 Response response
    3 TurnLease lease
    4 map<string, string> metadata
message ClaimResponsesResponse
    1 repeated ClaimedResponse responses
message UpdateMetadataRequest
    1 Scope scope
    2 string conversation_id
    3 string response_id
    4 map<string, string> set
    5 repeated string remove
    6 string token
message UpdateMetadataResponse
    1 map<string, string> metadata
message GetMetadataRequest
    1 Scope scope
    2 string conversation_id
    3 string response_id
message GetMetadataResponse
    1 map<string, string> metadata
message StreamEvent
    1 int64 sequence
    2 string json
message AppendStreamEventsRequest
    1 Scope scope
    2 string response_id
    3 string token
    4 repeated StreamEvent events
message AppendStreamEventsResponse
    1 int64 last_sequence
message ReadStreamEventsRequest
    1 Scope scope
    2 string response_id
    3 int64 after_sequence
    4 bool follow
message ReadStreamEventsResponse
    1 StreamEvent event
service HistoryService
    StoreResponse(StoreResponseRequest) returns (StoreResponseResponse)
    ResolveHistory(ResolveHistoryRequest) returns (ResolveHistoryResponse)
    GetResponse(GetResponseRequest) returns (GetResponseResponse)
    SetReplayExclusion(SetReplayExclusionRequest) returns (SetReplayExclusionResponse)
    DeleteResponse(DeleteResponseRequest) returns (DeleteResponseResponse)
    ListInputItems(ListInputItemsRequest) returns (ListInputItemsResponse)
    BatchGetItems(BatchGetItemsRequest) returns (BatchGetItemsResponse)
    ListResponses(ListResponsesRequest) returns (ListResponsesResponse)
    DeleteConversation(DeleteConversationRequest) returns (DeleteConversationResponse)
    DeleteUserData(DeleteUserDataRequest) returns (DeleteUserDataResponse)
    RenewLease(RenewLeaseRequest) returns (RenewLeaseResponse)
    ReleaseLease(ReleaseLeaseRequest) returns (ReleaseLeaseResponse)
    RequestCancel(RequestCancelRequest) returns (RequestCancelResponse)
    ClaimResponses(ClaimResponsesRequest) returns (ClaimResponsesResponse)
    UpdateMetadata(UpdateMetadataRequest) returns (UpdateMetadataResponse)
    GetMetadata(GetMetadataRequest) returns (GetMetadataResponse)
    AppendStreamEvents(AppendStreamEventsRequest) returns (AppendStreamEventsResponse)
    ReadStreamEvents(ReadStreamEventsRequest) returns (stream ReadStreamEventsResponse)
"""

FILES = [
    FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for module in (response_pb2, replay_pb2, lease_pb2, errors_pb2, history_service_pb2)
]
SCALARS = {
    FieldDescriptorProto.TYPE_STRING: "string",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_INT32: "int32",
    FieldDescriptorProto.TYPE_INT64: "int64",
}


def type_of(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """A field's type as it is written in a .proto file."""
    name = SCALARS.get(field.type) or field.type_name.removeprefix(".turnstore.v1.").removeprefix(".")
    for entry in message.nested_type:
        if entry.options.map_entry and name == f"{message.name}.{entry.name}":
            return "map<" + ", ".join(type_of(entry, part) for part in entry.field) + ">"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def declared() -> dict[str, list[str]]:
    """The declarations of the generated modules: heading to lines."""
    found = {}
    for file in FILES:
        assert file.package == "turnstore.v1"
        for enum in file.enum_type:
            found[f"enum {enum.name}"] = [f"{value.number} {value.name}" for value in enum.value]
        for message in file.message_type:
            fields = [f"{field.number} {type_of(message, field)} {field.name}" for field in message.field]
            found[f"message {message.name}"] = fields
        for service in file.service:
            found[f"service {service.name}"] = [
                f"{method.name}({'stream ' * method.client_streaming}{method.input_type.rpartition('.')[2]}) "
                f"returns ({'stream ' * method.server_streaming}{method.output_type.rpartition('.')[2]})"
                for method in service.method
            ]
    return found


def published() -> dict[str, list[str]]:
    """The table above: heading to lines."""
    found: dict[str, list[str]] = {}
    for line in CONTRACT.strip().splitlines():
        if not line.startswith(" "):
            lines = found.setdefault(line, [])
        else:
            lines.append(line.strip())
    return found


@pytest.mark.parametrize("heading", list(published()))
def test_published_declaration_is_unchanged(heading: str) -> None:
    assert declared().get(heading) == published()[heading]


def test_every_declaration_is_in_the_table() -> None:
    assert set(declared()) - set(published()) == set()
