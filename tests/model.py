"""The yardstick: the whole service as plain Python values in memory.

It is a second, independent reading of the contract and of the replay rules. It imports nothing of the service
and nothing of the generated messages, so that a mistake of the one cannot hide in the other. It is written to
be read beside the rules, and takes the slow and simple way everywhere: each answer is worked out from the
whole line of turns, nothing is cached, nothing is looked up by an index.

Statuses, policies and reasons are the names of the contract's enums without their prefix.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

TERMINAL = frozenset({"COMPLETED", "INCOMPLETE", "CANCELLED", "FAILED"})
STATUSES = TERMINAL | {"UNSPECIFIED", "QUEUED", "IN_PROGRESS"}
WAITING = frozenset({"COMPLETED", "UNSPECIFIED"})
PARTIAL = frozenset({"CANCELLED", "INCOMPLETE"})
NO_ID = ("", "__fake_id__")
DEFAULT_PAGE, LARGEST_PAGE = 20, 100
MOST_IDS = 1000
UUID_FORM = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
REASON_OF_STATUS = {
    "CANCELLED": "CANCELLED",
    "INCOMPLETE": "INCOMPLETE",
    "QUEUED": "IN_FLIGHT",
    "IN_PROGRESS": "IN_FLIGHT",
}


class RefusedError(Exception):
    """A call was answered with an error: its status code, the reason, and the values that go with it."""

    def __init__(
        self, code: str, reason: str = "", metadata: dict[str, str] | None = None, message: str = ""
    ) -> None:
        super().__init__(f"{code}:{reason} {metadata or {}} {message}".rstrip())
        self.code = code
        self.reason = reason
        self.metadata = metadata or {}
        self.message = message


@dataclass(frozen=True)
class Item:
    """One item as a reply shows it. `json` is empty for a snapshot's id whose body is not there."""

    id: str
    type: str = ""
    json: str = ""
    partial: bool = False


@dataclass(frozen=True)
class Policy:
    """The replay policy; the defaults are `as_stored`."""

    cancelled: str = "INCLUDE"
    incomplete: str = "INCLUDE"
    in_flight: str = "INCLUDE"
    tool_items: str = "KEEP"
    limit_cut: str = "EXACT"


AS_STORED = Policy()
MODEL_SAFE = Policy("SANITIZE", "SANITIZE", "INCLUDE", "PAIRED", "WHOLE")


@dataclass(frozen=True)
class Exclusion:
    """Items of one turn that are not in the answer, and why. A deleted turn has no items to name."""

    response_id: str
    status: str
    reason: str
    item_ids: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """The answer of ResolveHistory, all pages of it."""

    items: tuple[Item, ...]
    exclusions: tuple[Exclusion, ...] = ()
    ancestor_deleted: bool = False
    truncated: bool = False

    @property
    def item_ids(self) -> tuple[str, ...]:
        return tuple(item.id for item in self.items)


@dataclass(frozen=True)
class Stored:
    """The answer of StoreResponse: the revision, and the ids of the items as they are stored now."""

    revision: int
    input_ids: tuple[str, ...]
    output_ids: tuple[str, ...]


@dataclass(frozen=True)
class Turn:
    """The answer of GetResponse."""

    id: str
    status: str
    conversation_id: str
    previous_response_id: str
    input_items: tuple[Item, ...]
    output_items: tuple[Item, ...]
    payload_json: str
    error: tuple[str, str] | None
    excluded: bool
    revision: int


@dataclass(frozen=True)
class Summary:
    """One turn in the answer of ListResponses. `place` counts from 1, the first turn of the line."""

    id: str
    status: str
    revision: int
    input_item_count: int
    output_item_count: int
    conversation_id: str
    previous_response_id: str
    excluded: bool
    place: int


@dataclass(frozen=True)
class Receipt:
    """What a delete has erased."""

    responses: int
    items: int


@dataclass(frozen=True)
class _Body:
    """One stored item: its text, and what the text says."""

    id: str
    json: str
    fields: dict[str, Any]

    @property
    def type(self) -> str:
        return _text(self.fields.get("type"))


