"""What the next turn is given: the choices a caller has, and the history as it comes back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from turnstore.response import Item, ResponseStatus


class TurnRule(StrEnum):
    """What a turn that did not end as intended contributes to a history."""

    INCLUDE = "include"
    """Its input items, then its output items, all of them."""

    SANITIZE = "sanitize"
    """Its input items, and of its output what a model can be given: no call without its output, no output
    without its call, no pending request, no reasoning with nothing after it, no empty text."""

    INPUT_ONLY = "input_only"
    """Its input items alone."""

    EXCLUDE = "exclude"
    """Nothing."""


class ToolItems(StrEnum):
    """What becomes of tool items (calls, outputs, approvals) without their partner."""

    KEEP = "keep"
    """They stay."""

    PAIRED = "paired"
    """They are left out, but for those that still wait for their answer."""


class LimitCut(StrEnum):
    """What a limit may tear apart."""

    EXACT = "exact"
    """The newest units, wherever that cuts."""

    WHOLE = "whole"
    """An item whose call, output or reasoning lies partly before the cut is left out as well, so that fewer
    items than the limit may come back."""


class LimitUnit(StrEnum):
    """What a limit counts."""

    ITEMS = "items"
    """Items that are left after every exclusion."""

    TURNS = "turns"
    """Responses that contribute at least one item."""


class HistoryView(StrEnum):
    """How much of each item a history returns."""

    ITEM_IDS = "item_ids"
    """Ids alone."""

    FULL = "full"
    """Ids, and the items with their JSON in the same order."""


class ListOrder(StrEnum):
    """The order of a list of items."""

    ASC = "asc"
    """Oldest first."""

    DESC = "desc"
    """Newest first."""


class DuplicateItems(StrEnum):
    """What a write does with an input item whose id already stands in the history of its line, put there by
    another response. Items of failed, excluded and deleted responses never count.
    """

    REJECT = "reject"
    """The write is refused with `DuplicateItemError`."""

    KEEP_FIRST = "keep_first"
    """The write is accepted; a history shows the item at its first place."""


class ExclusionReason(StrEnum):
    """Why items were left out of a history. What a limit cuts is not listed: `History.truncated` tells it."""

    UNSPECIFIED = "unspecified"
    """A reason that this version of the client does not know."""

    FAILED = "failed"
    """The turn failed, or counts as failed: its lease ran out, or it was abandoned."""

    EXCLUDED_BY_CALLER = "excluded_by_caller"
    """The turn was hidden from replay."""

    DELETED = "deleted"
    """The turn was deleted. Its item ids are not known any more."""

    CANCELLED = "cancelled"
    """The turn was cancelled and the policy leaves it, or its output, out."""

    INCOMPLETE = "incomplete"
    """The turn is incomplete and the policy leaves it, or its output, out."""

    IN_FLIGHT = "in_flight"
    """The turn is queued or running and the policy leaves it out."""

    UNPAIRED_CALL = "unpaired_call"
    """A tool call without its output."""

    UNPAIRED_OUTPUT = "unpaired_output"
    """A tool output, or an approval response, without its call or request."""

    TIED_REASONING = "tied_reasoning"
    """A reasoning item whose following item was left out, or that nothing follows."""

    PENDING_REQUEST = "pending_request"
    """An approval request without its response."""

    EMPTY_CONTENT = "empty_content"
    """A message of a cancelled or incomplete turn with no content left."""

    DUPLICATE = "duplicate"
    """The id stands at an earlier place already."""

    SPLIT_UNIT = "split_unit"
    """Part of what belongs to the item lies before the limit's cut."""

    NO_CONTRIBUTOR = "no_contributor"
    """An id of a snapshot that no stored response contributes any more."""


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """How a history is put together. A field that is None follows the server's default policy.

    No policy brings back a failed, excluded or deleted turn.
    """

    cancelled: TurnRule | None = None
    """What a cancelled turn contributes."""

    incomplete: TurnRule | None = None
    """What an incomplete turn contributes."""

    in_flight: TurnRule | None = None
    """What a queued or running turn contributes: INCLUDE or EXCLUDE."""

    tool_items: ToolItems | None = None
    """What becomes of tool items without their partner."""

    limit_cut: LimitCut | None = None
    """What a limit may tear apart."""


AS_STORED = ReplayPolicy(
    cancelled=TurnRule.INCLUDE,
    incomplete=TurnRule.INCLUDE,
    in_flight=TurnRule.INCLUDE,
    tool_items=ToolItems.KEEP,
    limit_cut=LimitCut.EXACT,
)
"""Everything that was stored, but for failed, excluded and deleted turns."""

MODEL_SAFE = ReplayPolicy(
    cancelled=TurnRule.SANITIZE,
    incomplete=TurnRule.SANITIZE,
    in_flight=TurnRule.INCLUDE,
    tool_items=ToolItems.PAIRED,
    limit_cut=LimitCut.WHOLE,
)
"""A history that a model service takes: no call without its output, nothing torn apart."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Items of one response that a history leaves out for one reason."""

    response_id: str
    """The response that holds the items."""

    status: ResponseStatus
    """The response's status as it counts now."""

    reason: ExclusionReason
    """Why they are left out."""

    item_ids: tuple[str, ...]
    """The items, in the response's order. Empty for a deleted response."""


@dataclass(frozen=True, slots=True)
class History:
    """The items that the next turn is given."""

    item_ids: tuple[str, ...]
    """The items' ids in chronological order, each once."""

    items: tuple[Item, ...] = ()
    """With the view FULL: the items, in the order of `item_ids`."""

    exclusions: tuple[Exclusion, ...] = ()
    """With `explain`: what was left out and why, in the order of the turns."""

    ancestor_deleted: bool = False
    """True when a response on the way was deleted, so that something may be missing."""

    truncated: bool = False
    """True when the limit left something out."""

    def data(self) -> list[dict[str, Any]]:
        """Return the items as dicts, ready to stand in front of a model's next input (view FULL)."""
        return [item.data for item in self.items]
