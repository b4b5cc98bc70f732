from turnstore.v1 import response_pb2 as _response_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TurnRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TURN_RULE_UNSPECIFIED: _ClassVar[TurnRule]
    TURN_RULE_INCLUDE: _ClassVar[TurnRule]
    TURN_RULE_SANITIZE: _ClassVar[TurnRule]
    TURN_RULE_INPUT_ONLY: _ClassVar[TurnRule]
    TURN_RULE_EXCLUDE: _ClassVar[TurnRule]

class ToolItems(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_ITEMS_UNSPECIFIED: _ClassVar[ToolItems]
    TOOL_ITEMS_KEEP: _ClassVar[ToolItems]
    TOOL_ITEMS_PAIRED: _ClassVar[ToolItems]

class LimitCut(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIMIT_CUT_UNSPECIFIED: _ClassVar[LimitCut]
    LIMIT_CUT_EXACT: _ClassVar[LimitCut]
    LIMIT_CUT_WHOLE: _ClassVar[LimitCut]

class ExclusionReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXCLUSION_REASON_UNSPECIFIED: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_FAILED: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_EXCLUDED_BY_CALLER: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_DELETED: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_CANCELLED: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_INCOMPLETE: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_IN_FLIGHT: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_UNPAIRED_CALL: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_UNPAIRED_OUTPUT: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_TIED_REASONING: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_PENDING_REQUEST: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_EMPTY_CONTENT: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_DUPLICATE: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_SPLIT_UNIT: _ClassVar[ExclusionReason]
    EXCLUSION_REASON_NO_CONTRIBUTOR: _ClassVar[ExclusionReason]

class DuplicateItems(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DUPLICATE_ITEMS_UNSPECIFIED: _ClassVar[DuplicateItems]
    DUPLICATE_ITEMS_REJECT: _ClassVar[DuplicateItems]
    DUPLICATE_ITEMS_KEEP_FIRST: _ClassVar[DuplicateItems]

class LimitUnit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIMIT_UNIT_UNSPECIFIED: _ClassVar[LimitUnit]
    LIMIT_UNIT_ITEMS: _ClassVar[LimitUnit]
    LIMIT_UNIT_TURNS: _ClassVar[LimitUnit]

class HistoryView(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HISTORY_VIEW_UNSPECIFIED: _ClassVar[HistoryView]
    HISTORY_VIEW_ITEM_IDS: _ClassVar[HistoryView]
    HISTORY_VIEW_FULL: _ClassVar[HistoryView]

class ListOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIST_ORDER_UNSPECIFIED: _ClassVar[ListOrder]
    LIST_ORDER_ASC: _ClassVar[ListOrder]
    LIST_ORDER_DESC: _ClassVar[ListOrder]
TURN_RULE_UNSPECIFIED: TurnRule
TURN_RULE_INCLUDE: TurnRule
TURN_RULE_SANITIZE: TurnRule
TURN_RULE_INPUT_ONLY: TurnRule
TURN_RULE_EXCLUDE: TurnRule
TOOL_ITEMS_UNSPECIFIED: ToolItems
TOOL_ITEMS_KEEP: ToolItems
TOOL_ITEMS_PAIRED: ToolItems
LIMIT_CUT_UNSPECIFIED: LimitCut
LIMIT_CUT_EXACT: LimitCut
LIMIT_CUT_WHOLE: LimitCut
EXCLUSION_REASON_UNSPECIFIED: ExclusionReason
EXCLUSION_REASON_FAILED: ExclusionReason
EXCLUSION_REASON_EXCLUDED_BY_CALLER: ExclusionReason
EXCLUSION_REASON_DELETED: ExclusionReason
EXCLUSION_REASON_CANCELLED: ExclusionReason
EXCLUSION_REASON_INCOMPLETE: ExclusionReason
EXCLUSION_REASON_IN_FLIGHT: ExclusionReason
EXCLUSION_REASON_UNPAIRED_CALL: ExclusionReason
EXCLUSION_REASON_UNPAIRED_OUTPUT: ExclusionReason
EXCLUSION_REASON_TIED_REASONING: ExclusionReason
EXCLUSION_REASON_PENDING_REQUEST: ExclusionReason
EXCLUSION_REASON_EMPTY_CONTENT: ExclusionReason
EXCLUSION_REASON_DUPLICATE: ExclusionReason
EXCLUSION_REASON_SPLIT_UNIT: ExclusionReason
EXCLUSION_REASON_NO_CONTRIBUTOR: ExclusionReason
DUPLICATE_ITEMS_UNSPECIFIED: DuplicateItems
DUPLICATE_ITEMS_REJECT: DuplicateItems
DUPLICATE_ITEMS_KEEP_FIRST: DuplicateItems
LIMIT_UNIT_UNSPECIFIED: LimitUnit
LIMIT_UNIT_ITEMS: LimitUnit
LIMIT_UNIT_TURNS: LimitUnit
HISTORY_VIEW_UNSPECIFIED: HistoryView
HISTORY_VIEW_ITEM_IDS: HistoryView
HISTORY_VIEW_FULL: HistoryView
LIST_ORDER_UNSPECIFIED: ListOrder
LIST_ORDER_ASC: ListOrder
LIST_ORDER_DESC: ListOrder

class ReplayPolicy(_message.Message):
    __slots__ = ("cancelled", "incomplete", "in_flight", "tool_items", "limit_cut")
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    TOOL_ITEMS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_CUT_FIELD_NUMBER: _ClassVar[int]
    cancelled: TurnRule
    incomplete: TurnRule
    in_flight: TurnRule
    tool_items: ToolItems
    limit_cut: LimitCut
    def __init__(self, cancelled: _Optional[_Union[TurnRule, str]] = ..., incomplete: _Optional[_Union[TurnRule, str]] = ..., in_flight: _Optional[_Union[TurnRule, str]] = ..., tool_items: _Optional[_Union[ToolItems, str]] = ..., limit_cut: _Optional[_Union[LimitCut, str]] = ...) -> None: ...

class Exclusion(_message.Message):
    __slots__ = ("response_id", "status", "reason", "item_ids")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    status: _response_pb2.ResponseStatus
    reason: ExclusionReason
    item_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, response_id: _Optional[str] = ..., status: _Optional[_Union[_response_pb2.ResponseStatus, str]] = ..., reason: _Optional[_Union[ExclusionReason, str]] = ..., item_ids: _Optional[_Iterable[str]] = ...) -> None: ...