@dataclass(eq=False)
class _Record:
    """One response. A deleted one stays in its line: its links, its snapshot and its request ids do."""

    id: str
    conversation_id: str
    previous_response_id: str
    parent: _Record | None
    place: int
    status: str
    snapshot: tuple[tuple[str, bool], ...]
    creation_request: str
    last_request: str
    inputs: tuple[_Body, ...] = ()
    outputs: tuple[_Body, ...] = ()
    payload_json: str = ""
    error: tuple[str, str] | None = None
    excluded: bool = False
    revision: int = 1
    deleted: bool = False

    @property
    def item_count(self) -> int:
        return len(self.inputs) + len(self.outputs)

    def was_written_by(self, request_id: str) -> bool:
        """Whether this is the request of its creation or of its last write."""
        return bool(request_id) and request_id in (self.creation_request, self.last_request)

    def empty(self) -> None:
        """Deletes the content."""
        self.inputs = self.outputs = ()
        self.payload_json, self.error, self.excluded, self.status = "", None, False, "UNSPECIFIED"
        self.deleted = True


@dataclass(eq=False)
class _Scope:
    """All of one user: every response ever created, oldest first, deleted ones included."""

    created: list[_Record] = field(default_factory=list)

    def live(self, response_id: str) -> _Record | None:
        for record in reversed(self.created):
            if record.id == response_id:
                return None if record.deleted else record
        return None

    def deleted(self, response_id: str) -> _Record | None:
        """The newest response of this id, if it is deleted."""
        newest = next((record for record in reversed(self.created) if record.id == response_id), None)
        return newest if newest is not None and newest.deleted else None

    def conversation(self, conversation_id: str) -> list[_Record]:
        return [record for record in self.created if record.conversation_id == conversation_id]

    def line_to(self, record: _Record) -> list[_Record]:
        """The turns from the root to this one, this one included."""
        if record.parent is not None:
            return [*self.line_to(record.parent), record]
        if record.conversation_id:
            line = self.conversation(record.conversation_id)
            return line[: line.index(record) + 1]
        return [record]


@dataclass(frozen=True)
class _OnLine:
    """A turn of the line that is asked for. `own` is false where only its snapshot belongs to the history."""

    record: _Record
    own: bool = True


@dataclass(eq=False)
class _Entry:
    """One item on its way into the history: where it stands, and what has become of it."""

    turn: int
    part: str
    id: str
    body: _Body | None
    contributor: _Record | None
    partial: bool
    sanitised: bool
    reason: str = ""
    partner: _Entry | None = None

    @property
    def type(self) -> str:
        return self.body.type if self.body else ""

    @property
    def is_reasoning(self) -> bool:
        return self.type == "reasoning"

    def shown(self) -> Item:
        if self.body is None:
            return Item(self.id)
        text = _without_empty_text(self.body) if self.sanitised else self.body.json
        return Item(self.id, self.type, text, self.partial)


