"""The values that go in and out of a store."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from turnstore_service.replay.values import BodyRef, Head, Part, Status, Turn


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose data it is: a namespace and, in it, a user; `user` None is the anonymous partition."""

    namespace: str
    user: str | None = None
    key: str = field(init=False, compare=False, repr=False)
    """The scope as one string, first field of every document's indexes and a sharding key.

    Eight digits of a hash come first, so that namespaces that begin alike spread over shards. The parts are free
    of control characters, which makes the tab an unambiguous separator.
    """

    def __post_init__(self) -> None:
        """Makes the key, which every call needs more than once."""
        name = self.namespace if self.user is None else f"{self.namespace}\t{self.user}"
        object.__setattr__(self, "key", f"{hashlib.sha256(name.encode()).hexdigest()[:8]}\t{name}")


@dataclass(slots=True)  # frozen ones are slow to make
class Items:
    """The items of one part of a response: heads and JSON texts, side by side."""

    heads: Sequence[Head] = ()
    bodies: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ResponseFault:
    """Why a response failed, in the host's words."""

    code: str
    message: str


@dataclass(slots=True)  # frozen ones are slow to make
class Write:
    """One StoreResponse, checked."""

    response_id: str
    status: Status
    conversation_id: str = ""
    previous_response_id: str = ""
    input: Items = field(default_factory=Items)
    output: Items = field(default_factory=Items)
    payload: str = ""
    fault: ResponseFault | None = None
    excluded: bool | None = None
    expected_revision: int | None = None
    keep_first: bool = False
    snapshot: Sequence[str] = ()
    request_id: bytes = b""


class Texts:
    """The JSON of items that has been read, found by where it is: response, part and index."""

    __slots__ = ("_parts", "_single")

    def __init__(self) -> None:
        self._parts: dict[str, tuple[None, Sequence[str | None], Sequence[str | None]]] = {}
        self._single: dict[BodyRef, str] = {}

    def add_response(
        self, key: str, input_json: Sequence[str | None], output_json: Sequence[str | None]
    ) -> None:
        """Takes in what a response's document holds, None for a body that is elsewhere."""
        self._parts[key] = None, input_json, output_json

    def add(self, ref: BodyRef, text: str) -> None:
        """Takes in one body."""
        self._single[ref] = text

    def update(self, other: "Texts") -> None:
        """Takes in what another has."""
        self._parts.update(other._parts)
        self._single.update(other._single)

    def get(self, ref: BodyRef) -> str | None:
        """A body; None when it has not been read."""
        return self.at(ref.key, ref.part, ref.position)

    def at(self, key: str, part: Part, position: int) -> str | None:
        """The same, for callers in a hurry."""
        parts = self._parts.get(key)
        if parts is not None:
            texts = parts[part] or ()
            if position < len(texts) and (text := texts[position]) is not None:
                return text
        return self._single.get(BodyRef(key, part, position)) if self._single else None


@dataclass(slots=True)  # frozen ones are slow to make
class StoredResponse:
    """A response as it stands, without the JSON of its items."""

    key: str
    response_id: str
    status: Status
    revision: int
    place: int
    conversation_id: str
    previous_response_id: str
    input: Sequence[Head]
    output: Sequence[Head]
    fault: ResponseFault | None
    excluded: bool | None
    create_time: datetime
    update_time: datetime


@dataclass(frozen=True, slots=True)
class Summary:
    """A turn of a line, without items."""

    response_id: str
    status: Status
    revision: int
    place: int
    conversation_id: str
    previous_response_id: str
    excluded: bool
    input_items: int
    output_items: int
    create_time: datetime
    update_time: datetime


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a deletion erased."""

    responses: int
    items: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one thread: the places after `after`, up to `last`."""

    thread: bytes
    after: int
    last: int


@dataclass(slots=True)
class Line:
    """A line of turns to read: stretches of threads, with dense places.

    A long line with many forks has many segments, and most reads need the newest few. So it is laid out from its
    end, as far as somebody needed it (`Lines.extend`).
    """

    scope: Scope
    root: bytes
    """The thread from which all threads of the line branch."""
    segments: list[Segment] = field(default_factory=list)
    """Newest first."""
    begin: int = 0
    """The line has the places after this one."""
    pending: tuple[bytes, int] | None = None
    """Thread and last place of the next older segment; None when all are laid out."""
    path: tuple[bytes, int] = (b"", 0)
    """Where the path goes on behind the pending segment: a block, and how many of its pairs are left."""
    tail: Turn | None = None
    """Stands after everything else: the snapshot of the response whose history this is."""


NO_END = 1 << 40
"""A place beyond every other: a line that takes in whatever stands at its end."""
