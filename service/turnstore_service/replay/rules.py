"""The replay rules: which items of a line of turns the next turn is given.

A line is a list of turns, oldest first. Resolving goes in four steps, each a function here:

1. `gather`: the items that contribute, by status, exclusion and policy (rules 1, 3, 6, 7, 9), each id at
   its first place (rule 4).
2. `match`: which output answers which call.
3. `sift`: what SANITIZE and PAIRED leave out, with the reasoning that belongs to it.
4. `cut`: the limit (rule 5), WHOLE, and the calls that the caller is about to answer.

Nothing here reads a store or a clock: statuses are passed in as they count now (rule 2). Under a limit the
caller passes the newest turns that matter (the window), and before them the few older turns that `look_behind`
asks for; the answer is then the same as with the whole line.
"""

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnstore_service.replay.items import pairing
from turnstore_service.replay.values import (
    Answer,
    Entry,
    Excluded,
    Head,
    Holder,
    LimitCut,
    LimitUnit,
    Part,
    Policy,
    Question,
    Reason,
    Status,
    Text,
    ToolItems,
    Turn,
    TurnRule,
)

Holders = Mapping[str, Sequence[Holder]]
"""For each id of a snapshot, the live responses of the scope that hold such an item."""

_PARTIAL = (Status.CANCELLED, Status.INCOMPLETE)
_WAITS_AFTER = (Status.COMPLETED, Status.UNSPECIFIED)


def left_out(status: Status, excluded: bool, deleted: bool, part: Part, policy: Policy) -> Reason | None:
    """Why a turn's items of this part are left out; None when they contribute.

    Rule 1: a failed response contributes nothing of its own, whatever the policy. Rule 6: nor does one that
    the caller excluded. Rule 7: nor a deleted one. Rule 3: every other one does, unless the policy says
    otherwise. A snapshot was inherited, so none of this touches it.
    """
    if part is Part.SNAPSHOT:
        return None
    if deleted:
        return Reason.DELETED
    if status is Status.FAILED:
        return Reason.FAILED
    if excluded:
        return Reason.EXCLUDED_BY_CALLER
    rule = policy.rule(status)
    if rule is TurnRule.EXCLUDE or (rule is TurnRule.INPUT_ONLY and part is Part.OUTPUT):
        if status is Status.CANCELLED:
            return Reason.CANCELLED
        return Reason.INCOMPLETE if status is Status.INCOMPLETE else Reason.IN_FLIGHT
    return None


def gather(turns: Sequence[Turn], policy: Policy, holders: Holders) -> list[Entry]:
    """Every item of the turns in replay order: the snapshot, then input, then output (rule 4).

    Entries that do not contribute carry the reason; an id that already stands earlier is a DUPLICATE.
    """
    entries: list[Entry] = []
    seen: set[str] = set()
    treatments: dict[tuple[Status, bool, bool], Mapping[Part, _Treated]] = {}
    for number, turn in enumerate(turns):
        if turn.snapshot:
            for entry in _snapshot_entries(number, turn, policy, holders):
                if entry.reason is None:
                    entry.reason = _repeats(entry.head.id, seen)
                entries.append(entry)
        kind = turn.status, turn.excluded, turn.deleted
        treated = treatments.get(kind)
        if treated is None:
            treated = treatments[kind] = _treatment(*kind, policy)
        for part, heads in ((Part.INPUT, turn.input), (Part.OUTPUT, turn.output)):
            if not heads:
                continue
            left, partial, sanitized = treated[part]
            for index, head in enumerate(heads):
                reason = _repeats(head.id, seen) if left is None else left
                entries.append(
                    Entry(number, part, head, turn.key, part, index, turn.status, partial, sanitized, reason)
                )
    return entries


class _Treated(NamedTuple):
    """How the items of one part of a turn are treated."""

    left_out: Reason | None
    partial: bool
    sanitized: bool


def _treatment(status: Status, excluded: bool, deleted: bool, policy: Policy) -> Mapping[Part, _Treated]:
    """How the items of such a turn are treated, by part."""
    return {
        part: _Treated(
            left_out(status, excluded, deleted, part, policy),
            partial := part is Part.OUTPUT and status in _PARTIAL,
            partial and policy.rule(status) is TurnRule.SANITIZE,
        )
        for part in (Part.INPUT, Part.OUTPUT)
    }