class Model:
    """One namespace of the service. `user` is None for the anonymous partition, a user of no name."""

    def __init__(self) -> None:
        self._scopes: dict[str | None, _Scope] = {}

    def _scope(self, user: str | None) -> _Scope:
        return self._scopes.setdefault(user, _Scope())

    # Writing

    def store(
        self,
        user: str | None,
        response: dict[str, Any],
        *,
        expected_revision: int | None = None,
        duplicate_items: str = "REJECT",
        inherited_item_ids: Sequence[str] = (),
        request_id: str = "",
    ) -> Stored:
        """StoreResponse. `response` has the contract's field names, items as JSON texts, status as a name."""
        scope = self._scope(user)
        response_id = response["id"]
        _check_id("response.id", response_id)
        for name in ("conversation_id", "previous_response_id"):
            if response.get(name):
                _check_id(f"response.{name}", response[name])
        for inherited in inherited_item_ids:
            _check_id("inherited_item_ids", inherited)
        if response.get("conversation_id") and response.get("previous_response_id"):
            raise _invalid("response.previous_response_id")
        if expected_revision is not None and expected_revision < 0:
            raise _invalid("expected_revision")
        if request_id and not UUID_FORM.fullmatch(request_id):
            raise _invalid("request_id")
        if response.get("payload_json"):
            _json_object("response.payload_json", response["payload_json"])
        inputs = _bodies(response_id, "input", response.get("input_items", ()))
        outputs = _bodies(response_id, "output", response.get("output_items", ()))
        new = {**response, "inputs": inputs, "outputs": outputs}

        record = scope.live(response_id)
        if record is not None:
            self._update(scope, record, new, expected_revision, duplicate_items, request_id)
        else:
            deleted = scope.deleted(response_id)
            # A creation that is repeated after the delete is a late write, not a new response.
            retried = deleted is not None and deleted.was_written_by(request_id)
            if deleted is not None and (expected_revision != 0 or retried):
                raise RefusedError("NOT_FOUND", "RESPONSE_NOT_FOUND", {"response_id": response_id})
            if expected_revision:
                raise _mismatch(response_id, expected_revision, 0)
            record = self._create(scope, new, duplicate_items, inherited_item_ids, request_id)
        return Stored(record.revision, _ids(record.inputs), _ids(record.outputs))

    def _create(
        self,
        scope: _Scope,
        new: dict[str, Any],
        duplicate_items: str,
        inherited: Sequence[str],
        request_id: str,
    ) -> _Record:
        parent = None
        if parent_id := new.get("previous_response_id", ""):
            parent = scope.live(parent_id)
            if parent is None:
                raise RefusedError("NOT_FOUND", "PARENT_NOT_FOUND", {"previous_response_id": parent_id})
        conversation_id = new.get("conversation_id", "")
        line: list[_Record] = []
        if parent:
            line = scope.line_to(parent)
        elif conversation_id:
            line = scope.conversation(conversation_id)
        _check_duplicates(scope, line, new["inputs"], duplicate_items)
        # A deleted response holds no items.
        known = {body.id for other in scope.created for body in (*other.inputs, *other.outputs)}
        record = _Record(
            id=new["id"],
            conversation_id=conversation_id,
            previous_response_id=parent_id,
            parent=parent,
            place=len(line) + 1,
            status=new.get("status", "UNSPECIFIED"),
            snapshot=() if parent else tuple((item_id, item_id in known) for item_id in inherited),
            creation_request=request_id,
            last_request=request_id,
            inputs=new["inputs"],
            outputs=new["outputs"],
            payload_json=new.get("payload_json", ""),
            error=_error_of(new),
            excluded=bool(new.get("exclude_from_replay")),
        )
        scope.created.append(record)
        return record

    def _update(
        self,
        scope: _Scope,
        record: _Record,
        new: dict[str, Any],
        expected_revision: int | None,
        duplicate_items: str,
        request_id: str,
    ) -> None:
        if record.was_written_by(request_id):
            return
        if expected_revision == 0:
            values = {"response_id": record.id, "revision": str(record.revision)}
            raise RefusedError("ALREADY_EXISTS", "RESPONSE_EXISTS", values)
        for name in ("conversation_id", "previous_response_id"):
            if new.get(name) and new[name] != getattr(record, name):
                values = {"response_id": record.id, "field": name}
                raise RefusedError("FAILED_PRECONDITION", "LINK_CHANGED", values)
        status = new.get("status", "UNSPECIFIED")
        inputs: tuple[_Body, ...] = new["inputs"] or record.inputs
        outputs: tuple[_Body, ...] = new["outputs"]
        payload_json = new.get("payload_json", "")
        error = _error_of(new)
        excluded = record.excluded
        if new.get("exclude_from_replay") is not None:
            excluded = bool(new["exclude_from_replay"])
        new_input = _texts(inputs) != _texts(record.inputs)
        if (
            not new_input
            and status == record.status
            and _texts(outputs) == _texts(record.outputs)
            and payload_json == record.payload_json
            and error == record.error
            and excluded == record.excluded
        ):
            return
        if expected_revision is not None and expected_revision != record.revision:
            raise _mismatch(record.id, expected_revision, record.revision)
        if record.status in TERMINAL and expected_revision is None:
            raise RefusedError(
                "FAILED_PRECONDITION",
                "RESPONSE_FINISHED",
                {"response_id": record.id, "stored_status": record.status, "requested_status": status},
            )
        if new_input:
            conversation_id = record.conversation_id
            line = scope.conversation(conversation_id) if conversation_id else scope.line_to(record)
            _check_duplicates(scope, line, inputs, duplicate_items, record)
        record.status, record.inputs, record.outputs = status, inputs, outputs
        record.payload_json, record.error, record.excluded = payload_json, error, excluded
        record.revision += 1
        record.last_request = request_id

    def set_replay_exclusion(self, user: str | None, response_id: str, excluded: bool) -> int:
        """SetReplayExclusion: the revision after it."""
        record = self._known(user, response_id)
        if record.excluded != excluded:
            record.excluded = excluded
            record.revision += 1
        return record.revision

    def delete(self, user: str | None, response_id: str) -> Receipt:
        """DeleteResponse."""
        record = self._known(user, response_id)
        receipt = Receipt(1, record.item_count)
        record.empty()
        return receipt

    def delete_conversation(self, user: str | None, conversation_id: str) -> Receipt:
        """DeleteConversation. Its places stay; nothing else does, a snapshot's ids neither."""
        return _erase(self._scope(user).conversation(conversation_id))

    def delete_user_data(self, user: str | None) -> Receipt:
        """DeleteUserData, before the time of grace has passed: the places are still there."""
        return _erase(self._scope(user).created)

    # Reading

    def _known(self, user: str | None, response_id: str) -> _Record:
        _check_id("response_id", response_id)
        record = self._scope(user).live(response_id)
        if record is None:
            raise RefusedError("NOT_FOUND", "RESPONSE_NOT_FOUND", {"response_id": response_id})
        return record

    def get(self, user: str | None, response_id: str) -> Turn:
        """GetResponse."""
        record = self._known(user, response_id)
        return Turn(
            record.id,
            record.status,
            record.conversation_id,
            record.previous_response_id,
            tuple(_plain(record, "input", body) for body in record.inputs),
            tuple(_plain(record, "output", body) for body in record.outputs),
            record.payload_json,
            record.error,
            record.excluded,
            record.revision,
        )

    def resolve(
        self,
        user: str | None,
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
        before_response_id: str = "",
        limit: int | None = None,
        limit_unit: str = "ITEMS",
        policy: Policy = AS_STORED,
        answered_call_ids: Sequence[str] = (),
        explain: bool = False,
    ) -> History:
        """ResolveHistory in the view FULL."""
        scope = self._scope(user)
        if limit is not None and limit < 0:
            raise _invalid("limit")
        if policy.in_flight not in ("INCLUDE", "EXCLUDE"):
            raise _invalid("policy.in_flight")
        if before_response_id:
            if conversation_id or previous_response_id:
                raise _invalid("before_response_id")
            turns = self._before(scope, self._known(user, before_response_id))
        else:
            line = self._line(scope, conversation_id, previous_response_id, both=True)
            turns = [_OnLine(record) for record in line]
        return _resolve(scope, turns, policy, frozenset(answered_call_ids), limit, limit_unit, explain)

    def list_input_items(
        self,
        user: str | None,
        response_id: str,
        *,
        order: str = "DESC",
        after: str = "",
        before: str = "",
        include_inherited: bool = False,
    ) -> tuple[Item, ...]:
        """ListInputItems, all pages: what stands between `after` and `before` in the order asked for.

        A cursor that is not in the list is ignored.
        """
        record = self._known(user, response_id)
        scope = self._scope(user)
        items = [_plain(record, "input", body) for body in _first_of_each(record.inputs)]
        if include_inherited:
            inherited = _as_stored(scope, self._before(scope, record))
            given = {item.id for item in inherited}
            items = [*inherited, *(item for item in items if item.id not in given)]
        if order == "DESC":
            items.reverse()
        ids = [item.id for item in items]
        start = ids.index(after) + 1 if after in ids else 0
        stop = ids.index(before) if before in ids else len(items)
        return tuple(items[start:stop])

    def batch_get(
        self,
        user: str | None,
        item_ids: Sequence[str],
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
    ) -> tuple[Item | None, ...]:
        """BatchGetItems: each item, or None where there is none."""
        scope = self._scope(user)
        if not 1 <= len(item_ids) <= MOST_IDS:
            raise _invalid("item_ids")
        for item_id in item_ids:
            _check_id("item_ids", item_id)
        if conversation_id or previous_response_id:
            line = [_OnLine(record) for record in self._line(scope, conversation_id, previous_response_id)]
            # A snapshot's id without a body stands in the history, but there is no item to give.
            shown = {item.id: item for item in _as_stored(scope, line) if item.json}
        else:
            shown = {}
            live = [record for record in scope.created if not record.deleted]
            contributing = [record for record in live if record.status != "FAILED" and not record.excluded]
            for record in (*live, *contributing):
                held = {}
                for part, bodies in (("output", record.outputs), ("input", record.inputs)):
                    for body in reversed(bodies):
                        held[body.id] = _plain(record, part, body)
                shown.update(held)
        return tuple(shown.get(item_id) for item_id in item_ids)

    def list_responses(
        self, user: str | None, *, conversation_id: str = "", previous_response_id: str = ""
    ) -> tuple[Summary, ...]:
        """ListResponses, all pages of it: oldest first, deleted turns left out."""
        line = self._line(self._scope(user), conversation_id, previous_response_id)
        return tuple(
            Summary(
                record.id,
                record.status,
                record.revision,
                len(record.inputs),
                len(record.outputs),
                record.conversation_id,
                record.previous_response_id,
                record.excluded,
                record.place,
            )
            for record in line
            if not record.deleted
        )

    def _line(
        self, scope: _Scope, conversation_id: str, previous_response_id: str, both: bool = False
    ) -> list[_Record]:
        """The turns of the line named, deleted ones included, each once."""
        if not conversation_id and not previous_response_id:
            raise _invalid("conversation_id")
        if conversation_id and previous_response_id and not both:
            raise _invalid("previous_response_id")
        line: list[_Record] = []
        if previous_response_id:
            _check_id("previous_response_id", previous_response_id)
            parent = scope.live(previous_response_id)
            if parent is None:
                raise RefusedError(
                    "NOT_FOUND", "PARENT_NOT_FOUND", {"previous_response_id": previous_response_id}
                )
            line = scope.line_to(parent)
        if conversation_id:
            _check_id("conversation_id", conversation_id)
            line = [*line, *(record for record in scope.conversation(conversation_id) if record not in line)]
        return line

    @staticmethod
    def _before(scope: _Scope, record: _Record) -> list[_OnLine]:
        """What the response was given: the turns before it, then its own snapshot."""
        earlier = [_OnLine(other) for other in scope.line_to(record)[:-1]]
        return [*earlier, _OnLine(record, own=False)] if record.snapshot else earlier


