"""What the replay rules speak of: turns, items, policies and answers, as plain values.

The numbers of the enums are those of the wire (`protos/turnstore/v1/`), so that no table translates them.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class Status(IntEnum):
    """What became of a response. UNSPECIFIED is "unknown" and replays like COMPLETED."""

    UNSPECIFIED = 0
    QUEUED = 1
    IN_PROGRESS = 2
    COMPLETED = 3
    INCOMPLETE = 4
    CANCELLED = 5
    FAILED = 6


IN_FLIGHT = frozenset({Status.QUEUED, Status.IN_PROGRESS})
TERMINAL = frozenset({Status.COMPLETED, Status.INCOMPLETE, Status.CANCELLED, Status.FAILED})


class TurnRule(IntEnum):
    """What a policy does with a cancelled, incomplete or running turn."""

    INCLUDE = 1
    SANITIZE = 2
    INPUT_ONLY = 3
    EXCLUDE = 4


class ToolItems(IntEnum):
    """Whether tool items without their partner stay."""

    KEEP = 1
    PAIRED = 2


class LimitCut(IntEnum):
    """Whether a limit may tear a unit (a call, its output, their reasoning) apart."""

    EXACT = 1
    WHOLE = 2


class LimitUnit(IntEnum):
    """What a limit counts."""

    ITEMS = 1
    TURNS = 2


class Reason(IntEnum):
    """Why an item was left out."""

    FAILED = 1
    EXCLUDED_BY_CALLER = 2
    DELETED = 3
    CANCELLED = 4
    INCOMPLETE = 5
    IN_FLIGHT = 6
    UNPAIRED_CALL = 7
    UNPAIRED_OUTPUT = 8
    TIED_REASONING = 9
    PENDING_REQUEST = 10
    EMPTY_CONTENT = 11
    DUPLICATE = 12
    SPLIT_UNIT = 13
    NO_CONTRIBUTOR = 14


class Part(IntEnum):
    """Where in a turn an item stands. The order of the numbers is the order of replay."""

    SNAPSHOT = 0
    INPUT = 1
    OUTPUT = 2


class Text(IntEnum):
    """What SANITIZE would find in a message's content."""

    WHOLE = 0
    """Nothing to take away."""
    SOME_EMPTY = 1
    """Empty text parts beside others."""
    NOTHING = 2
    """No content, or empty text parts alone."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a caller may ask for beyond the rules that always hold. The defaults are `as_stored`."""

    cancelled: TurnRule = TurnRule.INCLUDE
    incomplete: TurnRule = TurnRule.INCLUDE
    in_flight: TurnRule = TurnRule.INCLUDE
    tool_items: ToolItems = ToolItems.KEEP
    limit_cut: LimitCut = LimitCut.EXACT

    def rule(self, status: Status) -> TurnRule:
        """The rule for a turn of this status. A failed turn is never asked for one."""
        if status is Status.CANCELLED:
            return self.cancelled
        if status is Status.INCOMPLETE:
            return self.incomplete
        if status in IN_FLIGHT:
            return self.in_flight
        return TurnRule.INCLUDE

    @property
    def matches_calls(self) -> bool:
        """Whether anything in this policy needs to know which output answers which call."""
        return (
            self.tool_items is ToolItems.PAIRED
            or self.limit_cut is LimitCut.WHOLE
            or TurnRule.SANITIZE in (self.cancelled, self.incomplete)
        )


AS_STORED = Policy()
MODEL_SAFE = Policy(
    cancelled=TurnRule.SANITIZE,
    incomplete=TurnRule.SANITIZE,
    in_flight=TurnRule.INCLUDE,
    tool_items=ToolItems.PAIRED,
    limit_cut=LimitCut.WHOLE,
)
POLICIES: Mapping[str, Policy] = {"as_stored": AS_STORED, "model_safe": MODEL_SAFE}


class Head(NamedTuple):
    """What the rules need to know of an item; its JSON stays in the store."""

    id: str
    type: str = ""
    call: str = ""
    """What pairs it: its `call_id`, an approval request's own id, an approval response's
    `approval_request_id`. Empty: it has no partner."""
    text: Text = Text.WHOLE


class BodyRef(NamedTuple):
    """Where an item's JSON is."""

    key: str
    """Key of the response."""
    part: Part
    position: int
    """Index in the part."""


@dataclass(frozen=True, slots=True)
class SnapshotId:
    """One of the ids that a host handed over instead of a parent."""

    id: str
    known: bool
    """Whether the store held such an item when the snapshot was taken."""


class Turn(NamedTuple):
    """One response on a line, as it stands at the moment of resolving."""

    key: str
    """Names the stored response for good: an id may be created again after a delete, a key is not."""
    response_id: str
    status: Status
    excluded: bool = False
    deleted: bool = False
    snapshot: Sequence[SnapshotId] = ()
    input: Sequence[Head] = ()
    output: Sequence[Head] = ()
    repeated: AbstractSet[str] = frozenset()
    """Ids of this turn that some other response near it was seen to hold too."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A stored response that holds an item named in a snapshot."""

    key: str
    response_id: str
    status: Status
    excluded: bool
    part: Part
    index: int
    head: Head
    created: object
    """Orders holders by their creation; any values that compare."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a caller wants of a line."""

    policy: Policy = AS_STORED
    limit: int | None = None
    """How many units at the most; None is everything."""
    unit: LimitUnit = LimitUnit.ITEMS
    answered: frozenset[str] = frozenset()
    """Call ids, or ids of approval requests, that the caller's next input answers."""
    named: bool = False
    """Whether the caller gave such a list at all."""


class Entry:
    """An item at its place in the history, and what became of it."""

    __slots__ = ("head", "index", "key", "part", "partial", "reason", "sanitized", "source", "status", "turn")

    def __init__(
        self,
        turn: int,
        part: Part,
        head: Head,
        key: str | None,
        source: Part,
        index: int,
        status: Status | None,
        partial: bool,
        sanitized: bool,
        reason: Reason | None,
    ) -> None:
        self.turn = turn
        """Index of its turn in the line given to the rules."""
        self.part = part
        self.head = head
        self.key = key
        """Key of the response whose item it is. None: the store has never seen the item."""
        self.source = source
        """In which part of that response it stands."""
        self.index = index
        """At which place of that part."""
        self.status = status
        """Status of the response whose item it is; None for an item that the store has never seen."""
        self.partial = partial
        """It is an output item of a cancelled or incomplete response."""
        self.sanitized = sanitized
        """SANITIZE applies to it."""
        self.reason = reason
        """Why it is left out; None while it stays."""

    @property
    def body(self) -> BodyRef | None:
        """Where its JSON is; None when the store has never seen it."""
        return None if self.key is None else BodyRef(self.key, self.source, self.index)


@dataclass(frozen=True, slots=True)
class Excluded:
    """The items of one response that were left out for one reason."""

    response_id: str
    status: Status
    reason: Reason
    item_ids: tuple[str, ...]


@dataclass(slots=True)
class Answer:
    """The history that the next turn may replay."""

    entries: list[Entry]
    truncated: bool
    oldest_turn: int
    """Index of the oldest turn that the answer reaches; beyond every index when it reaches none."""
    sifted: list[Entry] = field(default_factory=list)
    """Every item that the rules looked at, with what became of it."""
