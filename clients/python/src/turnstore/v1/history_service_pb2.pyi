from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from turnstore.v1 import lease_pb2 as _lease_pb2
from turnstore.v1 import replay_pb2 as _replay_pb2
from turnstore.v1 import response_pb2 as _response_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoreResponseRequest(_message.Message):
    __slots__ = ("scope", "response", "expected_revision", "duplicate_items", "inherited_item_ids", "request_id", "lease")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    INHERITED_ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response: _response_pb2.Response
    expected_revision: int
    duplicate_items: _replay_pb2.DuplicateItems
    inherited_item_ids: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    lease: _lease_pb2.TurnLease
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., expected_revision: _Optional[int] = ..., duplicate_items: _Optional[_Union[_replay_pb2.DuplicateItems, str]] = ..., inherited_item_ids: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., lease: _Optional[_Union[_lease_pb2.TurnLease, _Mapping]] = ...) -> None: ...

class StoreResponseResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: _response_pb2.Response
    def __init__(self, response: _Optional[_Union[_response_pb2.Response, _Mapping]] = ...) -> None: ...

class ResolveHistoryRequest(_message.Message):
    __slots__ = ("scope", "conversation_id", "previous_response_id", "limit", "limit_unit", "view", "policy", "answered_call_ids", "explain", "page_token", "before_response_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_UNIT_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_CALL_IDS_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BEFORE_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    conversation_id: str
    previous_response_id: str
    limit: int
    limit_unit: _replay_pb2.LimitUnit
    view: _replay_pb2.HistoryView
    policy: _replay_pb2.ReplayPolicy
    answered_call_ids: _containers.RepeatedScalarFieldContainer[str]
    explain: bool
    page_token: str
    before_response_id: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., conversation_id: _Optional[str] = ..., previous_response_id: _Optional[str] = ..., limit: _Optional[int] = ..., limit_unit: _Optional[_Union[_replay_pb2.LimitUnit, str]] = ..., view: _Optional[_Union[_replay_pb2.HistoryView, str]] = ..., policy: _Optional[_Union[_replay_pb2.ReplayPolicy, _Mapping]] = ..., answered_call_ids: _Optional[_Iterable[str]] = ..., explain: bool = ..., page_token: _Optional[str] = ..., before_response_id: _Optional[str] = ...) -> None: ...

class ResolveHistoryResponse(_message.Message):
    __slots__ = ("item_ids", "next_page_token", "items", "exclusions", "ancestor_deleted", "truncated")
    ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIONS_FIELD_NUMBER: _ClassVar[int]
    ANCESTOR_DELETED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    item_ids: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    items: _containers.RepeatedCompositeFieldContainer[_response_pb2.Item]
    exclusions: _containers.RepeatedCompositeFieldContainer[_replay_pb2.Exclusion]
    ancestor_deleted: bool
    truncated: bool
    def __init__(self, item_ids: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ..., items: _Optional[_Iterable[_Union[_response_pb2.Item, _Mapping]]] = ..., exclusions: _Optional[_Iterable[_Union[_replay_pb2.Exclusion, _Mapping]]] = ..., ancestor_deleted: bool = ..., truncated: bool = ...) -> None: ...

class GetResponseRequest(_message.Message):
    __slots__ = ("scope", "response_id", "page_token")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response_id: str
    page_token: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response_id: _Optional[str] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetResponseResponse(_message.Message):
    __slots__ = ("response", "next_page_token")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    response: _response_pb2.Response
    next_page_token: str
    def __init__(self, response: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class SetReplayExclusionRequest(_message.Message):
    __slots__ = ("scope", "response_id", "excluded")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response_id: str
    excluded: bool
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response_id: _Optional[str] = ..., excluded: bool = ...) -> None: ...