# The rules


def _resolve(
    scope: _Scope,
    turns: list[_OnLine],
    policy: Policy,
    named: frozenset[str],
    limit: int | None,
    limit_unit: str,
    explain: bool,
) -> History:
    entries, silent = _contributions(scope, turns, policy)
    _keep_first_places(entries)
    last_turn = _last_contributing_turn(entries)
    _pair(entries)
    waiting = not named and last_turn is not None and last_turn.status in WAITING
    for entry in entries:
        if not entry.reason:
            entry.reason = _why_left_out(entry, policy, named, waiting and entry.contributor is last_turn)
    _let_reasoning_go(entries)

    whole = [entry for entry in entries if not entry.reason]
    cut = _cut(whole, limit, limit_unit)
    before, window = whole[:cut], whole[cut:]
    came_along = [
        entry for entry in before if any(_is_waiting_call(tied, named) for tied in _unit(whole, entry))
    ]
    from_turn = 0
    if cut:
        from_turn = window[0].turn if window else len(turns)
    if policy.limit_cut == "WHOLE":
        for entry in window:
            if any(other in before and other not in came_along for other in _unit(whole, entry)):
                entry.reason = "SPLIT_UNIT"
    answer = [*came_along, *(entry for entry in window if not entry.reason)]
    deleted = any(turn.own and turn.record.deleted for turn in turns)
    exclusions = _exclusions(turns, entries, silent, from_turn) if explain else ()
    return History(tuple(entry.shown() for entry in answer), exclusions, deleted, len(answer) < len(whole))


