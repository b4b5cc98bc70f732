"""Reads: the turns of a line, who holds an item, bodies, single responses.

Every query is an index scan whose work follows what it returns.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from turnstore_service.replay.values import IN_FLIGHT, BodyRef, Holder, Part, Status, Turn
from turnstore_service.storage.errors import (
    ChangedError,
    DataMissingError,
    ParentNotFoundError,
    ResponseNotFoundError,
)
from turnstore_service.storage.mongo import documents
from turnstore_service.storage.mongo.bodies import PAYLOAD, Bodies
from turnstore_service.storage.mongo.driver import Database, Document
from turnstore_service.storage.mongo.indexes import RESPONSES
from turnstore_service.storage.mongo.lines import DELETED_PLACE, Lines, conversation_thread
from turnstore_service.storage.values import (
    NO_END,
    Line,
    Scope,
    Segment,
    StoredResponse,
    Summary,
    Texts,
)

SEGMENTS_AT_ONCE = 64
"""Stretches of threads in one query: the planner looks at each."""
TURNS_AT_ONCE = 2000
"""Turns in one query, so that a long line is read in pieces."""
IDS_AT_ONCE = 1000
RESPONSES_AT_ONCE = 100
"""Responses whose bodies are read in one query; each brings at most `documents.BODIES_ALONG_BYTES`."""

_PLACE = {"id": 1, "thread": 1, "place": 1, "deleted": 1, "previous_response_id": 1}


class Batch:
    """Turns of a line, newest first, as one read found them."""

    def __init__(
        self, found: Sequence[Document], more: bool, newest_lost: int, abandoned_before: datetime | None
    ) -> None:
        self._found = found
        self._abandoned_before = abandoned_before
        self.more = more
        """Whether older turns may exist."""
        self.newest_lost = newest_lost
        """Place of the newest deleted response of the line, where that was asked for; 0 for none."""

    @property
    def newest_place(self) -> int:
        """Place of the newest turn; 0 where there is none."""
        return self._found[0]["place"] if self._found else 0

    def keep_items(self, count: int) -> None:
        """Gives up the oldest turns that are not needed to have that many items; they can be read again."""
        for index, document in enumerate(self._found):
            count -= (
                len(document["input"]["ids"]) + len(document["output"]["ids"]) if "input" in document else 0
            )
            if count < 0 and index + 1 < len(self._found):
                self._found = self._found[: index + 1]
                self.more = True
                return

    def turns(self) -> list[tuple[int, Turn]]:
        """Place and turn."""
        return [
            (document["place"], documents.turn_of(document, self._abandoned_before))
            for document in self._found
        ]

    def revisions(self) -> dict[str, int]:
        """Revision of each turn, by its key."""
        return {document["_id"]: document["revision"] for document in self._found}

    def texts(self) -> Texts:
        """JSON that came along with the turns."""
        return _texts_of(self._found)

    def plain(
        self, statuses: AbstractSet[Status], *, bodies: bool, most_turns: int | None = None
    ) -> "PlainItems | None":
        """The items as they stand, oldest first, where nothing has to be decided about any of them.

        None when a turn is not of these statuses or may have been abandoned, is excluded, deleted, has a snapshot
        or repeated ids; with `bodies` also when JSON did not come along. `most_turns`: of the newest turns that
        have items, so many.
        """
        if self._abandoned_before is not None:
            statuses = statuses - IN_FLIGHT
        for document in self._found:
            if (
                document["status"] not in statuses
                or "snapshot" in document
                or "repeated" in document
                or document.get("excluded")
            ):
                return None
        found = self._found[::-1]
        cut = False
        if most_turns is not None:
            found = [document for document in found if document["input"]["ids"] or document["output"]["ids"]]
            cut = len(found) > most_turns
            found = found[len(found) - most_turns :] if cut else found
        items = PlainItems([], [], [], cut)
        for document in found:
            items.ids.extend(document["input"]["ids"])
            items.ids.extend(document["output"]["ids"])
        if bodies:
            for document in found:
                items.types.extend(documents.types_of(document["input"]))
                items.types.extend(documents.types_of(document["output"]))
                items.texts.extend(document.get("input_json", ()))
                items.texts.extend(document.get("output_json", ()))
            if len(items.texts) < len(items.ids):
                return None
        return items


class PlainItems(NamedTuple):
    """Items in the order of replay."""

    ids: list[str]
    types: list[str]
    texts: list[str]
    """Their JSON; this and their types only where bodies were asked for."""
    cut: bool
    """Older turns with items were left out."""


class Reading:
    """The reads of one database."""

    def __init__(
        self, database: Database, lines: Lines, bodies: Bodies, abandon_after: timedelta | None
    ) -> None:
        self._database = database
        self._lines = lines
        self._bodies = bodies
        self._abandon_after = abandon_after

    async def latest(
        self, scope: Scope, response_id: str, projection: Mapping[str, Any] | None = None
    ) -> Document | None:
        """The document of a response of this id that was created last: live, or what stays of a deleted one."""
        first = documents.response_key(scope, response_id, 0)
        # Hardly any id is created twice, and looking for one key costs half of looking for the last of a range.
        document = await self._database.find_one(
            RESPONSES, {"_id": first}, {**projection, "deleted": 1} if projection else None
        )
        if document is not None and not document.get("deleted"):
            return document
        return await self._database.find_one(
            RESPONSES,
            {"_id": {"$gte": first, "$lte": documents.response_key(scope, response_id, 0xFFFFFFFF)}},
            projection,
            [("_id", -1)],
        )

    async def live(
        self, scope: Scope, response_id: str, projection: Mapping[str, Any] | None = None
    ) -> Document:
        """The document of a response that exists. Raises ResponseNotFoundError."""
        document = await self.latest(scope, response_id, {**projection, "deleted": 1} if projection else None)
        if document is None or document.get("deleted"):
            raise ResponseNotFoundError(response_id)
        return document

    async def abandoned_before(self) -> datetime | None:
        """Turns that run and have not changed since then count as FAILED, by the database's clock."""
        if self._abandon_after is None:
            return None
        now = await self._database.now()
        return documents.abandoned_before(now, self._abandon_after)

    # Lines

    async def line_of_conversation(self, scope: Scope, conversation_id: str, last: int = NO_END) -> Line:
        """The line of a conversation, which may not have begun."""
        return await self._lines.line(scope, conversation_thread(conversation_id), last)

    async def line_to(self, scope: Scope, response_id: str) -> Line:
        """The line that ends with a response. Raises ParentNotFoundError."""
        parent = await self.latest(scope, response_id, _PLACE)
        if parent is None or parent.get("deleted"):
            raise ParentNotFoundError(response_id)
        return await self._lines.line(scope, parent["thread"], parent["place"])

    async def line_before(self, scope: Scope, response_id: str) -> Line:
        """What a response was given: its line before it, and its snapshot. Raises ResponseNotFoundError."""
        projection = {
            "id": 1,
            "thread": 1,
            "place": 1,
            "status": 1,
            "snapshot": 1,
            "update_time": 1,
            "repeated": 1,
        }
        document = await self.live(scope, response_id, projection)
        line = await self._lines.line(scope, document["thread"], document["place"] - 1)
        if "snapshot" not in document:
            return line
        line.tail = documents.turn_of(document)
        return line

    async def beyond(self, line: Line, earlier: Line) -> Line:
        """A conversation's line without the turns that a chain out of it has already given."""
        if earlier.root == line.root:
            line.begin = (await self._lines.lay_out(earlier))[-1].last
        return line

    # Turns

    async def turns(
        self,
        line: Line,
        *,
        below: int,
        count: int,
        projection: Mapping[str, Any],
        everything: bool,
        ask_deleted: bool,
        abandoned_before: datetime | None,
    ) -> Batch:
        """The newest turns of a line below a place: those that replay looks at, or `everything`.

        `more` is False only when nothing older stands on the line.
        """
        if abandoned_before is not None:
            projection = {**projection, "update_time": 1}
        found: list[Document] = []
        deleted = False
        newest_lost = 0
        while len(found) < count:
            segments = await self._newest_stretch(line, below, count - len(found))
            if not segments:
                below = line.begin + 1
                break
            limit = min(count - len(found), TURNS_AT_ONCE)
            batch = await self._newest(line, segments, limit, projection, everything, ask_deleted)
            if ask_deleted and not everything and batch and "place" not in batch[0]:
                deleted = True
                del batch[0]
            ask_deleted = ask_deleted and everything
            found.extend(batch[:limit])
            below = found[-1]["place"] if len(batch) >= limit else segments[-1].after + 1
        if ask_deleted or deleted:
            newest_lost = await self.newest_lost(line)
        return Batch(found, below > line.begin + 1, newest_lost, abandoned_before)

    async def _newest_stretch(self, line: Line, below: int, count: int) -> list[Segment]:
        """The newest segments of a line below a place, as many as can hold `count` turns, newest first."""
        stretch: list[Segment] = []
        places = at = 0
        while places < count and len(stretch) < SEGMENTS_AT_ONCE:
            if at == len(line.segments) and not await self._lines.extend(line, SEGMENTS_AT_ONCE):
                break
            segment = line.segments[at]
            at += 1
            if segment.after + 1 < below:
                last = min(segment.last, below - 1)
                stretch.append(
                    Segment(segment.thread, segment.after, last if below < NO_END else segment.last)
                )
                places += last - segment.after
        return stretch

    async def _newest(
        self,
        line: Line,
        segments: Sequence[Segment],
        limit: int,
        projection: Mapping[str, Any],
        everything: bool,
        ask_deleted: bool,
    ) -> list[Document]:
        field = "place" if everything else "replay_place"
        branches: list[dict[str, Any]] = [
            {"thread": segment.thread, field: _places(segment)} for segment in segments
        ]
        # The open end of a conversation takes in the document that tells of deletions; elsewhere it is asked for.
        if ask_deleted and not everything and segments[0].last < NO_END:
            branches.append({"thread": line.root, field: DELETED_PLACE})
        query = {"scope": line.scope.key, **(branches[0] if len(branches) == 1 else {"$or": branches})}
        # One more than asked for: the document that tells of deletions comes first.
        return await self._database.find(RESPONSES, query, projection, [(field, -1)], limit + ask_deleted)

    async def newest_lost(self, line: Line) -> int:
        """A place at which a line has lost a response, in a conversation the newest; 0 when it has lost none."""
        segments = await self._lines.lay_out(line)
        for at in range(0, len(segments), SEGMENTS_AT_ONCE):
            branches: list[dict[str, Any]] = [
                {"thread": segment.thread, "place": _places(segment)}
                for segment in segments[at : at + SEGMENTS_AT_ONCE]
            ]
            # By the small index of what was deleted: the planner likes that of all places as well.
            lost = {"scope": line.scope.key, "deleted": True}
            if len(branches) == 1:
                found = await self._database.find_one(
                    RESPONSES, {**lost, **branches[0]}, _PLACE_ALONE, [("place", -1)], hint="deleted"
                )
            else:  # any will do: which is the newest is asked of conversations, and they are one segment
                found = await self._database.find_one(
                    RESPONSES,
                    {"$or": [{**lost, **branch} for branch in branches]},
                    _PLACE_ALONE,
                    hint="deleted",
                )
            if found is not None:
                return int(found["place"])
        return 0

    async def behind(
        self,
        line: Line,
        below: int,
        ids: Iterable[str],
        calls: Iterable[str],
        abandoned_before: datetime | None,
    ) -> list[tuple[int, Turn, int]]:
        """Place, turn and revision of the turns below a place that hold one of these items or calls.

        A turn holds what its snapshot names too, wherever the item itself stands.
        """
        segments = {segment.thread: segment for segment in await self._lines.lay_out(line)}
        found: dict[str, tuple[int, Turn, int]] = {}

        async def look_for(field: str, values: Iterable[str]) -> AsyncIterator[Document]:
            wanted = list(values)
            for at in range(0, len(wanted), IDS_AT_ONCE):
                query = {"scope": line.scope.key, field: {"$in": wanted[at : at + IDS_AT_ONCE]}}
                for document in await self._database.find(RESPONSES, query, _BEHIND):
                    segment = segments.get(document["thread"])
                    if (
                        segment is not None
                        and segment.after < document["place"] <= segment.last
                        and document["place"] < below
                        and "replay_place" in document
                    ):
                        turn = documents.turn_of(document, abandoned_before)
                        found[document["_id"]] = document["place"], turn, document["revision"]
                    else:
                        yield document

        named = set(ids)
        for field in ("input.calls", "output.calls"):
            async for elsewhere in look_for(field, calls):
                heads = (*documents.heads_of(elsewhere["input"]), *documents.heads_of(elsewhere["output"]))
                named.update(head.id for head in heads if head.call in calls)
        for field, values in (("input.ids", ids), ("output.ids", ids), ("snapshot.ids", named)):
            async for _ in look_for(field, values):
                pass
        return sorted(found.values(), key=lambda place_turn: place_turn[0])

    async def holders(
        self, scope: Scope, ids: Sequence[str], abandoned_before: datetime | None
    ) -> tuple[dict[str, list[Holder]], dict[str, int]]:
        """Who holds each of these items, live responses alone; and the revision of each holder."""
        holders: dict[str, list[Holder]] = {}
        revisions: dict[str, int] = {}
        for at in range(0, len(ids), IDS_AT_ONCE):
            wanted = set(ids[at : at + IDS_AT_ONCE])
            seen: set[str] = set()
            for field in ("input.ids", "output.ids"):
                for document in await self._database.find(
                    RESPONSES,
                    {"scope": scope.key, field: {"$in": list(wanted)}},
                    {**documents.HEADS, "create_time": 1, "update_time": 1},
                ):
                    if document["_id"] not in seen:
                        seen.add(document["_id"])
                        revisions[document["_id"]] = document["revision"]
                        for holder in documents.holders_of(document, wanted, abandoned_before):
                            holders.setdefault(holder.head.id, []).append(holder)
        return holders, revisions

    async def list_turns(
        self, line: Line, after: int, count: int, abandoned_before: datetime | None
    ) -> list[Summary]:
        """The live turns of a line after a place, oldest first."""
        summaries: list[Summary] = []
        projection = {
            "id": 1,
            "status": 1,
            "revision": 1,
            "place": 1,
            "excluded": 1,
            "conversation_id": 1,
            "previous_response_id": 1,
            "create_time": 1,
            "update_time": 1,
            "inputs": {"$size": {"$ifNull": ["$input.ids", []]}},
            "outputs": {"$size": {"$ifNull": ["$output.ids", []]}},
        }
        segments = [segment for segment in reversed(await self._lines.lay_out(line)) if segment.last > after]
        at = 0
        while at < len(segments) and len(summaries) < count:
            group = segments[at : at + SEGMENTS_AT_ONCE]
            at += len(group)
            branches: list[dict[str, Any]] = [
                {
                    "thread": segment.thread,
                    "place": {"$gt": max(segment.after, after), **_up_to(segment.last)},
                }
                for segment in group
            ]
            found = await self._database.find(
                RESPONSES,
                {
                    "scope": line.scope.key,
                    "deleted": {"$ne": True},
                    **(branches[0] if len(branches) == 1 else {"$or": branches}),
                },
                projection,
                [("place", 1)],
                count - len(summaries),
            )
            summaries.extend(documents.summary_of(document, abandoned_before) for document in found)
        return summaries

    # Responses and bodies

    async def response(self, scope: Scope, response_id: str) -> tuple[StoredResponse, Texts, str | None]:
        """A response, the bodies that came along, and its payload if that did. Raises ResponseNotFoundError."""
        document = await self.live(scope, response_id, _RESPONSE)
        stored = documents.stored_of(document, await self.abandoned_before())
        payload = None if document.get("payload_side") else document.get("payload") or ""
        return stored, _texts_of((document,)), payload

    async def payload(self, scope: Scope, stored: StoredResponse) -> str:
        """A payload that is kept outside of the document. Raises ChangedError, DataMissingError."""
        projection = {"payload_side": 1, "revision": 1}
        document = await self._database.find_one(RESPONSES, {"_id": stored.key}, projection)
        if document is None or document["revision"] != stored.revision:
            raise ChangedError
        pack = await self._bodies.read(scope.key, document["payload_side"], PAYLOAD, 0)
        if 0 not in pack:
            raise DataMissingError(stored.response_id)
        return pack[0]

    async def bodies(self, refs: Sequence[BodyRef], revisions: Mapping[str, int], most_bytes: int) -> Texts:
        """The JSON of items, in order, until `most_bytes` are gathered (at least one, where any is asked for).

        Raises ChangedError when a response is no longer at the revision at which its heads were read,
        DataMissingError when a response stands and a body that it names does not.
        """
        found = Texts()
        gathered = 0
        keys = list(dict.fromkeys(ref.key for ref in refs))
        for at in range(0, len(keys), RESPONSES_AT_ONCE):
            batch = keys[at : at + RESPONSES_AT_ONCE]
            query = {"_id": {"$in": batch}, "deleted": {"$ne": True}}
            small = {
                document["_id"]: document
                for document in await self._database.find(RESPONSES, query, documents.BODIES_ALONE)
            }
            wanted = set(batch)
            large = _Large()
            for ref in (ref for ref in refs if ref.key in wanted):
                document = small.get(ref.key)
                if document is None:
                    raise ChangedError
                if f"{_NAME[ref.part]}_json" not in document:
                    document = await self._large_part(ref, large)
                if document["revision"] != revisions[ref.key]:
                    raise ChangedError
                text = await self._text(document, ref, large)
                found.add(ref, text)
                gathered += len(text)
                if gathered >= most_bytes:
                    return found
        return found

    async def _large_part(self, ref: BodyRef, large: "_Large") -> Document:
        """The document of a response with one of its parts; the last one is kept at hand."""
        if (large.key, large.part) != (ref.key, ref.part):
            name = _NAME[ref.part]
            projection = {"id": 1, "scope": 1, "revision": 1, f"{name}_large": 1, f"{name}_side": 1}
            document = await self._database.find_one(
                RESPONSES, {"_id": ref.key, "deleted": {"$ne": True}}, projection
            )
            if document is None:
                raise ChangedError
            large.key, large.part, large.document, large.pack = ref.key, ref.part, document, {}
        return large.document

    async def _text(self, document: Document, ref: BodyRef, large: "_Large") -> str:
        name = _NAME[ref.part]
        for field in (f"{name}_json", f"{name}_large"):
            texts = document.get(field)
            if texts is not None:
                return str(texts[ref.position])
        if ref.position not in large.pack:
            token = document[f"{name}_side"]
            large.pack = await self._bodies.read(document["scope"], token, int(ref.part), ref.position)
        text = large.pack.get(ref.position)
        if text is not None:
            return text
        now = await self._database.find_one(RESPONSES, {"_id": ref.key}, {"revision": 1})
        if now is None or now["revision"] != document["revision"]:
            raise ChangedError
        raise DataMissingError(document["id"])


