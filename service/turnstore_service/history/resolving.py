"""Resolving a line: reading as much of it as the answer needs, and applying the rules.

Under a limit only a window of the newest turns is read, grown until the rules say that the answer is whole, with
the few older turns that the rules ask for. Without a limit the whole line is the window.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnstore_service.replay.rules import (
    Sifted,
    contributes_whole,
    cut,
    explain,
    look_behind,
    reach,
    settled,
    sift,
)
from turnstore_service.replay.values import Entry, Excluded, Holder, LimitUnit, Question, Reason, Turn
from turnstore_service.storage.mongo import documents
from turnstore_service.storage.mongo.reading import Batch, Reading
from turnstore_service.storage.values import NO_END, Line, Texts

_SPARE_ITEMS = 8
"""Items read beyond the limit and a quarter of it, since rules leave some out."""
BODIES_ALONG_UNITS = 1000
"""Limit up to which bodies are read together with the turns; larger windows are read without, then by page."""


@dataclass(slots=True)
class History:
    """A resolved history."""

    entries: Sequence[Entry]
    exclusions: Sequence[Excluded]
    left_out: Mapping[Reason, int]
    """How many of the items that were looked at were left out, by reason."""
    truncated: bool
    ancestor_deleted: bool
    newest_place: int
    """The newest place that was seen: pages of one history do not look beyond it."""
    revisions: Mapping[str, int]
    texts: Texts
    """JSON that came along with the turns."""

    def digest(self) -> bytes:
        """Tells whether two resolutions gave the same history: items, their order and the state they are in."""
        digest = hashlib.blake2b(digest_size=16)
        for entry in self.entries:
            key = entry.key or ""
            digest.update(f"{entry.head.id}\n{key}\n{self.revisions.get(key, 0)}\r".encode())
        for excluded in self.exclusions:
            digest.update(f"{excluded.response_id}\n{excluded.reason}\n{len(excluded.item_ids)}\r".encode())
        digest.update(b"%d%d" % (self.truncated, self.ancestor_deleted))
        return digest.digest()


@dataclass(frozen=True, slots=True)
class PlainHistory:
    """A history about whose items nothing had to be decided."""

    item_ids: Sequence[str]
    truncated: bool
    ancestor_deleted: bool


class _Window:
    """The turns of one or two lines that have been read, oldest first."""

    def __init__(
        self, reading: Reading, lines: Sequence[Line], question: Question, explained: bool, full: bool
    ) -> None:
        self._reading = reading
        self._lines = lines
        self._question = question
        self._explained = explained
        with_bodies = full and question.limit is not None and question.limit <= BODIES_ALONG_UNITS
        looks_at_types = full or explained or question.policy.matches_calls or question.named
        self._projection = (
            documents.WITH_BODIES if with_bodies else documents.HEADS if looks_at_types else documents.IDS
        )
        self._at = len(lines) - 1
        self._below = NO_END + 1
        self._turns: list[Turn] = [line.tail for line in lines if line.tail is not None]
        self._older: dict[str, tuple[int, int, Turn]] = {}
        self._holders: dict[str, list[Holder]] = {}
        self._sought_holders: set[str] = set()
        self._sought: tuple[set[str], set[str]] = (set(), set())
        self.complete = False
        self.deleted = False
        self.newest_place = 0
        self.revisions: dict[str, int] = {}
        self.texts = Texts()

    async def prepare(self) -> None:
        """Settles by what time a running turn counts as abandoned."""
        self._abandoned_before = await self._reading.abandoned_before()

    async def read(self, count: int) -> Batch:
        """Reads that many older turns."""
        line = self._lines[self._at]
        first = self._below > NO_END
        return await self._reading.turns(
            line,
            below=self._below,
            count=count,
            projection=self._projection,
            everything=self._explained,
            ask_deleted=first,
            abandoned_before=self._abandoned_before,
        )

    def take(self, batch: Batch) -> None:
        """Takes in what was read, less what a limit on items hardly reaches."""
        if self._question.limit is not None and self._question.unit is LimitUnit.ITEMS:
            batch.keep_items(self._question.limit + self._question.limit // 4 + _SPARE_ITEMS)
        found = batch.turns()
        self.deleted = self.deleted or bool(batch.newest_lost)
        if self._below > NO_END and self._at == len(self._lines) - 1:
            # What was deleted at the end is on the line too: later pages have to see that it was.
            self.newest_place = max(batch.newest_place, batch.newest_lost)
        if found:
            self._below = found[-1][0]
        known = {turn.key for turn in self._turns}
        self._turns[:0] = [turn for _, turn in reversed(found) if turn.key not in known]
        self.revisions.update(batch.revisions())
        self.texts.update(batch.texts())
        for _, turn in found:
            self._older.pop(turn.key, None)
        if not batch.more:
            self._at -= 1
            self._below = NO_END + 1
            self.complete = self._at < 0

    async def has_lost_any(self) -> bool:
        """Whether a deleted response stands on the lines, also where the window did not reach."""
        unread = self._lines[: self._at + (self._below > NO_END)]
        return self.deleted or any([await self._reading.newest_lost(line) for line in unread])

    @property
    def looked_up(self) -> int:
        """How many of `turns` were looked up behind the window."""
        return len(self._older)

    @property
    def turns(self) -> list[Turn]:
        """The older turns that were looked up, then the window."""
        older = [turn for _, _, turn in sorted(self._older.values(), key=lambda found: found[:2])]
        return older + self._turns

    async def sift(self) -> Sifted:
        """Applies the rules to what was read, looking up what they ask for."""
        while True:
            turns = self.turns
            await self._look_up_holders(turns)
            sifted = sift(turns, self._question, self._holders)
            if self.complete or not await self._look_behind(turns, sifted):
                return sifted

    async def _look_up_holders(self, turns: Sequence[Turn]) -> None:
        wanted = {item.id for turn in turns for item in turn.snapshot} - self._sought_holders
        if wanted:
            self._sought_holders |= wanted
            line = self._lines[0]
            holders, revisions = await self._reading.holders(
                line.scope, sorted(wanted), self._abandoned_before
            )
            self._holders.update(holders)
            for key, revision in revisions.items():
                self.revisions.setdefault(key, revision)

    async def _look_behind(self, turns: Sequence[Turn], sifted: Sifted) -> bool:
        oldest = max(self.looked_up, reach(sifted, self._question))
        ids, calls = look_behind(turns, sifted, self._question, oldest)
        if len(self._lines) > 1:
            # Writes record repeated ids along their own line: what another line holds has to be looked up.
            ids.update(entry.head.id for entry in sifted.entries)
        ids -= self._sought[0]
        calls -= self._sought[1]
        if not ids and not calls:
            return False
        self._sought[0].update(ids)
        self._sought[1].update(calls)
        found_any = False
        known = {turn.key for turn in self._turns}
        for number, line in enumerate(self._lines[: self._at + 1]):
            below = self._below if number == self._at else NO_END + 1
            for place, turn, revision in await self._reading.behind(
                line, below, ids, calls, self._abandoned_before
            ):
                if turn.key not in known:
                    found_any = True
                    self._older.setdefault(turn.key, (number, place, turn))
                    self.revisions[turn.key] = revision
        return found_any


async def resolve(
    reading: Reading, lines: Sequence[Line], question: Question, *, explained: bool, full: bool
) -> History:
    """The history of one line, or of two one after the other (each item once).

    Raises StoreUnavailableError and StoreDeadlineError: a history is never shorter because the database is away.
    """
    window = _Window(reading, lines, question, explained, full)
    await window.prepare()
    count = _first_guess(question)
    window.take(await window.read(count))
    return await _resolve_in(window, question, count, explained=explained)


async def resolve_ids(reading: Reading, line: Line, question: Question) -> PlainHistory | History:
    """The item ids of a line's history, for a policy that looks at nothing but turns.

    Most such histories are plain: every turn contributes whole and no id stands twice, so that the newest ids
    are the answer. Whatever is not plain is decided by the rules.
    """
    window = _Window(reading, (line,), question, explained=False, full=False)
    await window.prepare()
    count = _first_guess(question)
    batch = await window.read(count)
    plain = _plain(batch, question)
    if plain is not None:
        return plain
    window.take(batch)
    return await _resolve_in(window, question, count, explained=False)


def looks_at_turns_alone(question: Question, lines: Sequence[Line]) -> bool:
    """Whether the ids of a history depend on turns alone, not on what their items are."""
    return (
        len(lines) == 1 and lines[0].tail is None and not question.policy.matches_calls and not question.named
    )


def _plain(batch: Batch, question: Question) -> PlainHistory | None:
    turns = batch.plain_ids(contributes_whole(question.policy))
    if turns is None:
        return None
    limit = question.limit
    if limit is not None and question.unit is LimitUnit.TURNS:
        turns = [ids for ids in turns if ids]
        truncated = len(turns) > limit
        turns = turns[:limit]
        limit = None
    else:
        truncated = limit is not None and sum(map(len, turns)) > limit
    ids = [item_id for turn in reversed(turns) for item_id in turn]
    if (batch.more and not truncated) or len(set(ids)) < len(ids):
        return None
    return PlainHistory(
        ids[len(ids) - limit :] if truncated and limit is not None else ids,
        truncated,
        bool(batch.newest_lost),
    )


async def _resolve_in(window: _Window, question: Question, count: int, *, explained: bool) -> History:
    while True:
        sifted = await window.sift()
        answer = cut(sifted, question)
        if window.complete or settled(answer, window.looked_up):
            break
        count = min(count * 2, 1 << 20)
        window.take(await window.read(count))
    exclusions = explain(window.turns, answer) if explained else ()
    deleted = await window.has_lost_any()
    return History(
        answer.entries,
        exclusions,
        Counter(entry.reason for entry in answer.sifted if entry.reason is not None),
        answer.truncated,
        deleted,
        window.newest_place,
        window.revisions,
        window.texts,
    )


def _first_guess(question: Question) -> int:
    """How many turns to read at first: most have two items or more."""
    if question.limit is None:
        return 1 << 20
    if question.unit is LimitUnit.TURNS:
        return question.limit + 1
    return question.limit // 2 + 1
