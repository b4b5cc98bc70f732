from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_RESPONSE_EXISTS: _ClassVar[ErrorReason]
    ERROR_REASON_REVISION_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_RESPONSE_FINISHED: _ClassVar[ErrorReason]
    ERROR_REASON_LINK_CHANGED: _ClassVar[ErrorReason]
    ERROR_REASON_DUPLICATE_ITEM: _ClassVar[ErrorReason]
    ERROR_REASON_RESPONSE_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_PARENT_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_REQUEST_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_NAMESPACE_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_CREDENTIAL_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_DATA_MISSING: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL_ERROR: _ClassVar[ErrorReason]
    ERROR_REASON_CONVERSATION_LOCKED: _ClassVar[ErrorReason]
    ERROR_REASON_LEASE_LOST: _ClassVar[ErrorReason]
    ERROR_REASON_HISTORY_CHANGED: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_RESPONSE_EXISTS: ErrorReason
ERROR_REASON_REVISION_MISMATCH: ErrorReason
ERROR_REASON_RESPONSE_FINISHED: ErrorReason
ERROR_REASON_LINK_CHANGED: ErrorReason
ERROR_REASON_DUPLICATE_ITEM: ErrorReason
ERROR_REASON_RESPONSE_NOT_FOUND: ErrorReason
ERROR_REASON_PARENT_NOT_FOUND: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_REQUEST_TOO_LARGE: ErrorReason
ERROR_REASON_NAMESPACE_DENIED: ErrorReason
ERROR_REASON_CREDENTIAL_INVALID: ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: ErrorReason
ERROR_REASON_DATA_MISSING: ErrorReason
ERROR_REASON_INTERNAL_ERROR: ErrorReason
ERROR_REASON_CONVERSATION_LOCKED: ErrorReason
ERROR_REASON_LEASE_LOST: ErrorReason
ERROR_REASON_HISTORY_CHANGED: ErrorReason
