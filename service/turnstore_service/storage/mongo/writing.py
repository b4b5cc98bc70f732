"""Writes: creating and changing a response, each in one atomic write.

Item ids are *claimed*: a document keeps hashes of the ids that it puts on its lines, and a unique index over
(root, claim) refuses a second holder among all threads that branch from one root. So the common write, whose
ids are new, needs no look-up, and two concurrent writers of one id cannot miss each other. A refused writer
looks who holds the id, records it as `repeated` at every holder (replay then looks it up before it shows it),
and stores without the claim. A claim is a hint to look, never the answer: that is always read from the items.

A response that contributes nothing to replay gives up the claims that nobody shares with it.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bson.int64 import Int64

from turnstore_service.observing import Observer
from turnstore_service.replay.rules import find_duplicates
from turnstore_service.replay.values import TERMINAL, Status
from turnstore_service.storage.errors import (
    DuplicateItemError,
    ParentNotFoundError,
    ResponseNotFoundError,
    ResponseTooLargeError,
    StoreUnavailableError,
)
from turnstore_service.storage.mongo import documents
from turnstore_service.storage.mongo.bodies import DOCUMENT_BYTES, INLINE_BYTES, Bodies, side_tokens
from turnstore_service.storage.mongo.driver import (
    Database,
    Document,
    DocumentTooLargeError,
    DuplicateKeyError,
    in_time,
)
from turnstore_service.storage.mongo.indexes import RESPONSES
from turnstore_service.storage.mongo.lines import (
    Lines,
    conversation_thread,
    is_conversation,
    new_chain_thread,
)
from turnstore_service.storage.mongo.reading import IDS_AT_ONCE, Reading
from turnstore_service.storage.values import NO_END, Line, Scope, StoredResponse, Write
from turnstore_service.storage.write_rules import Existing, changes

_ATTEMPTS = 200
"""Tries of a write that loses its place to others. Each lost try means that another writer got through."""
_BACKOFF_SECONDS = 0.002
_CACHED_PLACES = 10_000
_FAST_OUTPUT_ITEMS = 200
"""Output items up to which an update is sent blind; $addToSet compares each with each."""

_REFUSED = (ParentNotFoundError, DuplicateItemError, ResponseTooLargeError)
"""Errors after which a write has certainly not been done; after any other it may have been."""

_EXISTING = {
    "deleted": 1,
    "status": 1,
    "revision": 1,
    "conversation_id": 1,
    "previous_response_id": 1,
    "excluded": 1,
    "content": 1,
    "input_content": 1,
    "created_by": 1,
    "written_by": 1,
    "id": 1,
    "thread": 1,
    "place": 1,
    "root": 1,
    "claims": 1,
    "repeated": 1,
    "snapshot": 1,
    "input": 1,
    "input_size": 1,
    "output.ids": 1,
    "input_side": 1,
    "output_side": 1,
    "payload_side": 1,
    "create_time": 1,
    "update_time": 1,
    "error": 1,
}
_WRITTEN = {
    "id": 1,
    "input_side": 1,
    "output_side": 1,
    "payload_side": 1,
    "status": 1,
    "revision": 1,
    "place": 1,
    "conversation_id": 1,
    "previous_response_id": 1,
    "excluded": 1,
    "error": 1,
    "input": 1,
    "output": 1,
    "create_time": 1,
    "update_time": 1,
}


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a new response goes."""

    thread: bytes
    place: int
    root: bytes
    parent: tuple[bytes, int] | None
    """Thread and place that a chained response follows."""


