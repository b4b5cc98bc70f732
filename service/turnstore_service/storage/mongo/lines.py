"""Threads, places and paths: how lines of turns stand in the database.

Every response stands in one thread at one place, a dense integer. A conversation is a thread. A chain is a
thread too; a response that forks off begins a new one and goes on counting from its parent's place.

What lies before a fork stands once, in a *block* that the threads along one path share: a growing list of
(thread, place) pairs, oldest first. The id of a forked thread is its block's id and the length of the list that
is its path, so the path of a thread never changes although the block may grow. A fork at the end of a block
appends one pair; a fork elsewhere begins a block that links back. A side request before each main turn, which
makes every main turn a fork, therefore costs one pair a turn and not a copy of the path.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from bson import ObjectId

from turnstore_service.storage.errors import DataMissingError
from turnstore_service.storage.mongo.driver import Database
from turnstore_service.storage.mongo.indexes import PATHS, RESPONSES
from turnstore_service.storage.values import NO_END, Line, Scope, Segment

BLOCK_PAIRS = 128
"""Pairs in a block. A path is read block by block, and a block is rewritten when it grows."""
COPY_PAIRS = 32
"""A fork in the middle of a block copies up to this many pairs instead of linking, so that repeated forks at the
same place do not make a path of blocks with one pair each."""
_CACHED_BLOCKS = 2048
_CONVERSATION = b"c"
_CHAIN = b"t"
"""First byte of a thread's id; 16 more follow: a hash of the conversation's id, or block and length."""

DELETED_PLACE = NO_END
"""Read place of the document by which a tree tells that it has lost a response: beyond all others, so that the
query for the newest turns meets it first."""


@dataclass(frozen=True, slots=True)
class _Block:
    """The part of a path that has been read of one block; what is there never changes."""

    pairs: Sequence[tuple[bytes, int]]
    before: bytes
    """The thread whose path comes before the first pair; empty for none."""
    root: bytes


def conversation_thread(conversation_id: str) -> bytes:
    """The thread of a conversation."""
    return _CONVERSATION + hashlib.sha256(conversation_id.encode()).digest()[:16]


def new_chain_thread() -> bytes:
    """A thread for a response without parent and conversation."""
    return _CHAIN + ObjectId().binary + bytes(4)


def is_conversation(thread: bytes) -> bool:
    """Whether a thread is that of a conversation: nothing chained to a response in it may join it."""
    return thread[:1] == _CONVERSATION


def _block_of(thread: bytes) -> tuple[bytes, int]:
    """Id of a thread's block, and how many of its pairs are the thread's path; none for a thread with no path."""
    if is_conversation(thread):
        return b"", 0
    return thread[1:13], int.from_bytes(thread[13:], "big")


def _thread_of(block_id: bytes, length: int) -> bytes:
    return _CHAIN + block_id + length.to_bytes(4, "big")


def _pack(thread: bytes, place: int) -> bytes:
    return thread + place.to_bytes(5, "big")


def _unpack(pair: bytes) -> tuple[bytes, int]:
    return pair[:17], int.from_bytes(pair[17:], "big")


class Lines:
    """Finds and makes lines of threads in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()

    async def newest_place(self, scope: Scope, thread: bytes) -> int:
        """The highest place taken in a thread, by whatever stands there; 0 for an empty thread."""
        newest = await self._database.find_one(
            RESPONSES,
            {"scope": scope.key, "thread": thread, "place": {"$gte": 1}},
            {"place": 1, "_id": 0},
            [("place", -1)],
        )
        return newest["place"] if newest else 0

    async def line(self, scope: Scope, thread: bytes, last: int) -> Line:
        """The line that ends at a place of a thread; NO_END for whatever stands at its end."""
        block_id, length = _block_of(thread)
        root = (await self._block(block_id, length)).root if length else thread
        return Line(scope, root, pending=(thread, last), path=(block_id, length))

    async def extend(self, line: Line, count: int) -> bool:
        """Lays out that many older segments of a line, as far as it has them; whether there were any."""
        before = len(line.segments)
        while line.pending is not None and len(line.segments) < before + count:
            thread, last = line.pending
            older = await self._older(line)
            after = older[1] if older else line.begin
            if last > after:
                line.segments.append(Segment(thread, after, last))
            line.pending = older
        return len(line.segments) > before

    async def lay_out(self, line: Line) -> list[Segment]:
        """All segments of a line, newest first."""
        while await self.extend(line, BLOCK_PAIRS):
            pass
        return line.segments

    async def _older(self, line: Line) -> tuple[bytes, int] | None:
        """The next older pair of a line's path; None at its beginning."""
        block_id, length = line.path
        if not length:
            return None
        block = await self._block(block_id, length)
        pair = block.pairs[length - 1]
        line.path = (block_id, length - 1) if length > 1 or not block.before else _block_of(block.before)
        return pair

    async def fork(self, scope: Scope, thread: bytes, place: int) -> bytes:
        """A new thread whose path is that of `thread` up to `place`."""
        block_id, length = _block_of(thread)
        pair = thread, place
        if 0 < length < BLOCK_PAIRS:
            grown = await self._database.find_and_update(
                PATHS,
                {"_id": block_id, "length": length},
                # A path that goes on is no longer to be erased with the data that its user had before.
                {"$push": {"pairs": _pack(*pair)}, "$inc": {"length": 1}, "$unset": {"erase_time": ""}},
                {"_id": 1},
            )
            if grown is not None:
                return _thread_of(block_id, length + 1)
        pairs = [pair]
        before = b""
        root = thread
        if length:
            block = await self._block(block_id, length)
            root = block.root
            if length <= COPY_PAIRS:
                pairs = [*block.pairs[:length], pair]
                before = block.before
            else:
                before = thread
        new_id = ObjectId().binary
        document = {
            "_id": new_id,
            "scope": scope.key,
            "root": root,
            "length": len(pairs),
            "pairs": [_pack(*pair) for pair in pairs],
        }
        if before:
            document["before"] = before
        await self._database.insert(PATHS, document)
        return _thread_of(new_id, len(pairs))

    async def _block(self, block_id: bytes, length: int) -> _Block:
        block = self._blocks.get(block_id)
        if block is None or len(block.pairs) < length:
            found = await self._database.find_one(PATHS, {"_id": block_id})
            if found is None:
                raise DataMissingError("")
            block = _Block(
                [_unpack(pair) for pair in found["pairs"]], found.get("before", b""), found["root"]
            )
            if len(block.pairs) < length:
                raise DataMissingError("")
            self._blocks[block_id] = block
            while len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(block_id)
        return block