def _as_stored(scope: _Scope, turns: list[_OnLine]) -> tuple[Item, ...]:
    return _resolve(scope, turns, AS_STORED, frozenset(), None, "ITEMS", explain=False).items


def _rule(record: _Record, policy: Policy) -> str:
    return {
        "CANCELLED": policy.cancelled,
        "INCOMPLETE": policy.incomplete,
        "QUEUED": policy.in_flight,
        "IN_PROGRESS": policy.in_flight,
    }.get(record.status, "INCLUDE")


def _why_not_let_in(record: _Record, part: str, policy: Policy) -> str:
    """The reason for which a turn's own input or output does not count at all; empty when it counts."""
    if record.deleted:
        return "DELETED"
    if record.status == "FAILED":
        return "FAILED"
    if record.excluded:
        return "EXCLUDED_BY_CALLER"
    rule = _rule(record, policy)
    if rule == "EXCLUDE" or (rule == "INPUT_ONLY" and part == "output"):
        return REASON_OF_STATUS[record.status]
    return ""


def _contributions(scope: _Scope, turns: list[_OnLine], policy: Policy) -> tuple[list[_Entry], set[int]]:
    """Every item of the line in its order, with a reason where status, policy or rule 9 leave it out.

    Beside them the turns that are deleted, which have no items left to name.
    """
    entries: list[_Entry] = []
    deleted: set[int] = set()
    for number, turn in enumerate(turns):
        record = turn.record
        for item_id, known in record.snapshot:
            entry = _from_snapshot(scope, number, item_id, policy)
            if known and entry.body is None:
                entry.reason = "NO_CONTRIBUTOR"
            entries.append(entry)
        if not turn.own:
            continue
        if record.deleted:
            deleted.add(number)
        for part, bodies in (("input", record.inputs), ("output", record.outputs)):
            entries.extend(_own_entry(record, number, part, body, policy) for body in bodies)
    return entries, deleted


