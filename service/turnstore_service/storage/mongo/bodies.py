"""JSON that does not fit into a document: a collection of chunks, written before the response that needs them.

A document of MongoDB holds at most 16 MiB. Bodies are written under a new token first; the response then names
the token in its own write. A write that never happened, or replaced another, leaves chunks that no response
names: they are removed at once where that is known, and by `sweep` otherwise.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from bson import ObjectId

from turnstore_service.replay.values import Part
from turnstore_service.storage.mongo.documents import inline_size, json_size, utc_now
from turnstore_service.storage.mongo.driver import Database, Document
from turnstore_service.storage.mongo.indexes import BODIES, RESPONSES

DOCUMENT_BYTES = 16 * 1024 * 1024
"""MongoDB's limit for a document."""
INLINE_BYTES = 8 * 1024 * 1024
"""JSON that a document may hold: half of the limit, so that the heads of many items fit beside it."""
SMALL_BODY_BYTES = 4096
"""Bodies below this stay in the document: moving them out would save little."""
CHUNK_BYTES = 8 * 1024 * 1024
"""An item may have 16 MiB, which with its envelope is more than a document holds."""
_SWEEP_BATCH = 500
PAYLOAD = -1
"""Stands for the payload where a part of a response is named."""

_NAME = {int(Part.INPUT): "input", int(Part.OUTPUT): "output", PAYLOAD: "payload"}


class Bodies:
    """The side collection of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def move_out(self, document: Document, scope_key: str) -> None:
        """Moves large bodies of a response's document out of it, until what stays is small enough.

        What was moved is null in `input_large` or `output_large`, and `input_side` or `output_side` tells the
        token. A part that the document does not have (an update leaves the input as stored) is left alone.
        """
        texts: list[tuple[int, int, int, str]] = []
        for part, name in _NAME.items():
            values = (document.get("payload"),) if part == PAYLOAD else document.get(f"{name}_large") or ()
            for index, text in enumerate(values):
                if text and len(text) > SMALL_BODY_BYTES:
                    texts.append((json_size((text,)), part, index, text))
        token = ObjectId().binary
        staying = inline_size(document)
        for size, part, index, text in sorted(texts, key=lambda body: -body[0]):
            if staying <= INLINE_BYTES:
                return
            await self._write(token, scope_key, document["_id"], part, index, text)
            staying -= size
            name = _NAME[part]
            document[f"{name}_size"] -= size
            document[f"{name}_side"] = token
            if part == PAYLOAD:
                document["payload"] = None
            else:
                document[f"{name}_large"][index] = None

    async def _write(
        self, token: bytes, scope_key: str, owner: str, part: int, index: int, text: str
    ) -> None:
        data = text.encode()
        starts = range(0, len(data), CHUNK_BYTES)
        for chunk, at in enumerate(starts):
            await self._database.insert(
                BODIES,
                {
                    "token": token,
                    "part": part,
                    "index": index,
                    "chunk": chunk,
                    "chunks": len(starts),
                    "scope": scope_key,
                    "owner": owner,
                    "create_time": utc_now(),
                    "data": data[at : at + CHUNK_BYTES],
                },
            )

    async def read(self, token: bytes, part: int, index: int) -> str | None:
        """A body that was moved out; None when it is not there whole."""
        chunks = await self._database.find(
            BODIES,
            {"token": token, "part": part, "index": index},
            {"data": 1, "chunks": 1, "_id": 0},
            [("token", 1), ("part", 1), ("index", 1), ("chunk", 1)],
        )
        if not chunks or len(chunks) != chunks[0]["chunks"]:
            return None
        return b"".join(chunk["data"] for chunk in chunks).decode()

    async def remove(self, tokens: Iterable[bytes]) -> None:
        """Removes the bodies of writes that were replaced or erased."""
        wanted = list(set(tokens))
        if wanted:
            await self._database.delete_many(BODIES, {"token": {"$in": wanted}})

    async def sweep(self, older_than: timedelta) -> int:
        """Removes bodies that no response names and that are older than a write can take; how many chunks."""
        before = utc_now() - older_than
        removed = 0
        since = datetime.fromtimestamp(0, UTC)
        while True:
            chunks = await self._database.find(
                BODIES,
                {"create_time": {"$lt": before, "$gte": since}},
                {"token": 1, "owner": 1, "create_time": 1},
                [("create_time", 1)],
                _SWEEP_BATCH,
            )
            if not chunks:
                return removed
            removed += await self._remove_orphans(chunks)
            newest = chunks[-1]["create_time"]
            if len(chunks) < _SWEEP_BATCH:
                return removed
            since = newest if newest != since else newest + timedelta(milliseconds=1)

    async def _remove_orphans(self, chunks: Sequence[Mapping[str, object]]) -> int:
        owners = {chunk["owner"] for chunk in chunks}
        responses = await self._database.find(
            RESPONSES,
            {"_id": {"$in": list(owners)}},
            {"input_side": 1, "output_side": 1, "payload_side": 1},
        )
        named = {
            (response["_id"], bytes(response[name]))
            for response in responses
            for name in ("input_side", "output_side", "payload_side")
            if name in response
        }
        orphans = {
            bytes(chunk["token"])  # type: ignore[call-overload]
            for chunk in chunks
            if (chunk["owner"], bytes(chunk["token"])) not in named  # type: ignore[call-overload]
        }
        if not orphans:
            return 0
        return await self._database.delete_many(BODIES, {"token": {"$in": list(orphans)}})


def side_tokens(document: Mapping[str, object]) -> set[bytes]:
    """The tokens under which a response keeps bodies outside its document."""
    names = ("input_side", "output_side", "payload_side")
    return {bytes(document[name]) for name in names if document.get(name)}  # type: ignore[call-overload]