class Writing:
    """StoreResponse and SetReplayExclusion on one database."""

    def __init__(
        self, database: Database, lines: Lines, bodies: Bodies, reading: Reading, observer: Observer
    ) -> None:
        self._database = database
        self._lines = lines
        self._bodies = bodies
        self._reading = reading
        self._observer = observer
        self._newest: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._queues: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    async def store(self, scope: Scope, write: Write) -> StoredResponse:
        """Creates or changes a response; durable on a majority when it returns.

        Raises what `write_rules.changes` raises, ParentNotFoundError, DuplicateItemError and
        ResponseTooLargeError; of StoreUnavailableError and StoreDeadlineError the outcome is unknown, and a retry
        with the same request id finds it.
        """
        if _is_likely_update(write):
            stored = await self._update_blind(scope, write)
        elif write.expected_revision is None or write.expected_revision == 0:
            stored = await self._create(scope, write, None, looked=False)
        else:
            stored = None
        attempt = 0
        while stored is None:
            if attempt == _ATTEMPTS:
                raise StoreUnavailableError("too many writers of one response")
            await _backoff(attempt)
            attempt += 1
            existing = await self._reading.latest(scope, write.response_id, _EXISTING)
            if not changes(_existing(existing, write), write):
                return documents.stored_of(await self._reading.live(scope, write.response_id, _WRITTEN))
            if existing is None or existing.get("deleted"):
                stored = await self._create(scope, write, existing, looked=True)
            else:
                stored = await self._update(scope, write, existing)
        return stored

    # Creating

    async def _create(
        self, scope: Scope, write: Write, tombstone: Document | None, *, looked: bool
    ) -> StoredResponse | None:
        """Creates a response; None when one of that id turns out to exist. `looked`: none did a moment ago."""
        generation = documents.generation_of(tombstone["_id"]) + 1 if tombstone else 0
        document = documents.new_document(
            write,
            key=documents.response_key(scope, write.response_id, generation),
            scope=scope,
            now=self._database.utc_now(),
            known=await self._known(scope, write.snapshot),
        )
        if documents.inline_size(document) > INLINE_BYTES:
            await self._bodies.move_out(document, scope.key)
        if generation:
            # The first of an id has to stay while there are later ones: it is where everybody looks first.
            first = documents.response_key(scope, write.response_id, 0)
            await self._database.update_one(RESPONSES, {"_id": first}, {"$unset": {"erase_time": ""}})
        stored = None
        try:
            async with self._turn_at(scope, write.conversation_id):
                stored = await self._insert(scope, write, document, looked=looked or tombstone is not None)
        except _REFUSED:
            await self._bodies.remove(scope.key, side_tokens(document))
            raise
        if stored is None:
            await self._bodies.remove(scope.key, side_tokens(document))
        return stored

    @asynccontextmanager
    async def _turn_at(self, scope: Scope, conversation_id: str) -> AsyncIterator[None]:
        """Lets the writers of this process queue for a conversation's end: the database would refuse all but one.

        Nothing depends on it: writers of other processes are met by the unique index alone.
        """
        if not conversation_id:
            yield
            return
        end = scope.key, conversation_id
        lock, users = self._queues.get(end, (asyncio.Lock(), 0))
        self._queues[end] = lock, users + 1
        try:
            await (in_time(lock.acquire()) if lock.locked() else lock.acquire())
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._queues.pop(end)
            if users > 1:
                self._queues[end] = lock, users - 1

    async def _insert(
        self, scope: Scope, write: Write, document: Document, *, looked: bool
    ) -> StoredResponse | None:
        """Gives a new response its place, and tries again where another writer was there first."""
        look_up = looked or bool(write.snapshot)
        for attempt in range(_ATTEMPTS):
            spot = await self._spot(scope, write)
            if spot is None:
                if not looked:
                    return None  # what exists comes before what its write says
                raise ParentNotFoundError(write.previous_response_id)
            try:
                claims, document["repeated"] = await self._check_items(
                    scope, write, document["_id"], spot, look_up
                )
            except DuplicateItemError:
                if not looked:
                    return None  # the same
                raise
            documents.place(document, spot.thread, spot.place, spot.root, claims)
            try:
                await self._insert_or_fork(scope, document, spot)
            except DuplicateKeyError as conflict:
                if "_id" in conflict.fields:
                    return None
                look_up = look_up or "claims" in conflict.fields
                self._newest.pop((scope.key, spot.thread), None)
                self._observer.append_retried()
                await _backoff(attempt)
            except DocumentTooLargeError:
                raise ResponseTooLargeError(write.response_id, DOCUMENT_BYTES) from None
            else:
                if write.conversation_id:
                    self._remember(scope, spot)
                return documents.stored_of(document)
        raise StoreUnavailableError("too many writers at one place")

    async def _insert_or_fork(self, scope: Scope, document: Document, spot: _Spot) -> None:
        """Puts a response after its parent: in the parent's thread while it ends there, else in a new one."""
        if spot.parent is None or not is_conversation(spot.thread):
            try:
                await self._database.insert(RESPONSES, document)
            except DuplicateKeyError as conflict:
                if "place" not in conflict.fields or spot.parent is None:
                    raise
            else:
                return
        document["thread"] = await self._lines.fork(scope, *spot.parent)
        await self._database.insert(RESPONSES, document)

    def _remember(self, scope: Scope, spot: _Spot) -> None:
        """Keeps a conversation's newest place. A value that is out of date costs one refused insert."""
        end = scope.key, spot.thread
        self._newest[end] = spot.place
        self._newest.move_to_end(end)
        if len(self._newest) > _CACHED_PLACES:
            self._newest.popitem(last=False)

    async def _spot(self, scope: Scope, write: Write) -> _Spot | None:
        """The next place for a new response; None when its parent is unknown or deleted."""
        if write.conversation_id:
            thread = conversation_thread(write.conversation_id)
            newest = self._newest.get((scope.key, thread))
            if newest is None:
                newest = await self._lines.newest_place(scope, thread)
            return _Spot(thread, newest + 1, thread, None)
        if write.previous_response_id:
            projection = {"thread": 1, "place": 1, "root": 1, "deleted": 1}
            parent = await self._reading.latest(scope, write.previous_response_id, projection)
            if parent is None or parent.get("deleted"):
                return None
            follows = parent["thread"], parent["place"]
            return _Spot(parent["thread"], parent["place"] + 1, parent["root"], follows)
        thread = new_chain_thread()
        return _Spot(thread, 1, thread, None)

    async def _check_items(
        self, scope: Scope, write: Write, key: str, spot: _Spot, look_up: bool
    ) -> tuple[list[Int64], list[str]]:
        """The claims of a new response and its repeated ids. Raises DuplicateItemError.

        Ids that are claimed need no look-up: the unique index refuses them if somebody has them, and the next
        try looks. Input that is not claimed (a failed response contributes nothing) is looked up at once.
        """
        claims = {documents.claim(item_id): item_id for item_id in documents.replay_ids(write)}
        claimed = set(claims.values())
        unclaimed = any(head.id not in claimed for head in write.input.heads)
        repeated = await self._yield_claims(scope, spot.root, claims, key) if look_up else []
        if not write.keep_first and (repeated or unclaimed):
            thread, last = spot.parent or (spot.thread, spot.place - 1)
            await self._refuse_on(scope, write, await self._lines.line(scope, thread, last), key)
        return list(claims), repeated

    async def _known(self, scope: Scope, snapshot: Sequence[str]) -> list[bool]:
        """For each id of a snapshot, whether the store holds such an item now."""
        if not snapshot:
            return []
        holders, _ = await self._reading.holders(scope, list(dict.fromkeys(snapshot)), None)
        return [item_id in holders for item_id in snapshot]

    async def _yield_claims(
        self, scope: Scope, root: bytes, claims: dict[Int64, str], own_key: str
    ) -> list[str]:
        """Takes out the claims that others under the same root hold, tells the holders, and gives those ids."""
        taken: dict[str, list[str]] = {}
        wanted = list(claims)
        for at in range(0, len(wanted), IDS_AT_ONCE):
            batch = wanted[at : at + IDS_AT_ONCE]
            for holder in await self._database.find(
                RESPONSES,
                {"scope": scope.key, "root": root, "claims": {"$in": batch}},
                {"claims": 1},
            ):
                if holder["_id"] == own_key:
                    continue
                held = set(holder["claims"]).intersection(batch)
                taken[holder["_id"]] = [*taken.get(holder["_id"], ()), *(claims[value] for value in held)]
        for holder_key, item_ids in taken.items():
            await self._database.update_one(
                RESPONSES, {"_id": holder_key}, {"$addToSet": {"repeated": {"$each": item_ids}}}
            )
        repeated = sorted({item_id for item_ids in taken.values() for item_id in item_ids})
        for item_id in repeated:
            claims.pop(documents.claim(item_id), None)
        return repeated

    async def _refuse_duplicates(self, scope: Scope, write: Write, spot: _Spot, key: str) -> None:
        """Raises DuplicateItemError when an input item stands in the history that a new response follows."""
        last = spot.place - 1 if spot.parent is None else spot.parent[1]
        thread = spot.thread if spot.parent is None else spot.parent[0]
        await self._refuse_on(scope, write, await self._lines.line(scope, thread, last), key)

    async def _refuse_on(self, scope: Scope, write: Write, line: Line, key: str) -> None:
        input_ids = [head.id for head in write.input.heads]
        abandoned = await self._reading.abandoned_before()
        found = await self._reading.behind(line, NO_END, set(input_ids), set(), abandoned)
        turns = [turn for _, turn, _ in found]
        named = {item.id for turn in turns for item in turn.snapshot}.intersection(input_ids)
        holders, _ = await self._reading.holders(scope, sorted(named), abandoned) if named else ({}, {})
        duplicates = find_duplicates(turns, holders, input_ids, key)
        if duplicates:
            raise DuplicateItemError(duplicates)

    # Changing

    async def _update_blind(self, scope: Scope, write: Write) -> StoredResponse | None:
        """Changes a running response without reading it first; None when that is not the whole story.

        The filter holds everything that the contract's order of checks asks: if it matches, none of the errors
        and none of the no-change cases applies.
        """
        if write.excluded:
            return None  # gives up claims, which have to be read first
        fields = documents.changed_fields(write, with_input=False)
        query: dict[str, Any] = {
            "_id": documents.response_key(scope, write.response_id, 0),
            "deleted": {"$exists": False},
            "status": {"$nin": [int(status) for status in TERMINAL]},
            "content": {"$ne": fields["content"]},
            "input_size": {"$lte": INLINE_BYTES // 2},
            "input_side": {"$exists": False},
            "output_side": {"$exists": False},
            "payload_side": {"$exists": False},
            "excluded": {"$exists": False} if write.excluded is None else False,
        }
        if write.conversation_id:
            query["conversation_id"] = write.conversation_id
        if write.previous_response_id:
            query["previous_response_id"] = write.previous_response_id
        if write.input.heads:
            query["input_content"] = documents.input_digest(write.input)
        if write.expected_revision is not None:
            query["revision"] = write.expected_revision
        if write.request_id:
            query["created_by"] = query["written_by"] = {"$ne": write.request_id}
        update: dict[str, Any] = {"$inc": {"revision": 1}, "$currentDate": {"update_time": True}}
        if documents.contributes(write.status, None):
            claims = [documents.claim(head.id) for head in write.output.heads]
            if claims:
                update["$addToSet"] = {"claims": {"$each": list(dict.fromkeys(claims))}}
        else:
            # Claims that others share are kept, and a snapshot goes on contributing: both have to be read first.
            query["repeated"] = query["snapshot"] = {"$exists": False}
            fields["claims"] = fields["replay_place"] = None
        update["$set"] = {name: value for name, value in fields.items() if value is not None}
        update["$unset"] = {
            # That nothing is in the side collection is asked for above.
            name: ""
            for name, value in fields.items()
            if value is None and not name.endswith("_side")
        }
        try:
            changed = await self._database.find_and_update(RESPONSES, query, update, _WRITTEN)
        except (DuplicateKeyError, DocumentTooLargeError):
            return None
        return documents.stored_of(changed) if changed else None

    async def _update(self, scope: Scope, write: Write, existing: Document) -> StoredResponse | None:
        """Changes a response that was read; None when another writer was faster."""
        new_input = not _same_input(existing, write)
        if new_input and not write.keep_first:
            await self._refuse_on(scope, write, await self._own_line(scope, existing), existing["_id"])
        fields = documents.changed_fields(write, with_input=new_input)
        staged = {"_id": existing["_id"], "input_size": existing["input_size"], **fields}
        if documents.inline_size(staged) > INLINE_BYTES:
            await self._bodies.move_out(staged, scope.key)
        fields.update({name: value for name, value in staged.items() if name != "_id"})
        excluded = existing.get("excluded") if write.excluded is None else write.excluded
        if excluded is not None:
            fields["excluded"] = excluded
        input_ids = [head.id for head in write.input.heads] if new_input else existing["input"]["ids"]
        change = await self._change(
            scope,
            existing,
            fields,
            documents.contributes(write.status, excluded),
            [*input_ids, *(head.id for head in write.output.heads)],
        )
        try:
            changed = await self._database.find_and_update(RESPONSES, _as_read(existing), change, _WRITTEN)
        except DuplicateKeyError:
            changed = None  # another writer claimed one of the ids meanwhile
        except DocumentTooLargeError:
            await self._bodies.remove(scope.key, side_tokens(staged))
            raise ResponseTooLargeError(write.response_id, DOCUMENT_BYTES) from None
        if changed is None:
            await self._bodies.remove(scope.key, side_tokens(staged))
            return None
        await self._bodies.remove(scope.key, side_tokens(existing) - side_tokens(changed))
        return documents.stored_of(changed)

    async def _change(
        self, scope: Scope, existing: Document, fields: Document, contributing: bool, item_ids: Sequence[str]
    ) -> dict[str, Any]:
        """The update that sets these fields (None: removes them) and what follows for replay from the change."""
        snapshot = existing.get("snapshot", {}).get("ids", ())
        ids = dict.fromkeys((*snapshot, *item_ids) if contributing else snapshot)
        held = set(existing.get("claims", ()))
        wanted = {documents.claim(item_id): item_id for item_id in ids}
        new = {value: item_id for value, item_id in wanted.items() if value not in held}
        repeated = await self._yield_claims(scope, existing["root"], new, existing["_id"]) if new else []
        shared = {documents.claim(item_id) for item_id in existing.get("repeated", ())}
        fields["claims"] = sorted(held & (set(wanted) | shared) | set(new)) or None
        fields["replay_place"] = existing["place"] if contributing or snapshot else None
        change: dict[str, Any] = {
            "$set": {name: value for name, value in fields.items() if value is not None},
            "$unset": {name: "" for name, value in fields.items() if value is None},
            "$inc": {"revision": 1},
            "$currentDate": {"update_time": True},
        }
        if repeated:
            change["$addToSet"] = {"repeated": {"$each": repeated}}
        return change

    async def _own_line(self, scope: Scope, existing: Document) -> Line:
        """What an input item of a stored response must not repeat: its conversation, or the chain before it."""
        if existing.get("conversation_id"):
            return await self._reading.line_of_conversation(scope, existing["conversation_id"])
        return await self._lines.line(scope, existing["thread"], existing["place"] - 1)

    async def set_exclusion(self, scope: Scope, response_id: str, excluded: bool) -> int:
        """Hides a response from replay or shows it again; its revision then. Raises ResponseNotFoundError."""
        for attempt in range(_ATTEMPTS):
            existing = await self._reading.latest(scope, response_id, _EXISTING)
            if existing is None or existing.get("deleted"):
                raise ResponseNotFoundError(response_id)
            if bool(existing.get("excluded")) == excluded:
                return int(existing["revision"])
            contributing = documents.contributes(Status(existing["status"]), excluded)
            ids = [*existing["input"]["ids"], *existing["output"]["ids"]]
            change = await self._change(scope, existing, {"excluded": excluded}, contributing, ids)
            try:
                changed = await self._database.find_and_update(
                    RESPONSES, _as_read(existing), change, {"revision": 1}
                )
            except DuplicateKeyError:
                changed = None  # another writer claimed one of the ids meanwhile
            if changed is not None:
                return int(changed["revision"])
            await _backoff(attempt)
        raise StoreUnavailableError("too many writers of one response")


async def _backoff(attempt: int) -> None:
    """Lets the other writers get through: not at all before the second try, then a little at random."""
    if attempt:
        await asyncio.sleep(random.uniform(0, _BACKOFF_SECONDS * min(attempt, 10)))  # noqa: S311 - jitter


def _as_read(existing: Document) -> dict[str, Any]:
    """Matches a response while it is as it was read. Becoming a shared holder does not count as a revision."""
    return {
        "_id": existing["_id"],
        "revision": existing["revision"],
        "deleted": {"$exists": False},
        "repeated": existing.get("repeated", {"$exists": False}),
    }


def _same_input(existing: Document, write: Write) -> bool:
    """Whether a write leaves the input as it is stored, or gives the same."""
    return not write.input.heads or existing["input_content"] == documents.input_digest(write.input)


def _is_likely_update(write: Write) -> bool:
    """Whether a write more likely changes a response than creates one. A wrong guess costs a round trip."""
    if (
        len(write.output.heads) > _FAST_OUTPUT_ITEMS
        or documents.json_size(write.output.bodies) > INLINE_BYTES // 4
    ):
        return False
    if write.expected_revision is not None:
        return write.expected_revision > 0
    return not write.input.heads and not write.snapshot


def _existing(document: Document | None, write: Write) -> Existing | None:
    if document is None:
        return None
    request_ids = frozenset(document[name] for name in ("created_by", "written_by") if name in document)
    if document.get("deleted"):
        return Existing(
            Status(document["status"]), document["revision"], "", "", False, True, request_ids, False, False
        )
    return Existing(
        Status(document["status"]),
        document["revision"],
        document.get("conversation_id", ""),
        document.get("previous_response_id", ""),
        bool(document.get("excluded")),
        False,
        request_ids,
        document["content"] == documents.content_digest(write),
        _same_input(document, write),
    )