def _repeats(item_id: str, seen: set[str]) -> Reason | None:
    """Rule 4: an id that stands more than once is kept at its first place."""
    if item_id in seen:
        return Reason.DUPLICATE
    seen.add(item_id)
    return None


def _snapshot_entries(number: int, turn: Turn, policy: Policy, holders: Holders) -> Iterator[Entry]:
    """Rule 9: an id known when the snapshot was taken stays only while some stored response contributes it."""
    for item in turn.snapshot:
        holder = contributor(holders.get(item.id, ()), policy)
        if holder is None:
            reason = Reason.NO_CONTRIBUTOR if item.known else None
            yield Entry(number, Part.SNAPSHOT, Head(item.id), None, Part.INPUT, 0, None, False, False, reason)
        else:
            _, partial, sanitized = _treatment(holder.status, holder.excluded, False, policy)[holder.part]
            yield Entry(
                number,
                Part.SNAPSHOT,
                holder.head,
                holder.key,
                holder.part,
                holder.index,
                holder.status,
                partial,
                sanitized,
                None,
            )


def contributor(holders: Sequence[Holder], policy: Policy) -> Holder | None:
    """Of the responses that hold an item, the one created last among those that contribute it."""
    contributing = [
        holder
        for holder in holders
        if left_out(holder.status, holder.excluded, False, holder.part, policy) is None
    ]
    return max(contributing, key=lambda holder: holder.created, default=None)  # type: ignore[arg-type,return-value]


def match(entries: Sequence[Entry]) -> dict[int, int]:
    """Which entries are partners, both ways: index of a call to that of its output, and back.

    An output answers the nearest call before it of its kind and call id that has no output yet. Kinds never
    mix, even under the same call id.
    """
    partners: dict[int, int] = {}
    waiting: dict[tuple[str, str], list[int]] = {}
    for index, entry in enumerate(entries):
        head = entry.head
        if not head.call or entry.reason is not None:
            continue
        pair = pairing(head.type)
        if pair is None:
            continue
        kind, is_call = pair
        calls = waiting.setdefault((kind, head.call), [])
        if is_call:
            calls.append(index)
        elif calls:
            call = calls.pop()
            partners[call] = index
            partners[index] = call
    return partners


@dataclass(slots=True)
class Sifted:
    """The items of a line after every rule but the limit."""

    entries: list[Entry]
    partners: dict[int, int]
    named: set[int]
    """Unanswered calls and requests that the caller is about to answer."""
    following: dict[int, int]
    """For a reasoning item, the item that it belongs to."""


def sift(turns: Sequence[Turn], question: Question, holders: Holders) -> Sifted:
    """Steps 1 to 3: what contributes, less what SANITIZE and PAIRED leave out."""
    policy = question.policy
    entries = gather(turns, policy, holders)
    if not policy.matches_calls and not question.named:
        return Sifted(entries, {}, set(), {})
    partners = match(entries)
    named: set[int] = set()
    paired = policy.tool_items is ToolItems.PAIRED
    last = _last_contribution(entries) if paired and not question.named else None
    following = _following(entries)
    for index, entry in enumerate(entries):
        if entry.reason is not None:
            continue
        applies = paired or entry.sanitized
        if entry.head.call and index not in partners and (applies or question.named):
            pair = pairing(entry.head.type)
            if pair is None:
                continue
            if not pair[1]:
                if applies:
                    entry.reason = Reason.UNPAIRED_OUTPUT
            elif question.named and entry.head.call in question.answered:
                named.add(index)
            elif applies and not (last and _waits(entry, last)):
                pending = entry.head.type == "mcp_approval_request"
                entry.reason = Reason.PENDING_REQUEST if pending else Reason.UNPAIRED_CALL
        elif entry.sanitized and entry.head.text is Text.NOTHING:
            entry.reason = Reason.EMPTY_CONTENT
    _tie_reasoning(entries, following)
    return Sifted(entries, partners, named, following)


