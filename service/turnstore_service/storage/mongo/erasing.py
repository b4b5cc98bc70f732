"""Deleting: what goes, and what stays so that the rest of a line is still right.

A deleted response leaves its place, and the ids of a snapshot if it was given one. The document that tells a
tree of threads that it has lost something is written first, so that no reader meets the loss without it.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from turnstore_service.replay.values import Status
from turnstore_service.storage.errors import ResponseNotFoundError, StoreUnavailableError
from turnstore_service.storage.mongo import documents
from turnstore_service.storage.mongo.bodies import Bodies, side_tokens
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
        "input_side",
        "output_side",
        "input_size",
        "output_size",
        "input_content",
        "content",
        "payload",
        "payload_size",
        "payload_side",
        "error",
        "excluded",
        "conversation_id",
        "previous_response_id",
        "repeated",
    ),
    "",
)
"""What a deleted response loses whatever it was."""
_SNAPSHOT = dict.fromkeys(("snapshot", "replay_place", "repeated"), "")
"""What it keeps when it alone is deleted, and loses when its whole line is."""
_COUNTED = {
    "scope": 1,
    "root": 1,
    "revision": 1,
    "deleted": 1,
    "snapshot": 1,
    "claims": 1,
    "repeated": 1,
    "place": 1,
    "input_side": 1,
    "output_side": 1,
    "payload_side": 1,
    "items": {
        "$add": [{"$size": {"$ifNull": ["$input.ids", []]}}, {"$size": {"$ifNull": ["$output.ids", []]}}]
    },
}


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
            document = await self._reading.latest(scope, response_id, _COUNTED)
            if document is None or document.get("deleted"):
                raise ResponseNotFoundError(response_id)
            await self._tell_tree(scope, document["root"])
            if await self._erase(document):
                await self._bodies.remove(scope.key, side_tokens(document))
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
                {**places, "deleted": {"$ne": True}, "place": {"$gt": after, "$lte": last}},
                _COUNTED,
                [("place", 1)],
                _BATCH,
            )
            if not batch:
                break
            await self._tell_tree(scope, thread)
            receipt = await self._erase_all(batch, receipt, _SNAPSHOT, {})
            after = batch[-1]["place"]
        # Responses that were deleted one by one kept their snapshots for the sake of what follows them.
        await self._database.update_many(
            RESPONSES,
            {**places, "deleted": True, "place": {"$lte": last}, "snapshot": {"$exists": True}},
            {"$unset": _SNAPSHOT},
        )
        return receipt

    async def user(self, scope: Scope) -> Receipt:
        """Erases all data of a scope. Places and ids go too, after the time of grace.

        Safe to repeat and to be interrupted.
        """
        erase_time = documents.utc_now() + self._grace
        receipt = Receipt(0, 0)
        after = f"{scope.key}\n"
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
            for root in {
                document["root"] for document in batch if not document.get("deleted") and "root" in document
            }:
                await self._tell_tree(scope, root)
            live = [document for document in batch if "place" in document and not document.get("deleted")]
            gone = {**_SNAPSHOT, "claims": ""}
            receipt = await self._erase_all(live, receipt, gone, {"erase_time": erase_time})
            await self._database.update_many(
                RESPONSES,
                {"_id": {"$in": [document["_id"] for document in batch]}, "deleted": True},
                {"$set": {"erase_time": erase_time}, "$unset": gone},
            )
        # The documents that tell trees of their losses were written while this went on.
        told = {"_id": {"$gte": f"{scope.key}\n\n", "$lt": f"{scope.key}\n\v"}}
        await self._database.update_many(RESPONSES, told, {"$set": {"erase_time": erase_time}})
        await self._database.update_many(PATHS, {"scope": scope.key}, {"$set": {"erase_time": erase_time}})
        return receipt

    async def _erase_all(
        self, batch: Sequence[Document], receipt: Receipt, also: dict[str, str], fields: dict[str, Any]
    ) -> Receipt:
        """Erases responses; those that a writer changed meanwhile are read again."""
        responses, items = receipt.responses, receipt.items
        for document in batch:
            current: Document | None = document
            while current is not None and not current.get("deleted"):
                if await self._erase(current, also, fields):
                    await self._bodies.remove(current["scope"], side_tokens(current))
                    responses += 1
                    items += current["items"]
                    break
                current = await self._database.find_one(RESPONSES, {"_id": document["_id"]}, _COUNTED)
        return Receipt(responses, items)

    async def _erase(
        self, document: Document, also: dict[str, str] | None = None, fields: dict[str, Any] | None = None
    ) -> bool:
        """Makes a response content-free, if it is still as it was read."""
        unset = {**_CONTENT, **(also or {})}
        if "snapshot" not in document:
            unset["replay_place"] = ""
        change: dict[str, Any] = {"deleted": True, "status": int(Status.UNSPECIFIED), **(fields or {})}
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
