"""From the values of this package to the messages of the wire contract, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum

from google.protobuf.timestamp_pb2 import Timestamp

from turnstore.replay import (
    DuplicateItems,
    Exclusion,
    ExclusionReason,
    History,
    HistoryView,
    LimitCut,
    LimitUnit,
    ListOrder,
    ReplayPolicy,
    ToolItems,
    TurnRule,
)
from turnstore.response import DeleteReceipt, Item, Response, ResponseFailure, ResponseStatus, ResponseSummary
from turnstore.scope import Scope
from turnstore.v1 import history_service_pb2 as pb
from turnstore.v1 import replay_pb2, response_pb2

_PREFIXES: Mapping[type[StrEnum], str] = {
    ResponseStatus: "RESPONSE_STATUS",
    TurnRule: "TURN_RULE",
    ToolItems: "TOOL_ITEMS",
    LimitCut: "LIMIT_CUT",
    LimitUnit: "LIMIT_UNIT",
    HistoryView: "HISTORY_VIEW",
    ListOrder: "LIST_ORDER",
    DuplicateItems: "DUPLICATE_ITEMS",
    ExclusionReason: "EXCLUSION_REASON",
}


def enum_name(kind: type[StrEnum], value: StrEnum | str) -> str:
    """Return the wire's name of a value, which may be given as its word: `"full"` as `HISTORY_VIEW_FULL`.

    Raises:
        ValueError: the word is none of this kind.
    """
    try:
        return f"{_PREFIXES[kind]}_{kind(value).name}"
    except ValueError:
        words = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"{value!r} is none of {words} ({kind.__name__})") from None


def scope_message(scope: Scope) -> response_pb2.Scope:
    """Return the message of a scope. A user of None stays absent: another scope than an empty one."""
    return response_pb2.Scope(namespace=scope.namespace, user=scope.user)


def policy_message(policy: ReplayPolicy) -> replay_pb2.ReplayPolicy:
    """Return the message of a policy. A field of None stays unset."""
    return replay_pb2.ReplayPolicy(
        cancelled=_set_name(TurnRule, policy.cancelled),
        incomplete=_set_name(TurnRule, policy.incomplete),
        in_flight=_set_name(TurnRule, policy.in_flight),
        tool_items=_set_name(ToolItems, policy.tool_items),
        limit_cut=_set_name(LimitCut, policy.limit_cut),
    )


def response_message(response: Response) -> response_pb2.Response:
    """Return the message that a write carries. What the service alone decides stays unset.

    An item's id and type are not sent either: the service reads them from the JSON, and refuses an id that it
    gave itself when the JSON has none.
    """
    message = response_pb2.Response(
        id=response.id,
        status=enum_name(ResponseStatus, response.status),
        conversation_id=response.conversation_id,
        previous_response_id=response.previous_response_id,
        input_items=[response_pb2.Item(json=item.json) for item in response.input_items],
        output_items=[response_pb2.Item(json=item.json) for item in response.output_items],
        payload_json=response.payload_json,
    )
    if response.exclude_from_replay is not None:
        message.exclude_from_replay = response.exclude_from_replay
    if response.error is not None:
        message.error.code = response.error.code
        message.error.message = response.error.message
    return message


def item_value(message: response_pb2.Item) -> Item:
    """Return the item that a message holds."""
    return Item(message.json, message.id, message.type, message.partial)


def response_value(message: response_pb2.Response) -> Response:
    """Return the response that a message holds."""
    return Response(
        message.id,
        _status(message.status),
        conversation_id=message.conversation_id,
        previous_response_id=message.previous_response_id,
        input_items=map(item_value, message.input_items),
        output_items=map(item_value, message.output_items),
        payload_json=message.payload_json,
        error=ResponseFailure(message.error.code, message.error.message)
        if message.HasField("error")
        else None,
        exclude_from_replay=message.exclude_from_replay if message.HasField("exclude_from_replay") else None,
        revision=message.revision,
        create_time=_time(message.create_time) if message.HasField("create_time") else None,
        update_time=_time(message.update_time) if message.HasField("update_time") else None,
    )


def joined_response(pages: Iterable[pb.GetResponseResponse]) -> Response:
    """Return the response that stands on these pages: the first has the envelope, each has the next items."""
    joined: response_pb2.Response | None = None
    for page in pages:
        if joined is None:
            joined = page.response
        else:
            joined.input_items.extend(page.response.input_items)
            joined.output_items.extend(page.response.output_items)
    return response_value(joined or response_pb2.Response())


def joined_history(pages: Iterable[pb.ResolveHistoryResponse]) -> History:
    """Return the history that stands on these pages."""
    item_ids: list[str] = []
    items: list[Item] = []
    exclusions: list[Exclusion] = []
    ancestor_deleted = truncated = False
    for page in pages:
        item_ids.extend(page.item_ids)
        items.extend(map(item_value, page.items))
        exclusions.extend(map(exclusion_value, page.exclusions))
        ancestor_deleted = ancestor_deleted or page.ancestor_deleted
        truncated = truncated or page.truncated
    return History(tuple(item_ids), tuple(items), tuple(exclusions), ancestor_deleted, truncated)


def summary_value(message: pb.ResponseSummary) -> ResponseSummary:
    """Return the turn that a message holds."""
    return ResponseSummary(
        id=message.id,
        status=_status(message.status),
        revision=message.revision,
        create_time=_time(message.create_time) if message.HasField("create_time") else None,
        update_time=_time(message.update_time) if message.HasField("update_time") else None,
        input_item_count=message.input_item_count,
        output_item_count=message.output_item_count,
        conversation_id=message.conversation_id,
        previous_response_id=message.previous_response_id,
        exclude_from_replay=message.exclude_from_replay,
        place=message.place,
    )


def exclusion_value(message: replay_pb2.Exclusion) -> Exclusion:
    """Return the exclusion that a message holds."""
    return Exclusion(
        response_id=message.response_id,
        status=_status(message.status),
        reason=_reason(message.reason),
        item_ids=tuple(message.item_ids),
    )


def receipt_value(message: pb.DeleteReceipt) -> DeleteReceipt:
    """Return the receipt that a message holds."""
    return DeleteReceipt(responses=message.responses, items=message.items)


def _set_name(kind: type[StrEnum], value: StrEnum | str | None) -> str | None:
    return None if value is None else enum_name(kind, value)


def _status(number: int) -> ResponseStatus:
    # A number that this version does not know is that of a newer service. UNSPECIFIED means "unknown".
    if number not in response_pb2.ResponseStatus.values():
        return ResponseStatus.UNSPECIFIED
    return ResponseStatus[response_pb2.ResponseStatus.Name(number).removeprefix("RESPONSE_STATUS_")]


def _reason(number: int) -> ExclusionReason:
    if number not in replay_pb2.ExclusionReason.values():
        return ExclusionReason.UNSPECIFIED
    return ExclusionReason[replay_pb2.ExclusionReason.Name(number).removeprefix("EXCLUSION_REASON_")]


def _time(message: Timestamp) -> datetime:
    return message.ToDatetime(tzinfo=UTC)
