"""JSON that does not fit into a document: a collection of packs, written before the response that needs them.

A document of MongoDB holds at most 16 MiB. When a response has more, whole parts of it (input, output, payload)
are written here first, under a new token; the response then names the token in its own write. Small items share
a pack, an item above the size of a pack has chunks of its own.

A write that never happened, or replaced another, leaves packs that no response names: they are removed at once
where that is certain, and by `sweep` otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId

from turnstore_service.replay.values import Part
from turnstore_service.storage.mongo.documents import inline_size
from turnstore_service.storage.mongo.driver import Database, Document
from turnstore_service.storage.mongo.indexes import BODIES, RESPONSES

DOCUMENT_BYTES = 16 * 1024 * 1024
"""MongoDB's limit for a document."""
INLINE_BYTES = 8 * 1024 * 1024
"""JSON that a document may hold: half of the limit, so that the heads of many items fit beside it."""
PACK_BYTES = 1024 * 1024
"""JSON of small items in one pack: what is read at once to get at one of them."""
CHUNK_BYTES = 8 * 1024 * 1024
"""An item may have 16 MiB, which with its envelope is more than a document holds."""
PAYLOAD = -1
"""Stands for the payload where a part of a response is named."""
_SWEEP_BATCH = 500

_NAME = {int(Part.INPUT): "input", int(Part.OUTPUT): "output", PAYLOAD: "payload"}
SIDES = tuple(f"{name}_side" for name in _NAME.values())
"""Fields of a response that hold the token of a part that was moved out."""


class Bodies:
    """The side collection of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def move_out(self, document: Document, scope_key: str) -> None:
        """Moves parts of a response's document out of it, the largest first, until what stays is small enough.

        A part that was moved is null, and `input_side`, `output_side` or `payload_side` tells the token, its own for
        each part: an update replaces one and not the other. A part whose texts are not in the document (an update
        leaves the input as stored) is left alone.
        """
        parts = sorted(_NAME, key=lambda part: -int(document.get(f"{_NAME[part]}_size", 0)))
        for part in parts:
            if inline_size(document) <= INLINE_BYTES:
                return
            name = _NAME[part]
            field = "payload" if part == PAYLOAD else f"{name}_large"
            content = document.get(field)
            if not content:
                continue
            token = ObjectId().binary
            await self._write(
                token, scope_key, document["_id"], part, [content] if part == PAYLOAD else content
            )
            document[field] = None
            document[f"{name}_size"] = 0
            document[f"{name}_side"] = token

    async def _write(self, token: bytes, scope_key: str, owner: str, part: int, texts: Sequence[str]) -> None:
        for pack in _packs(texts):
            await self._database.insert(
                BODIES,
                {
                    "scope": scope_key,
                    "token": token,
                    "part": part,
                    **pack,
                    "owner": owner,
                    "create_time": self._database.utc_now(),
                },
            )

    async def read(self, scope_key: str, token: bytes, part: int, index: int) -> Mapping[int, str]:
        """The pack that holds an item: texts by their index. Without it when the pack is not there whole."""
        here = {"scope": scope_key, "token": token, "part": part}
        order = [("scope", 1), ("token", 1), ("part", 1), ("index", -1), ("chunk", -1)]
        last = await self._database.find_one(BODIES, {**here, "index": {"$lte": index}}, _CONTENT, order)
        if last is None:
            return {}
        if "texts" in last:
            return {last["index"] + offset: text for offset, text in enumerate(last["texts"])}
        order = [("scope", 1), ("token", 1), ("part", 1), ("index", 1), ("chunk", 1)]
        chunks = await self._database.find(BODIES, {**here, "index": index}, _CONTENT, order)
        if len(chunks) != last["chunks"]:
            return {}
        return {index: b"".join(chunk["data"] for chunk in chunks).decode()}

    async def remove(self, scope_key: str, tokens: Iterable[bytes]) -> None:
        """Removes the bodies of writes that were replaced, erased, or certainly not done."""
        wanted = list(set(tokens))
        if wanted:
            await self._database.delete_many(BODIES, {"scope": scope_key, "token": {"$in": wanted}})

    async def sweep(self, older_than: timedelta) -> int:
        """Removes bodies that no response names and that are older than a write can take; how many documents."""
        before = self._database.utc_now() - older_than
        removed = 0
        since = datetime.fromtimestamp(0, UTC)
        while True:
            packs = await self._database.find(
                BODIES,
                {"create_time": {"$lt": before, "$gte": since}},
                {"scope": 1, "token": 1, "owner": 1, "create_time": 1},
                [("create_time", 1)],
                _SWEEP_BATCH,
            )
            if not packs:
                return removed
            gone = await self._remove_orphans(packs)
            removed += gone
            newest = packs[-1]["create_time"]
            if len(packs) < _SWEEP_BATCH:
                return removed
            since = newest if gone or newest != since else newest + timedelta(milliseconds=1)

    async def _remove_orphans(self, packs: Sequence[Document]) -> int:
        responses = await self._database.find(
            RESPONSES,
            {"_id": {"$in": list({pack["owner"] for pack in packs})}, "deleted": {"$ne": True}},
            dict.fromkeys(SIDES, 1),
        )
        named = {(response["_id"], token) for response in responses for token in side_tokens(response)}
        orphans: dict[str, set[bytes]] = {}
        for pack in packs:
            if (pack["owner"], pack["token"]) not in named:
                orphans.setdefault(pack["scope"], set()).add(pack["token"])
        removed = 0
        for scope_key, tokens in orphans.items():
            removed += await self._database.delete_many(
                BODIES, {"scope": scope_key, "token": {"$in": list(tokens)}}
            )
        return removed


_CONTENT = {"index": 1, "texts": 1, "data": 1, "chunks": 1, "_id": 0}


def _packs(texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The texts of a part as contents of documents: packs of small ones, chunks of large ones."""
    begin = 0
    pack: list[str] = []
    room = PACK_BYTES
    for index, text in enumerate(texts):
        data = text.encode()
        if pack and len(data) > room:
            yield {"index": begin, "chunk": 0, "texts": pack}
            pack = []
        if not pack:
            begin, room = index, PACK_BYTES
        if len(data) <= PACK_BYTES:
            pack.append(text)
            room -= len(data)
            continue
        starts = range(0, len(data), CHUNK_BYTES)
        for chunk, at in enumerate(starts):
            yield {"index": index, "chunk": chunk, "chunks": len(starts), "data": data[at : at + CHUNK_BYTES]}
    if pack:
        yield {"index": begin, "chunk": 0, "texts": pack}


def side_tokens(document: Mapping[str, Any]) -> set[bytes]:
    """The tokens under which a response keeps bodies outside its document."""
    return {document[name] for name in SIDES if document.get(name)}
