"""Deleting: what goes, and what stays so that the rest of a line is still right.

A deleted response leaves its place, and the ids of a snapshot if it was given one. The document that tells a
tree of threads that it has lost something is written first, so that no reader meets the loss without it.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from bson import ObjectId

from turnstore_service.replay.values import Status
from turnstore_service.storage.errors import ResponseNotFoundError, StoreUnavailableError
from turnstore_service.storage.mongo import documents
from turnstore_service.storage.mongo.bodies import SIDES, Bodies, side_tokens
from turnstore_service.storage.mongo.driver import Database, Document, DuplicateKeyError
from turnstore_service.storage.mongo.indexes import PATHS, RESPONSES
from turnstore_service.storage.mongo.lines import DELETED_PLACE, Lines, conversation_thread
from turnstore_service.storage.mongo.reading import Reading
from turnstore_service.storage.values import Receipt, Scope

_ATTEMPTS = 200
_BATCH = 200
"""Responses erased in one step: bounds the memory of a deletion, however much there is."""

_CONTENT = dict.fromkeys(
    (
        "input",
        "output",
        "input_json",
        "output_json",
        "input_large",
        "output_large",
        "input_size",
        "output_size",
        "input_content",
        "content",
        "payload",
        "payload_size",
        "error",
        "excluded",
        "conversation_id",
        "previous_response_id",
        "repeated",
    ),
    "",
)
"""What a deleted response loses whatever it was. It keeps the tokens of its bodies until these are removed, so that
a deletion that was broken off in between can be gone on with."""
_SNAPSHOT = ("snapshot", "replay_place", "repeated")
"""What it keeps when it alone is deleted, and loses when its whole line is."""
_COUNTED = {
    "scope": 1,
    "root": 1,
    "revision": 1,
    "deleted": 1,
    "claims": 1,
    "repeated": 1,
    "place": 1,
    **dict.fromkeys(SIDES, 1),
    "items": {
        "$add": [{"$size": {"$ifNull": ["$input.ids", []]}}, {"$size": {"$ifNull": ["$output.ids", []]}}]
    },
}
"""Projection: without the snapshot, which may have megabytes."""
_UNFINISHED = [{"deleted": {"$ne": True}}, *({name: {"$exists": True}} for name in SIDES)]
"""Matches, by `$or`, what a deletion has work with."""


class Erasing:
    """DeleteResponse, DeleteConversation and DeleteUserData on one database."""

    def __init__(
        self, database: Database, lines: Lines, bodies: Bodies, reading: Reading, grace: timedelta
    ) -> None:
        self._database = database
        self._lines = lines
        self._bodies = bodies
        self._reading = reading
        self._grace = grace

    async def response(self, scope: Scope, response_id: str) -> Receipt:
        """Erases a response's content. Raises ResponseNotFoundError, also the second time."""
        for _ in range(_ATTEMPTS):
            document = await self._reading.latest(scope, response_id, {**_COUNTED, "snapshot": 1})
            if document is None:
                raise ResponseNotFoundError(response_id)
            if document.get("deleted"):
                await self._remove_bodies(document)
                raise ResponseNotFoundError(response_id)
            await self._tell_tree(scope, document["root"])
            if await self._erase(document):
                await self._remove_bodies(document)
                return Receipt(1, document["items"])
        raise StoreUnavailableError("too many writers of one response")

    async def conversation(self, scope: Scope, conversation_id: str) -> Receipt:
        """Erases every response of a conversation that stood in it when the call began.

        Safe to repeat and to be interrupted: what was erased stays so, and the next call goes on.
        """
        thread = conversation_thread(conversation_id)
        last = await self._lines.newest_place(scope, thread)
        places = {"scope": scope.key, "thread": thread}
        receipt = Receipt(0, 0)
        after = 0
        while True:
            batch = await self._database.find(
                RESPONSES,
                {**places, "$or": _UNFINISHED, "place": {"$gt": after, "$lte": last}},
                _COUNTED,
                [("place", 1)],
                _BATCH,
            )
            if not batch:
                break
            await self._tell_tree(scope, thread)
            receipt = await self._erase_all(batch, receipt, _SNAPSHOT)
            after = batch[-1]["place"]
        # Responses that were deleted one by one kept their snapshots for the sake of what follows them.
        await self._database.update_many(
            RESPONSES,
            {**places, "deleted": True, "place": {"$lte": last}, "snapshot": {"$exists": True}},
            {"$unset": dict.fromkeys(_SNAPSHOT, "")},
        )
        return receipt

    async def user(self, scope: Scope) -> Receipt:
        """Erases all data of a scope. Places and ids go too, after the time of grace.

        Safe to repeat and to be interrupted.
        """
        erase_time = {"$set": {"erase_time": self._database.utc_now() + self._grace}}
        gone = (*_SNAPSHOT, "claims")
        receipt = Receipt(0, 0)
        begin = after = f"{scope.key}\n\v"  # beyond the documents by which trees tell of a loss
        end = f"{scope.key}\v"  # the character after the line feed that ends the scope in a key
        while True:
            batch = await self._database.find(
                RESPONSES,
                {"_id": {"$gt": after, "$lt": end}, "erase_time": {"$exists": False}},
                _COUNTED,
                [("_id", 1)],
                _BATCH,
            )
            if not batch:
                break
            after = batch[-1]["_id"]
            for root in {document["root"] for document in batch if not document.get("deleted")}:
                await self._tell_tree(scope, root)
            receipt = await self._erase_all(batch, receipt, gone)
            await self._database.update_many(
                RESPONSES,
                {"_id": {"$in": [document["_id"] for document in batch]}, "deleted": True},
                {**erase_time, "$unset": dict.fromkeys(gone, "")},
            )
        # What came meanwhile stays, and needs what tells of its tree and the paths that lead to it: those of its tree
        # that were there before it was looked for, and all that are made later.
        mark = {"scope": scope.key, "erasing": ObjectId()}
        await self._database.update_many(PATHS, {"scope": scope.key}, {"$set": mark})
        stays = await self._database.find(
            RESPONSES, {"_id": {"$gt": begin, "$lt": end}, "deleted": {"$ne": True}}, {"root": 1}
        )
        roots = list({document["root"] for document in stays})
        past = {"erase_time": {"$exists": False}}
        told = {"_id": {"$gt": f"{scope.key}\n\n", "$lt": begin}, "thread": {"$nin": roots}}
        await self._database.update_many(RESPONSES, {**told, **past}, erase_time)
        await self._database.update_many(PATHS, {**mark, "root": {"$nin": roots}, **past}, erase_time)
        return receipt

    async def _erase_all(self, batch: Sequence[Document], receipt: Receipt, also: Sequence[str]) -> Receipt:
        """Erases responses; those that a writer changed meanwhile are read again."""
        responses, items = receipt.responses, receipt.items
        for document in batch:
            current: Document | None = document
            while current is not None and not current.get("deleted"):
                if await self._erase(current, also):
                    responses += 1
                    items += current["items"]
                    break
                current = await self._database.find_one(RESPONSES, {"_id": document["_id"]}, _COUNTED)
            if current is not None:
                await self._remove_bodies(current)
        return Receipt(responses, items)

    async def _remove_bodies(self, document: Document) -> None:
        """Removes what a deleted response kept outside of its document."""
        tokens = side_tokens(document)
        if tokens:
            await self._bodies.remove(document["scope"], tokens)
            await self._database.update_one(
                RESPONSES, {"_id": document["_id"]}, {"$unset": dict.fromkeys(SIDES, "")}
            )

    async def _erase(self, document: Document, also: Sequence[str] = ()) -> bool:
        """Makes a response content-free, if it is still as it was read."""
        unset = {**_CONTENT, **dict.fromkeys(also, "")}
        if "snapshot" not in document:
            unset["replay_place"] = ""
        change: dict[str, Any] = {"deleted": True, "status": int(Status.UNSPECIFIED)}
        # Claims that another holder relies on stay: they are hashes, and whoever brings the id again must look.
        kept = {documents.claim(item_id) for item_id in document.get("repeated", ())}
        if "snapshot" in document and "snapshot" not in unset:
            kept.update(documents.claim(item_id) for item_id in document["snapshot"]["ids"])
            # Which of them stand elsewhere too is still needed to show each once.
            change["repeated"] = [
                item_id
                for item_id in document.get("repeated", ())
                if item_id in set(document["snapshot"]["ids"])
            ]
            del unset["repeated"]
        claims = sorted(kept.intersection(document.get("claims", ())))
        if claims and "claims" not in unset:
            change["claims"] = claims
        else:
            unset["claims"] = ""
        query = {
            "_id": document["_id"],
            "revision": document["revision"],
            "deleted": {"$exists": False},
            "repeated": document.get("repeated", {"$exists": False}),
        }
        change = {"$set": change, "$unset": unset, "$inc": {"revision": 1}}
        return bool(await self._database.update_one(RESPONSES, query, change))

    async def _tell_tree(self, scope: Scope, root: bytes) -> None:
        """Notes that a tree of threads has lost a response, where every read of it looks."""
        key = f"{scope.key}\n\n{root.hex()}"
        fields = {"scope": scope.key, "thread": root, "replay_place": DELETED_PLACE}
        with suppress(DuplicateKeyError):  # another deletion has noted it at the same moment
            await self._database.update_one(
                RESPONSES,
                {"_id": key},
                {"$setOnInsert": fields, "$unset": {"erase_time": ""}},
                upsert=True,
            )