def _own_entry(record: _Record, number: int, part: str, body: _Body, policy: Policy) -> _Entry:
    is_output = part == "output"
    return _Entry(
        turn=number,
        part=part,
        id=body.id,
        body=body,
        contributor=record,
        partial=is_output and record.status in PARTIAL,
        sanitised=is_output and _rule(record, policy) == "SANITIZE",
        reason=_why_not_let_in(record, part, policy),
    )


def _from_snapshot(scope: _Scope, number: int, item_id: str, policy: Policy) -> _Entry:
    """The snapshot's id with the body that its contributor gives it: of those that let it in, the newest."""
    for record in reversed(scope.created):
        for part, bodies in (("input", record.inputs), ("output", record.outputs)):
            if _why_not_let_in(record, part, policy):
                continue
            for body in bodies:
                if body.id == item_id:
                    entry = _own_entry(record, number, part, body, policy)
                    entry.part = "snapshot"
                    return entry
    return _Entry(number, "snapshot", item_id, None, None, partial=False, sanitised=False)


def _keep_first_places(entries: list[_Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.reason:
            continue
        if entry.id in seen:
            entry.reason = "DUPLICATE"
        seen.add(entry.id)


def _last_contributing_turn(entries: list[_Entry]) -> _Record | None:
    """The turn that the newest item comes from: of a snapshot's item the turn that contributes it.

    None where that is not known, as with an id that the store has never seen.
    """
    return next((entry.contributor for entry in reversed(entries) if not entry.reason), None)


def _call_key(entry: _Entry) -> tuple[str, str] | None:
    """Kind and call id of a call or an approval request; None for everything else."""
    if entry.body is None:
        return None
    if entry.type == "mcp_approval_request":
        return "mcp_approval", entry.id
    call_id = _text(entry.body.fields.get("call_id"))
    return (entry.type, call_id) if entry.type.endswith("_call") and call_id else None


def _output_key(entry: _Entry) -> tuple[str, str] | None:
    """The key of the call that this output or approval response answers; None for everything else."""
    if entry.body is None:
        return None
    if entry.type == "mcp_approval_response":
        request_id = _text(entry.body.fields.get("approval_request_id"))
        return ("mcp_approval", request_id) if request_id else None
    kind = "tool_search_call" if entry.type == "tool_search_output" else entry.type.removesuffix("_output")
    call_id = _text(entry.body.fields.get("call_id"))
    is_output = kind.endswith("_call") and kind != entry.type
    return (kind, call_id) if is_output and call_id else None


def _pair(entries: list[_Entry]) -> None:
    """Gives each output the nearest call before it that has no output yet."""
    open_calls: dict[tuple[str, str], list[_Entry]] = {}
    for entry in entries:
        if entry.reason:
            continue
        if key := _call_key(entry):
            open_calls.setdefault(key, []).append(entry)
        elif (key := _output_key(entry)) and open_calls.get(key):
            entry.partner = open_calls[key].pop()
            entry.partner.partner = entry


def _is_waiting_call(entry: _Entry, named: frozenset[str]) -> bool:
    """An unanswered call or request that the caller says its next input answers."""
    key = _call_key(entry)
    return key is not None and entry.partner is None and key[1] in named


def _why_left_out(entry: _Entry, policy: Policy, named: frozenset[str], waiting: bool) -> str:
    paired = policy.tool_items == "PAIRED"
    if not paired and not entry.sanitised:
        return ""
    if _output_key(entry) and entry.partner is None:
        return "UNPAIRED_OUTPUT"
    unanswered = _call_key(entry) is not None and entry.partner is None
    # A turn that stopped half-way has no call that waits, whoever hands it on.
    if unanswered and not _is_waiting_call(entry, named) and (entry.sanitised or not waiting):
        return "PENDING_REQUEST" if entry.type == "mcp_approval_request" else "UNPAIRED_CALL"
    body = entry.body
    if entry.sanitised and body and _is_message(body) and not _content_left(body):
        return "EMPTY_CONTENT"
    return ""


def _parts(entries: Iterable[_Entry]) -> list[list[_Entry]]:
    """The inputs, outputs and snapshots by themselves, each as it stands after de-duplication."""
    parts: dict[tuple[int, str], list[_Entry]] = {}
    for entry in entries:
        parts.setdefault((entry.turn, entry.part), []).append(entry)
    return list(parts.values())


def _let_reasoning_go(entries: list[_Entry]) -> None:
    """From the end of each part backwards: reasoning goes with what follows it."""
    at_rule = ("", "UNPAIRED_CALL", "UNPAIRED_OUTPUT", "PENDING_REQUEST", "EMPTY_CONTENT")
    for part in _parts(entry for entry in entries if entry.reason in at_rule):
        follower: _Entry | None = None
        for entry in reversed(part):
            if entry.is_reasoning and (follower.reason if follower else entry.sanitised):
                entry.reason = "TIED_REASONING"
            follower = entry


def _cut(whole: list[_Entry], limit: int | None, limit_unit: str) -> int:
    """How many of the oldest items the limit cuts off."""
    if limit is None:
        return 0
    if limit_unit != "TURNS":
        return max(0, len(whole) - limit)
    turns = sorted({entry.turn for entry in whole})
    kept = set(turns[len(turns) - limit :] if limit < len(turns) else turns)
    return sum(1 for entry in whole if entry.turn not in kept)


def _unit(whole: list[_Entry], entry: _Entry) -> list[_Entry]:
    """What must not be torn apart: the item, its partner, and reasoning with what follows it."""
    unit = [entry]
    for member in unit:
        tied = [member.partner] if member.partner else []
        place = whole.index(member)
        if member.is_reasoning and place + 1 < len(whole) and _same_part(member, whole[place + 1]):
            tied.append(whole[place + 1])
        if place and whole[place - 1].is_reasoning and _same_part(member, whole[place - 1]):
            tied.append(whole[place - 1])
        unit.extend(other for other in tied if other not in unit)
    return unit


def _same_part(one: _Entry, other: _Entry) -> bool:
    return (one.turn, one.part) == (other.turn, other.part)


def _exclusions(
    turns: list[_OnLine], entries: list[_Entry], deleted: set[int], from_turn: int
) -> tuple[Exclusion, ...]:
    left_out: dict[tuple[int, str], dict[str, None]] = {
        (number, "DELETED"): {} for number in deleted if number >= from_turn
    }
    for entry in entries:
        if entry.reason and entry.turn >= from_turn:
            left_out.setdefault((entry.turn, entry.reason), {})[entry.id] = None
    return tuple(
        Exclusion(turns[number].record.id, turns[number].record.status, reason, tuple(ids))
        for (number, reason), ids in sorted(left_out.items(), key=lambda pair: pair[0][0])
    )


def _check_duplicates(
    scope: _Scope,
    line: list[_Record],
    inputs: tuple[_Body, ...],
    duplicate_items: str,
    writing: _Record | None = None,
) -> None:
    """Refuses ids that stand in the history of the line, put there by another response than the writing one."""
    if duplicate_items == "KEEP_FIRST":
        return
    entries, _ = _contributions(scope, [_OnLine(record) for record in line], AS_STORED)
    _keep_first_places(entries)
    standing = {entry.id for entry in entries if not entry.reason and line[entry.turn] is not writing}
    repeated = [item_id for item_id in dict.fromkeys(_ids(inputs)) if item_id in standing]
    if repeated:
        raise RefusedError(
            "ALREADY_EXISTS",
            "DUPLICATE_ITEM",
            {"item_ids": json.dumps(repeated), "item_count": str(len(repeated))},
            f"Duplicate item found with id {repeated[0]}. "
            "Remove duplicate items from your input and try again.",
        )


def _erase(records: Sequence[_Record]) -> Receipt:
    live = [record for record in records if not record.deleted]
    receipt = Receipt(len(live), sum(record.item_count for record in live))
    for record in live:
        record.empty()
    for record in records:
        record.snapshot = ()
    return receipt


# Items as JSON


class _Number:
    """A JSON number: no rule looks at one, and Python's own types would lose or refuse some."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def read_json(text: str) -> Any:
    """The value of a JSON text, numbers as their texts. Raises ValueError for what is no JSON."""
    return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _json_object(field_name: str, text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        raise _invalid(field_name) from None
    if not isinstance(value, dict):
        raise _invalid(field_name)
    return value


def _bodies(response_id: str, part: str, texts: Iterable[str]) -> tuple[_Body, ...]:
    bodies = []
    for index, text in enumerate(texts):
        where = f"response.{part}_items[{index}].json"
        fields = _json_object(where, text)
        item_id = fields.get("id")
        if item_id is None or item_id in NO_ID:
            digest = hashlib.sha256(f"{response_id}\0{part}\0{index}".encode()).hexdigest()
            item_id = f"item_{digest[:32]}"
        if not isinstance(item_id, str):
            raise _invalid(where)
        _check_id(where, item_id)
        bodies.append(_Body(item_id, text, fields))
    return tuple(bodies)


def _is_message(body: _Body) -> bool:
    return body.type == "message" or (not body.type and "role" in body.fields)


def _is_empty_text(part: Any) -> bool:
    if isinstance(part, dict):
        return _text(part.get("type")).endswith("text") and part.get("text") == ""
    return bool(part == "")


def _content_left(body: _Body) -> bool:
    content = body.fields.get("content")
    if isinstance(content, list):
        return any(not _is_empty_text(part) for part in content)
    return content is not None and content != ""


def _without_empty_text(body: _Body) -> str:
    """The text of a message without its empty text parts; the text as it is when there are none."""
    content = body.fields.get("content")
    if not _is_message(body) or not isinstance(content, list) or not any(map(_is_empty_text, content)):
        return body.json
    fields = json.loads(body.json)
    fields["content"] = [part for part in fields["content"] if not _is_empty_text(part)]
    return json.dumps(fields)


def _plain(record: _Record, part: str, body: _Body) -> Item:
    return Item(body.id, body.type, body.json, part == "output" and record.status in PARTIAL)


def _ids(bodies: Iterable[_Body]) -> tuple[str, ...]:
    return tuple(body.id for body in bodies)


def _texts(bodies: Iterable[_Body]) -> tuple[str, ...]:
    return tuple(body.json for body in bodies)


def _first_of_each(bodies: Iterable[_Body]) -> list[_Body]:
    first: dict[str, _Body] = {}
    for body in bodies:
        first.setdefault(body.id, body)
    return list(first.values())


def _error_of(response: dict[str, Any]) -> tuple[str, str] | None:
    error = response.get("error")
    return None if error is None else (error.get("code", ""), error.get("message", ""))


# Refusals


def _invalid(field_name: str) -> RefusedError:
    return RefusedError("INVALID_ARGUMENT", "INVALID_FIELD", {"field": field_name})


def _mismatch(response_id: str, expected: int, actual: int) -> RefusedError:
    return RefusedError(
        "ABORTED",
        "REVISION_MISMATCH",
        {"response_id": response_id, "expected": str(expected), "actual": str(actual)},
    )


def _check_id(field_name: str, value: str) -> None:
    if not 1 <= len(value) <= 256 or any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise _invalid(field_name)
