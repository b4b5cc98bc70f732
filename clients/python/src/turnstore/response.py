"""What is stored: responses (turns of an agent) and their items."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any


class ResponseStatus(StrEnum):
    """The state of a response. COMPLETED, INCOMPLETE, CANCELLED and FAILED are final once stored."""

    UNSPECIFIED = "unspecified"
    """Unknown. Replays like COMPLETED and is not final."""

    QUEUED = "queued"
    """Accepted, not begun yet."""

    IN_PROGRESS = "in_progress"
    """Running."""

    COMPLETED = "completed"
    """Ended as intended."""

    INCOMPLETE = "incomplete"
    """Ended early, for example at a token limit. Its output items come back with `partial` set."""

    CANCELLED = "cancelled"
    """Stopped by the caller. Its output items come back with `partial` set."""

    FAILED = "failed"
    """Failed. Contributes nothing of its own to any history, its input included; it stays readable."""


def json_text(value: str | Mapping[str, Any]) -> str:
    """Return a JSON object as text: a text as it stands, anything else written in compact form.

    Raises:
        ValueError: the value holds a number that JSON has no text for (NaN, an infinity).
        TypeError: the value is no mapping and no text, or holds something that JSON does not know.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"a JSON object is given as a dict or as its text, not as {type(value).__name__}")
    text = json_module.dumps(dict(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form. As an escape it is plain JSON.
        return json_module.dumps(dict(value), allow_nan=False, separators=(",", ":"))
    return text


@dataclass(frozen=True, init=False)
class Item:
    """One JSON object of a turn: a message, a tool call, its output, a reasoning block, an approval.

    Made from a dict or from JSON text: `Item({"type": "message", ...})`. A text comes back byte for byte.
    """

    json: str
    """The item as JSON text, at most 16 MiB. Empty where the service names an item without its body: in the
    answer to a write, and for an id of a snapshot whose body was never stored."""

    id: str
    """The item's id, as the service read it from the JSON or gave it. Empty on an item that was not stored
    yet. Ignored in a write: there the id in the JSON counts."""

    type: str
    """The item's `type`, as the service read it. Empty when it has none. Ignored in a write."""

    partial: bool
    """True for an output item of a cancelled or incomplete response. Ignored in a write."""

    def __init__(
        self, json: str | Mapping[str, Any], id: str = "", type: str = "", partial: bool = False
    ) -> None:
        set_field = object.__setattr__
        set_field(self, "json", json_text(json))
        set_field(self, "id", id)
        set_field(self, "type", type)
        set_field(self, "partial", partial)

    @cached_property
    def data(self) -> dict[str, Any]:
        """The item as a dict, parsed at the first use. Read it only: `json` is what counts.

        Raises:
            ValueError: the item came without its body, or holds an integer too long for Python to read
                (`sys.set_int_max_str_digits`).
        """
        if not self.json:
            raise ValueError(f"the item {self.id!r} came without its body")
        data: dict[str, Any] = json_module.loads(self.json)
        return data


ItemLike = Item | str | Mapping[str, Any]
"""What is taken as an item: an `Item`, a dict, or JSON text."""


@dataclass(frozen=True, slots=True)
class ResponseFailure:
    """Why a response failed, in the words of whoever ran it. Opaque to the service."""

    code: str = ""
    """A short code, for example `server_error`."""

    message: str = ""
    """A sentence for people."""


@dataclass(frozen=True, init=False)
class Response:
    """One turn of an agent: an envelope with a status, the items it was given and the items it produced.

    Items may be given as dicts, as JSON text or as `Item`, the payload as a dict or as text, the status as a
    `ResponseStatus` or as its word (`"completed"`).
    """

    id: str
    """The response's id, 1 to 256 characters, unique within the scope."""

    status: ResponseStatus
    """The status. Of a response that was read: as it counts now."""

    conversation_id: str
    """The conversation it belongs to, or empty. Never changes once stored; empty in an update means "as
    stored". Not together with `previous_response_id`."""

    previous_response_id: str
    """The response that this one follows, or empty. Never changes once stored, like `conversation_id`."""

    input_items: tuple[Item, ...]
    """What the turn was given, in order. Empty in an update means "as stored"."""

    output_items: tuple[Item, ...]
    """What the turn produced, in order. An update replaces what is stored, also with nothing."""

    payload_json: str
    """The rest of the envelope: a JSON object as text, opaque to the service, or empty. Replaced by every
    update, comes back byte for byte."""

    error: ResponseFailure | None
    """Why a failed response failed. Replaced by every update."""

    exclude_from_replay: bool | None
    """True hides the turn from every history whatever its status. None in a write means "as stored"."""

    revision: int
    """1 when created, plus one at each change; 0 on a response that was not stored yet. Ignored in a write:
    a condition is given as `expected_revision`."""

    create_time: datetime | None
    """When it was created, by the database's clock (UTC). Places, not times, give the order."""

    update_time: datetime | None
    """When it last changed, by the database's clock (UTC)."""

    def __init__(
        self,
        id: str,
        status: ResponseStatus | str = ResponseStatus.COMPLETED,
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
        input_items: Iterable[ItemLike] = (),
        output_items: Iterable[ItemLike] = (),
        payload_json: str | Mapping[str, Any] = "",
        error: ResponseFailure | None = None,
        exclude_from_replay: bool | None = None,
        revision: int = 0,
        create_time: datetime | None = None,
        update_time: datetime | None = None,
    ) -> None:
        set_field = object.__setattr__
        set_field(self, "id", id)
        set_field(self, "status", ResponseStatus(status))
        set_field(self, "conversation_id", conversation_id)
        set_field(self, "previous_response_id", previous_response_id)
        set_field(self, "input_items", _items(input_items))
        set_field(self, "output_items", _items(output_items))
        set_field(self, "payload_json", json_text(payload_json))
        set_field(self, "error", error)
        set_field(self, "exclude_from_replay", exclude_from_replay)
        set_field(self, "revision", revision)
        set_field(self, "create_time", create_time)
        set_field(self, "update_time", update_time)

    @cached_property
    def payload(self) -> dict[str, Any]:
        """The payload as a dict, parsed at the first use; empty when there is none. Read it only."""
        payload: dict[str, Any] = json_module.loads(self.payload_json) if self.payload_json else {}
        return payload


def _items(items: Iterable[ItemLike]) -> tuple[Item, ...]:
    if isinstance(items, str | Mapping):
        # Both can be iterated, over characters and keys, and would be stored as nonsense.
        raise TypeError("items are given as a list, even a single one")
    return tuple(item if isinstance(item, Item) else Item(item) for item in items)


@dataclass(frozen=True, slots=True)
class ResponseSummary:
    """A turn in a list: without its items and its payload."""

    id: str
    """The response's id."""

    status: ResponseStatus
    """Its status as it counts now."""

    revision: int
    """Its revision."""

    create_time: datetime | None
    """When it was created, by the database's clock (UTC)."""

    update_time: datetime | None
    """When it last changed, by the database's clock (UTC)."""

    input_item_count: int
    """How many input items it has, without inherited ones."""

    output_item_count: int
    """How many output items it has."""

    conversation_id: str
    """Its conversation, or empty."""

    previous_response_id: str
    """Its parent, or empty."""

    exclude_from_replay: bool
    """Whether it is hidden from replay whatever its status."""

    place: int
    """Its place in its conversation or chain, counted from 1 in commit order."""


@dataclass(frozen=True, slots=True)
class DeleteReceipt:
    """How much one call erased.

    When the reply to a first try was lost on the way, what the receipt counts is what the later try still
    found, which may be nothing: everything asked for is erased all the same.
    """

    responses: int
    """Number of responses."""

    items: int
    """Number of their items, input and output."""
