from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResponseStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESPONSE_STATUS_UNSPECIFIED: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_QUEUED: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_IN_PROGRESS: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_COMPLETED: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_INCOMPLETE: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_CANCELLED: _ClassVar[ResponseStatus]
    RESPONSE_STATUS_FAILED: _ClassVar[ResponseStatus]
RESPONSE_STATUS_UNSPECIFIED: ResponseStatus
RESPONSE_STATUS_QUEUED: ResponseStatus
RESPONSE_STATUS_IN_PROGRESS: ResponseStatus
RESPONSE_STATUS_COMPLETED: ResponseStatus
RESPONSE_STATUS_INCOMPLETE: ResponseStatus
RESPONSE_STATUS_CANCELLED: ResponseStatus
RESPONSE_STATUS_FAILED: ResponseStatus

class Scope(_message.Message):
    __slots__ = ("namespace", "user")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    user: str
    def __init__(self, namespace: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("id", "type", "json", "partial")
    ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    id: str
    type: str
    json: str
    partial: bool
    def __init__(self, id: _Optional[str] = ..., type: _Optional[str] = ..., json: _Optional[str] = ..., partial: bool = ...) -> None: ...

class ResponseError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("id", "status", "conversation_id", "previous_response_id", "input_items", "output_items", "payload_json", "error", "exclude_from_replay", "revision", "create_time", "update_time")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_ITEMS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ITEMS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FROM_REPLAY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: ResponseStatus
    conversation_id: str
    previous_response_id: str
    input_items: _containers.RepeatedCompositeFieldContainer[Item]
    output_items: _containers.RepeatedCompositeFieldContainer[Item]
    payload_json: str
    error: ResponseError
    exclude_from_replay: bool
    revision: int
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[ResponseStatus, str]] = ..., conversation_id: _Optional[str] = ..., previous_response_id: _Optional[str] = ..., input_items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., output_items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., payload_json: _Optional[str] = ..., error: _Optional[_Union[ResponseError, _Mapping]] = ..., exclude_from_replay: bool = ..., revision: _Optional[int] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
