"""Resolving a line: reading as much of it as the answer needs, and applying the rules.

Under a limit only a window of the newest turns is read, grown until the rules say that the answer is whole, with
the few older turns that the rules ask for. Without a limit the whole line is the window.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class PlainHistory(NamedTuple):
    """A history about whose items nothing had to be decided."""

    item_ids: Sequence[str]
    types: Sequence[str]
    texts: Sequence[str]
    """Their JSON; this and their types only in a full history."""
    truncated: bool
    ancestor_deleted: bool


class Resolution:
    """The resolving of one line, or of two one after the other (each item once): reads turns until the rules say
    that the answer is whole.
    """

    def __init__(
        self, reading: Reading, lines: Sequence[Line], question: Question, *, explained: bool, full: bool
    ) -> None:
        """Reads nothing yet."""
        self._reading = reading
        self._lines = lines
        self._question = question
        self._explained = explained
        self._full = full
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
        self._complete = False
        self._deleted = False
        self._newest_place = 0
        self._revisions: dict[str, int] = {}
        self._texts = Texts()

    async def begin(self) -> None:
        """Reads the newest turns: as many as mostly are enough.

        Raises StoreUnavailableError and StoreDeadlineError, as `history` does: a history is never shorter because
        the database is away.
        """
        self._abandoned_before = await self._reading.abandoned_before()
        self._count = _first_guess(self._question)
        self._batch = await self._read()

    def plain(self) -> PlainHistory | None:
        """The history, where what was read first is all that it takes: most histories are plain.

        That is: the policy looks at nothing but turns, every turn contributes whole and no id stands twice, so
        that the newest items are the answer.
        """
        question, batch = self._question, self._batch
        if (
            len(self._lines) > 1
            or self._turns
            or self._explained
            or question.policy.matches_calls
            or question.named
        ):
            return None
        limit = question.limit
        counts_turns = question.unit is LimitUnit.TURNS
        items = batch.plain(
            contributes_whole(question.policy, marked=self._full),
            bodies=self._full,
            most_turns=limit if counts_turns else None,
        )
        if items is None or len(set(items.ids)) < len(items.ids):
            return None
        ids, types, texts, truncated = items
        if limit is not None and not counts_turns and len(ids) > limit:
            truncated = True
            begin = len(ids) - limit
            ids, types, texts = ids[begin:], types[begin:], texts[begin:]
        if batch.more and not truncated:
            return None
        return PlainHistory(ids, types, texts, truncated, bool(batch.newest_lost))

    async def history(self) -> History:
        """The history, by all rules."""
        self._take(self._batch)
        while True:
            sifted = await self._sift()
            answer = cut(sifted, self._question)
            if self._complete or settled(answer, self._looked_up):
                break
            self._count = min(self._count * 2, 1 << 20)
            self._take(await self._read())
        return History(
            answer.entries,
            explain(self._all_turns, answer) if self._explained else (),
            Counter(entry.reason for entry in answer.sifted if entry.reason is not None),
            answer.truncated,
            await self._has_lost_any(),
            self._newest_place,
            self._revisions,
            self._texts,
        )

    async def _read(self) -> Batch:
        line = self._lines[self._at]
        first = self._below > NO_END
        return await self._reading.turns(
            line,
            below=self._below,
            count=self._count,
            projection=self._projection,
            everything=self._explained,
            ask_deleted=first,
            abandoned_before=self._abandoned_before,
        )

    def _take(self, batch: Batch) -> None:
        """Takes in what was read, less what a limit on items hardly reaches."""
        if self._question.limit is not None and self._question.unit is LimitUnit.ITEMS:
            batch.keep_items(self._question.limit + self._question.limit // 4 + _SPARE_ITEMS)
        found = batch.turns()
        self._deleted = self._deleted or bool(batch.newest_lost)
        if self._below > NO_END and self._at == len(self._lines) - 1:
            # What was deleted at the end is on the line too: later pages have to see that it was.
            self._newest_place = max(batch.newest_place, batch.newest_lost)
        if found:
            self._below = found[-1][0]
        known = {turn.key for turn in self._turns}
        self._turns[:0] = [turn for _, turn in reversed(found) if turn.key not in known]
        self._revisions.update(batch.revisions())
        self._texts.update(batch.texts())
        for _, turn in found:
            self._older.pop(turn.key, None)
        if not batch.more:
            self._at -= 1
            self._below = NO_END + 1
            self._complete = self._at < 0

    async def _has_lost_any(self) -> bool:
        """Whether a deleted response stands on the lines, also where the window did not reach."""
        unread = self._lines[: self._at + (self._below > NO_END)]
        return self._deleted or any([await self._reading.newest_lost(line) for line in unread])

    @property
    def _looked_up(self) -> int:
        """How many of `_all_turns` were looked up behind the window."""
        return len(self._older)

    @property
    def _all_turns(self) -> list[Turn]:
        """The older turns that were looked up, then the window."""
        older = [turn for _, _, turn in sorted(self._older.values(), key=lambda found: found[:2])]
        return older + self._turns

    async def _sift(self) -> Sifted:
        """Applies the rules to what was read, looking up what they ask for."""
        while True:
            turns = self._all_turns
            await self._look_up_holders(turns)
            sifted = sift(turns, self._question, self._holders)
            if self._complete or not await self._look_behind(turns, sifted):
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
                self._revisions.setdefault(key, revision)

    async def _look_behind(self, turns: Sequence[Turn], sifted: Sifted) -> bool:
        oldest = max(self._looked_up, reach(sifted, self._question))
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
                    self._revisions[turn.key] = revision
        return found_any


async def resolve(
    reading: Reading, lines: Sequence[Line], question: Question, *, explained: bool, full: bool
) -> History:
    """The history of one line, or of two one after the other, by all rules. Raises as `Resolution.begin`."""
    resolution = Resolution(reading, lines, question, explained=explained, full=full)
    await resolution.begin()
    return await resolution.history()


def _first_guess(question: Question) -> int:
    """How many turns to read at first: most have two items or more."""
    if question.limit is None:
        return 1 << 20
    if question.unit is LimitUnit.TURNS:
        return question.limit + 1
    return question.limit // 2 + 1