class SetReplayExclusionResponse(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class DeleteResponseRequest(_message.Message):
    __slots__ = ("scope", "response_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response_id: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response_id: _Optional[str] = ...) -> None: ...

class DeleteResponseResponse(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: DeleteReceipt
    def __init__(self, receipt: _Optional[_Union[DeleteReceipt, _Mapping]] = ...) -> None: ...

class DeleteReceipt(_message.Message):
    __slots__ = ("responses", "items")
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    responses: int
    items: int
    def __init__(self, responses: _Optional[int] = ..., items: _Optional[int] = ...) -> None: ...

class ListInputItemsRequest(_message.Message):
    __slots__ = ("scope", "response_id", "page_size", "page_token", "order", "after", "before", "include_inherited")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_INHERITED_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response_id: str
    page_size: int
    page_token: str
    order: _replay_pb2.ListOrder
    after: str
    before: str
    include_inherited: bool
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., order: _Optional[_Union[_replay_pb2.ListOrder, str]] = ..., after: _Optional[str] = ..., before: _Optional[str] = ..., include_inherited: bool = ...) -> None: ...

class ListInputItemsResponse(_message.Message):
    __slots__ = ("items", "next_page_token")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[_response_pb2.Item]
    next_page_token: str
    def __init__(self, items: _Optional[_Iterable[_Union[_response_pb2.Item, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class BatchGetItemsRequest(_message.Message):
    __slots__ = ("scope", "item_ids", "conversation_id", "previous_response_id", "page_token")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    item_ids: _containers.RepeatedScalarFieldContainer[str]
    conversation_id: str
    previous_response_id: str
    page_token: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., item_ids: _Optional[_Iterable[str]] = ..., conversation_id: _Optional[str] = ..., previous_response_id: _Optional[str] = ..., page_token: _Optional[str] = ...) -> None: ...

class BatchItem(_message.Message):
    __slots__ = ("item", "found")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    item: _response_pb2.Item
    found: bool
    def __init__(self, item: _Optional[_Union[_response_pb2.Item, _Mapping]] = ..., found: bool = ...) -> None: ...

class BatchGetItemsResponse(_message.Message):
    __slots__ = ("items", "next_page_token")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[BatchItem]
    next_page_token: str
    def __init__(self, items: _Optional[_Iterable[_Union[BatchItem, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListResponsesRequest(_message.Message):
    __slots__ = ("scope", "conversation_id", "previous_response_id", "page_size", "page_token")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    conversation_id: str
    previous_response_id: str
    page_size: int
    page_token: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., conversation_id: _Optional[str] = ..., previous_response_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ResponseSummary(_message.Message):
    __slots__ = ("id", "status", "revision", "create_time", "update_time", "input_item_count", "output_item_count", "conversation_id", "previous_response_id", "exclude_from_replay", "place")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    INPUT_ITEM_COUNT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ITEM_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FROM_REPLAY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: _response_pb2.ResponseStatus
    revision: int
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    input_item_count: int
    output_item_count: int
    conversation_id: str
    previous_response_id: str
    exclude_from_replay: bool
    place: int
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[_response_pb2.ResponseStatus, str]] = ..., revision: _Optional[int] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., input_item_count: _Optional[int] = ..., output_item_count: _Optional[int] = ..., conversation_id: _Optional[str] = ..., previous_response_id: _Optional[str] = ..., exclude_from_replay: bool = ..., place: _Optional[int] = ...) -> None: ...

class ListResponsesResponse(_message.Message):
    __slots__ = ("responses", "next_page_token")
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[ResponseSummary]
    next_page_token: str
    def __init__(self, responses: _Optional[_Iterable[_Union[ResponseSummary, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteConversationRequest(_message.Message):
    __slots__ = ("scope", "conversation_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    conversation_id: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., conversation_id: _Optional[str] = ...) -> None: ...

class DeleteConversationResponse(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: DeleteReceipt
    def __init__(self, receipt: _Optional[_Union[DeleteReceipt, _Mapping]] = ...) -> None: ...

class DeleteUserDataRequest(_message.Message):
    __slots__ = ("scope",)
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ...) -> None: ...

class DeleteUserDataResponse(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: DeleteReceipt
    def __init__(self, receipt: _Optional[_Union[DeleteReceipt, _Mapping]] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("scope", "response_id", "token", "ttl")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response_id: str
    token: str
    ttl: _duration_pb2.Duration
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response_id: _Optional[str] = ..., token: _Optional[str] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("expire_time", "cancel_requested")
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    expire_time: _timestamp_pb2.Timestamp
    cancel_requested: bool
    def __init__(self, expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., cancel_requested: bool = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("scope", "response_id", "token")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response_id: str
    token: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response_id: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class ReleaseLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequestCancelRequest(_message.Message):
    __slots__ = ("scope", "response_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response_id: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response_id: _Optional[str] = ...) -> None: ...

class RequestCancelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClaimResponsesRequest(_message.Message):
    __slots__ = ("namespace", "owner", "ttl", "max_count", "request_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    owner: str
    ttl: _duration_pb2.Duration
    max_count: int
    request_id: str
    def __init__(self, namespace: _Optional[str] = ..., owner: _Optional[str] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_count: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class ClaimedResponse(_message.Message):
    __slots__ = ("scope", "response", "lease", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response: _response_pb2.Response
    lease: _lease_pb2.TurnLease
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response: _Optional[_Union[_response_pb2.Response, _Mapping]] = ..., lease: _Optional[_Union[_lease_pb2.TurnLease, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ClaimResponsesResponse(_message.Message):
    __slots__ = ("responses",)
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedCompositeFieldContainer[ClaimedResponse]
    def __init__(self, responses: _Optional[_Iterable[_Union[ClaimedResponse, _Mapping]]] = ...) -> None: ...

class UpdateMetadataRequest(_message.Message):
    __slots__ = ("scope", "conversation_id", "response_id", "set", "remove", "token")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    conversation_id: str
    response_id: str
    set: _containers.ScalarMap[str, str]
    remove: _containers.RepeatedScalarFieldContainer[str]
    token: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., conversation_id: _Optional[str] = ..., response_id: _Optional[str] = ..., set: _Optional[_Mapping[str, str]] = ..., remove: _Optional[_Iterable[str]] = ..., token: _Optional[str] = ...) -> None: ...

class UpdateMetadataResponse(_message.Message):
    __slots__ = ("metadata",)
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    METADATA_FIELD_NUMBER: _ClassVar[int]
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetMetadataRequest(_message.Message):
    __slots__ = ("scope", "conversation_id", "response_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    conversation_id: str
    response_id: str
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., conversation_id: _Optional[str] = ..., response_id: _Optional[str] = ...) -> None: ...

class GetMetadataResponse(_message.Message):
    __slots__ = ("metadata",)
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    METADATA_FIELD_NUMBER: _ClassVar[int]
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StreamEvent(_message.Message):
    __slots__ = ("sequence", "json")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    json: str
    def __init__(self, sequence: _Optional[int] = ..., json: _Optional[str] = ...) -> None: ...

class AppendStreamEventsRequest(_message.Message):
    __slots__ = ("scope", "response_id", "token", "events")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response_id: str
    token: str
    events: _containers.RepeatedCompositeFieldContainer[StreamEvent]
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response_id: _Optional[str] = ..., token: _Optional[str] = ..., events: _Optional[_Iterable[_Union[StreamEvent, _Mapping]]] = ...) -> None: ...

class AppendStreamEventsResponse(_message.Message):
    __slots__ = ("last_sequence",)
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    last_sequence: int
    def __init__(self, last_sequence: _Optional[int] = ...) -> None: ...

class ReadStreamEventsRequest(_message.Message):
    __slots__ = ("scope", "response_id", "after_sequence", "follow")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    scope: _response_pb2.Scope
    response_id: str
    after_sequence: int
    follow: bool
    def __init__(self, scope: _Optional[_Union[_response_pb2.Scope, _Mapping]] = ..., response_id: _Optional[str] = ..., after_sequence: _Optional[int] = ..., follow: bool = ...) -> None: ...

class ReadStreamEventsResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: StreamEvent
    def __init__(self, event: _Optional[_Union[StreamEvent, _Mapping]] = ...) -> None: ...