def _last_contribution(entries: Sequence[Entry]) -> Entry | None:
    """The last item that contributes: it tells which turn is the last one."""
    return next((entry for entry in reversed(entries) if entry.reason is None), None)


def _waits(call: Entry, last: Entry) -> bool:
    """Whether an unanswered call may still be answered by the next input.

    It may if it belongs to the last contributing turn (for an item of a snapshot: the turn that it came from)
    and that turn ended normally.
    """
    return last.status in _WAITS_AFTER and call.key is not None and call.key == last.key


def _following(entries: Sequence[Entry]) -> dict[int, int]:
    """For each reasoning item, the item directly after it in the same part of the same turn."""
    following: dict[int, int] = {}
    later: int | None = None
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if entry.reason is not None:
            continue
        if entry.head.type == "reasoning" and later is not None:
            after = entries[later]
            if after.turn == entry.turn and after.part == entry.part:
                following[index] = later
        later = index
    return following


def _tie_reasoning(entries: Sequence[Entry], following: Mapping[int, int]) -> None:
    """Reasoning goes with the item that it belongs to, and so on backwards.

    Model services refuse the one without the other (openai-agents-python#3514). In the output of a sanitised
    turn, reasoning with nothing after it goes too.
    """
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if entry.reason is not None or entry.head.type != "reasoning":
            continue
        after = following.get(index)
        tied = entry.sanitized if after is None else entries[after].reason is not None
        if tied:
            entry.reason = Reason.TIED_REASONING


def cut(sifted: Sifted, question: Question) -> Answer:
    """Step 4: the newest `limit` units of what is left, in their order.

    WHOLE leaves out every unit that lies partly before the cut. Named calls are not cut: with the reasoning
    that belongs to them they come first, in addition to the limit.
    """
    entries = sifted.entries
    staying = [index for index, entry in enumerate(entries) if entry.reason is None]
    first = _first_inside(entries, staying, question)
    if first == 0:
        return Answer([entries[index] for index in staying], False, 0, entries)
    inside = staying[first:]
    oldest = entries[inside[0]].turn if inside else sys.maxsize
    before = set(staying[:first])
    brought = _with_reasoning(sifted, sifted.named)
    if question.policy.limit_cut is LimitCut.WHOLE and inside:
        torn = _units_begun_before(sifted, staying, inside[0])
        for index in inside:
            if index in torn and index not in brought:
                entries[index].reason = Reason.SPLIT_UNIT
    kept = [index for index in staying if index in brought and index in before]
    kept += [index for index in inside if entries[index].reason is None]
    truncated = any(index not in brought for index in before)
    return Answer([entries[index] for index in kept], truncated, oldest, entries)


def _first_inside(entries: Sequence[Entry], staying: Sequence[int], question: Question) -> int:
    """Position in `staying` of the oldest item that the limit admits."""
    if question.limit is None:
        return 0
    if question.unit is LimitUnit.ITEMS:
        return max(0, len(staying) - question.limit)
    turns: set[int] = set()
    for position in range(len(staying) - 1, -1, -1):
        turns.add(entries[staying[position]].turn)
        if len(turns) > question.limit:
            return position + 1
    return 0


def _with_reasoning(sifted: Sifted, indices: set[int]) -> set[int]:
    """These items and the reasoning that belongs to them."""
    found = set(indices)
    if found:
        for reasoning in sorted(sifted.following, reverse=True):
            if sifted.following[reasoning] in found:
                found.add(reasoning)
    return found


def _units_begun_before(sifted: Sifted, staying: Sequence[int], cut_at: int) -> set[int]:
    """Items whose unit (call, output, the reasoning before either or before another item) begins before the cut."""
    begun: set[int] = set()
    for index in staying:
        # A unit grows from its oldest item to later ones, so one pass in order finds every member: the item
        # after a reasoning item, and the output of a call.
        if index < cut_at or index in begun:
            begun.update(
                other
                for other in (sifted.following.get(index), sifted.partners.get(index))
                if other is not None and other > index
            )
    # An item between may belong to a unit by what comes after it: reasoning before the output of a torn call.
    for reasoning in sorted(sifted.following, reverse=True):
        if sifted.following[reasoning] in begun:
            begun.add(reasoning)
    return begun