class _Large:
    """The large part that was read last, and the pack of it."""

    __slots__ = ("document", "key", "pack", "part")

    def __init__(self) -> None:
        self.key = ""
        self.part = Part.SNAPSHOT
        self.document: Document = {}
        self.pack: Mapping[int, str] = {}


_PLACE_ALONE = {"place": 1, "_id": 0}
_BEHIND = {**documents.HEADS, "thread": 1, "replay_place": 1, "update_time": 1}
_NAME = {Part.INPUT: "input", Part.OUTPUT: "output"}
_RESPONSE = {
    **documents.WITH_BODIES,
    "conversation_id": 1,
    "previous_response_id": 1,
    "error": 1,
    "create_time": 1,
    "update_time": 1,
    "payload": 1,
    "payload_side": 1,
}


def _places(segment: Segment) -> int | dict[str, int]:
    """The places of a segment as a condition. A single one, as between two forks, costs less than a range."""
    if segment.last == segment.after + 1:
        return segment.last
    return {"$gt": segment.after, **_up_to(segment.last)}


def _up_to(last: int) -> dict[str, Any]:
    return {} if last >= NO_END else {"$lte": last}


def _texts_of(found: Iterable[Document]) -> Texts:
    texts = Texts()
    for document in found:
        if "input_json" in document or "output_json" in document:
            texts.add_response(
                document["_id"], document.get("input_json", ()), document.get("output_json", ())
            )
    return texts