def reach(sifted: Sifted, question: Question) -> int:
    """The oldest turn that the limit reaches, as far as is known; beyond every turn when it reaches none."""
    staying = [index for index, entry in enumerate(sifted.entries) if entry.reason is None]
    first = _first_inside(sifted.entries, staying, question)
    if not first:
        return 0
    return sifted.entries[staying[first]].turn if first < len(staying) else sys.maxsize


def settled(answer: Answer, looked_up: int) -> bool:
    """Whether an answer would be the same with all older turns: the limit left out something, and where it cuts
    is known.

    The first `looked_up` turns are not all that stands before the window, so the cut has to lie behind them, and
    the newest item has to be one of the window: it tells which turn is the last one.
    """
    newest = next((entry.turn for entry in reversed(answer.sifted) if entry.reason is None), -1)
    return answer.truncated and answer.oldest_turn >= looked_up and newest >= looked_up


def look_behind(
    turns: Sequence[Turn], sifted: Sifted, question: Question, oldest: int
) -> tuple[set[str], set[str]]:
    """Which ids and which pairing keys have to be looked for in older turns than those given.

    Ids: those that their write recorded as repeated. Keys: those that the caller named, and those of outputs
    without a call in sight, but only of turns from `oldest` on: what the outputs of turns answer that were
    looked up themselves, or lie before the cut, changes nothing after it. What is found can only move the cut
    to newer turns.
    """
    keys = set(question.answered)
    ids: set[str] = set()
    matches = question.policy.matches_calls or question.named
    for index, entry in enumerate(sifted.entries):
        if entry.reason is not Reason.DUPLICATE and entry.head.id in turns[entry.turn].repeated:
            ids.add(entry.head.id)
        if (
            matches
            and entry.turn >= oldest
            and entry.head.call
            and index not in sifted.partners
            and entry.reason in {None, Reason.UNPAIRED_OUTPUT}
            and _is_output(entry.head.type)
        ):
            keys.add(entry.head.call)
    return ids, keys


def _is_output(item_type: str) -> bool:
    pair = pairing(item_type)
    return pair is not None and not pair[1]


@functools.cache
def contributes_whole(policy: Policy, *, marked: bool) -> frozenset[Status]:
    """The statuses of turns whose every item contributes under a policy that leaves out no single items.

    A window of such turns without a snapshot, an exclusion or an id that stands twice is its own answer.
    `marked`: less those of whose items some are marked as partial.
    """
    return frozenset(
        status
        for status in Status
        if status is not Status.FAILED
        and policy.rule(status) is TurnRule.INCLUDE
        and not (marked and status in _PARTIAL)
    )


def explain(turns: Sequence[Turn], answer: Answer) -> list[Excluded]:
    """Every item left out of the turns from the oldest that the answer reaches, with the reason."""
    groups: dict[tuple[int, Reason], list[str]] = {}
    for number, turn in enumerate(turns):
        if turn.deleted and number >= answer.oldest_turn:
            groups[number, Reason.DELETED] = []
    for entry in answer.sifted:
        if entry.reason is not None and entry.turn >= answer.oldest_turn:
            groups.setdefault((entry.turn, entry.reason), []).append(entry.head.id)
    return [
        Excluded(turns[number].response_id, turns[number].status, reason, tuple(dict.fromkeys(ids)))
        for (number, reason), ids in sorted(groups.items(), key=lambda group: group[0][0])
    ]


def find_duplicates(
    turns: Sequence[Turn], holders: Holders, input_ids: Sequence[str], own_key: str
) -> list[str]:
    """The input ids that already stand in the history, put there by another response.

    Judged under `as_stored`, whatever policy replay uses, so that one write has one outcome.
    """
    standing = {
        entry.head.id
        for entry in gather(turns, Policy(), holders)
        if entry.reason is None and turns[entry.turn].key != own_key
    }
    return [item_id for item_id in dict.fromkeys(input_ids) if item_id in standing]
