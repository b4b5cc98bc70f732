"""The form of a response in the database, both ways.

One document holds a response whole, so that storing a turn is one write, which MongoDB makes atomic. The heads
of its items stand in columns (`input.ids`, `input.types`, ...) apart from their JSON (`input_json`), so that a
read of ids leaves the bodies in the database.

| field | meaning |
|---|---|
| `_id` | scope key, response id and generation (an id may be created again after a delete), by line feeds |
| `scope`, `thread`, `place` | where it stands; unique together |
| `root` | the thread from which its thread branched first |
| `replay_place` | the place again, in documents that replay has to look at; absent from failed ones |
| `input`, `output` | columns of heads |
| `input_json`, `output_json` | JSON texts |
| `input_large`, `output_large` | the same for parts that are too large to be read along with heads |
| `claims` | hashes of item ids, unique within a root: a second holder of an id meets the first |
| `repeated` | its item ids that another response of the same root was seen to hold |
| `content`, `input_content` | digests of what a client sets, to tell a write that changes nothing |
| `input_size`, `output_size`, `payload_size` | bytes of the JSON that stands in the document |
| `input_side`, `output_side`, `payload_side` | the token of a part that is in the collection of bodies |
| `deleted` | true in what stays of a deleted response: id, place, snapshot |
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from bson.int64 import Int64

from turnstore_service.replay.values import IN_FLIGHT, Head, Holder, Part, SnapshotId, Status, Text, Turn
from turnstore_service.storage.mongo.driver import Document
from turnstore_service.storage.values import Items, ResponseFault, Scope, StoredResponse, Summary, Write

HEADS: dict[str, Any] = {
    "id": 1,
    "status": 1,
    "excluded": 1,
    "deleted": 1,
    "revision": 1,
    "place": 1,
    "repeated": 1,
    "snapshot": 1,
    "input": 1,
    "output": 1,
}
"""Projection: what the rules look at, without any JSON."""
IDS = {**HEADS, "input": {"ids": 1}, "output": {"ids": 1}}
"""Projection: the same for a policy that does not look at types."""
SMALL_PART_BYTES = 32 * 1024
"""JSON of the input or the output up to this size stands in `input_json` or `output_json` and is read along with
the heads; more stands in `input_large` or `output_large` and is read once it is known to be wanted, so that a
window of many turns stays small."""
_SMALL = {"input_json": 1, "output_json": 1}
WITH_BODIES = {**HEADS, **_SMALL}
"""Projection: heads, and the JSON of parts that are small."""
BODIES_ALONE = {"id": 1, "revision": 1, **_SMALL}
"""Projection: the JSON of parts that are small."""


def response_key(scope: Scope, response_id: str, generation: int) -> str:
    """The `_id` of a response. Keys of one id sort by generation."""
    return f"{scope.key}\n{response_id}\n{generation:08x}"


def generation_of(key: str) -> int:
    """How many responses of this id were created and deleted before."""
    return int(key.rpartition("\n")[2], 16)


def claim(item_id: str) -> Int64:
    """An item id as 64 bits. A collision only makes a write look twice."""
    return Int64(
        int.from_bytes(hashlib.blake2b(item_id.encode(), digest_size=8).digest(), "big", signed=True)
    )


def columns(heads: Sequence[Head]) -> Document:
    """Heads as columns; what most items do not have is left out."""
    document: Document = {"ids": [head.id for head in heads]}
    if any(head.type for head in heads):
        document["types"] = [head.type for head in heads]
    calls = [(index, head.call) for index, head in enumerate(heads) if head.call]
    if calls:
        document["call_at"] = [index for index, _ in calls]
        document["calls"] = [call for _, call in calls]
    texts = [(index, int(head.text)) for index, head in enumerate(heads) if head.text is not Text.WHOLE]
    if texts:
        document["text_at"] = [index for index, _ in texts]
        document["texts"] = [text for _, text in texts]
    return document


def types_of(document: Mapping[str, Any]) -> list[str]:
    """The types of the items in columns."""
    types: list[str] = document.get("types") or [""] * len(document["ids"])
    return types


def heads_of(document: Mapping[str, Any] | None) -> list[Head]:
    """Columns as heads. Columns that were not read are taken as empty."""
    if not document or not document["ids"]:
        return []
    types = document.get("types")
    heads = list(map(Head, document["ids"], types)) if types else list(map(Head, document["ids"]))
    if "calls" in document:
        for index, call in zip(document["call_at"], document["calls"], strict=True):
            heads[index] = heads[index]._replace(call=call)
    if "texts" in document:
        for index, text in zip(document["text_at"], document["texts"], strict=True):
            heads[index] = heads[index]._replace(text=Text(text))
    return heads


def content_digest(write: Write) -> bytes:
    """Digest of what each write replaces: status, output, payload, error."""
    fault = (write.fault.code, write.fault.message) if write.fault else ()
    return _digest(str(int(write.status)), write.payload, *fault, "", *write.output.bodies)


def input_digest(items: Items) -> bytes:
    """Digest of the input."""
    return _digest(*items.bodies)


def _digest(*texts: str) -> bytes:
    parts: list[bytes] = []
    for text in texts:
        data = text.encode()
        parts += len(data).to_bytes(8, "big"), data
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def json_size(texts: Iterable[str]) -> int:
    """Bytes of JSON texts."""
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def contributes(status: Status, excluded: bool | None) -> bool:
    """Whether a response contributes to replay under `as_stored`: not failed, not excluded."""
    return status is not Status.FAILED and not excluded


def new_document(
    write: Write, *, key: str, scope: Scope, now: datetime, known: Sequence[bool] = ()
) -> Document:
    """The document of a new response, without its place (`place` gives it one)."""
    document: Document = {
        "_id": key,
        "scope": scope.key,
        "id": write.response_id,
        "revision": 1,
        **{
            name: value for name, value in changed_fields(write, with_input=True).items() if value is not None
        },
        "create_time": now,
        "update_time": now,
    }
    if write.conversation_id:
        document["conversation_id"] = write.conversation_id
    if write.previous_response_id:
        document["previous_response_id"] = write.previous_response_id
    if write.excluded is not None:
        document["excluded"] = write.excluded
    if write.snapshot:
        document["snapshot"] = {"ids": list(write.snapshot)}
        unknown = [index for index, is_known in enumerate(known) if not is_known]
        if unknown:
            document["snapshot"]["unknown"] = unknown
    if write.request_id:
        document["created_by"] = write.request_id
    return document


def place(document: Document, thread: bytes, at: int, root: bytes, claims: Sequence[Int64]) -> None:
    """Gives a new response its place, and its claims, which belong to the root."""
    document.update(thread=thread, place=at, root=root)
    if contributes(Status(document["status"]), document.get("excluded")) or "snapshot" in document:
        document["replay_place"] = at
    document.pop("claims", None)
    if claims:
        document["claims"] = list(claims)
    if not document.get("repeated"):
        document.pop("repeated", None)


def changed_fields(write: Write, *, with_input: bool) -> Document:
    """The fields that a write replaces; None stands for a field that the document is not to have."""
    fields: Document = {
        "status": int(write.status),
        "output": columns(write.output.heads),
        **_texts("output", write.output.bodies),
        "output_side": None,
        "payload": write.payload or None,
        "payload_size": json_size((write.payload,)),
        "payload_side": None,
        "error": {"code": write.fault.code, "message": write.fault.message} if write.fault else None,
        "content": content_digest(write),
        "written_by": write.request_id or None,
    }
    if with_input:
        fields.update(
            input=columns(write.input.heads),
            **_texts("input", write.input.bodies),
            input_side=None,
            input_content=input_digest(write.input),
        )
    return fields


def _texts(name: str, bodies: Sequence[str]) -> Document:
    size = json_size(bodies)
    small = size <= SMALL_PART_BYTES
    return {
        f"{name}_size": size,
        f"{name}_json": list(bodies) if small else None,
        f"{name}_large": None if small else list(bodies),
    }


def inline_size(document: Mapping[str, Any]) -> int:
    """Bytes of the JSON that stands in a document."""
    return sum(int(document.get(name, 0)) for name in ("input_size", "output_size", "payload_size"))


def replay_ids(write: Write) -> list[str]:
    """The item ids that a new response puts on its line, each once; of a failed one only its snapshot's."""
    own = contributes(write.status, write.excluded)
    heads = (*write.input.heads, *write.output.heads) if own else ()
    return list(dict.fromkeys((*write.snapshot, *(head.id for head in heads))))


def status_now(document: Mapping[str, Any], abandoned_before: datetime | None) -> Status:
    """The status as it counts: a turn that runs and has not changed since that time counts as FAILED."""
    status: Status = _STATUSES[document["status"]]
    if abandoned_before is not None and status in IN_FLIGHT and document["update_time"] < abandoned_before:
        return Status.FAILED
    return status


_STATUSES: tuple[Status, ...] = tuple(Status)
_NONE_REPEATED: frozenset[str] = frozenset()


def turn_of(document: Mapping[str, Any], abandoned_before: datetime | None = None) -> Turn:
    """A stored response as the rules see it."""
    get = document.get
    snapshot = get("snapshot")
    repeated = get("repeated")
    return Turn(
        document["_id"],
        document["id"],
        status_now(document, abandoned_before),
        get("excluded", False),
        get("deleted", False),
        snapshot_of(snapshot) if snapshot else (),
        heads_of(get("input")),
        heads_of(get("output")),
        frozenset(repeated) if repeated else _NONE_REPEATED,
    )


def snapshot_of(document: Mapping[str, Any]) -> list[SnapshotId]:
    """A stored snapshot."""
    unknown = set(document.get("unknown", ()))
    return [SnapshotId(item_id, index not in unknown) for index, item_id in enumerate(document["ids"])]


def holders_of(
    document: Mapping[str, Any], wanted: set[str], abandoned_before: datetime | None = None
) -> Iterable[Holder]:
    """The wanted items that a response holds itself, each at its first place in it."""
    status = status_now(document, abandoned_before)
    excluded = bool(document.get("excluded"))
    found: set[str] = set()
    for part, column in ((Part.INPUT, document.get("input")), (Part.OUTPUT, document.get("output"))):
        for index, head in enumerate(heads_of(column)):
            if head.id in wanted and head.id not in found:
                found.add(head.id)
                yield Holder(
                    document["_id"],
                    document["id"],
                    status,
                    excluded,
                    part,
                    index,
                    head,
                    (document["create_time"], document["_id"]),
                )


def stored_of(document: Mapping[str, Any], abandoned_before: datetime | None = None) -> StoredResponse:
    """A stored response without its bodies."""
    fault = document.get("error")
    return StoredResponse(
        document["_id"],
        document["id"],
        status_now(document, abandoned_before),
        document["revision"],
        document["place"],
        document.get("conversation_id", ""),
        document.get("previous_response_id", ""),
        heads_of(document.get("input")),
        heads_of(document.get("output")),
        ResponseFault(fault["code"], fault["message"]) if fault else None,
        document.get("excluded"),
        document["create_time"],
        document["update_time"],
    )


def summary_of(document: Mapping[str, Any], abandoned_before: datetime | None = None) -> Summary:
    """A turn of a listing; the document was read with counts in place of its items."""
    return Summary(
        document["id"],
        status_now(document, abandoned_before),
        document["revision"],
        document["place"],
        document.get("conversation_id", ""),
        document.get("previous_response_id", ""),
        bool(document.get("excluded")),
        document["inputs"],
        document["outputs"],
        document["create_time"],
        document["update_time"],
    )


def abandoned_before(now: datetime, abandon_after: timedelta | None) -> datetime | None:
    """Turns that run and have not changed since then are abandoned; None: the setting is off."""
    return None if abandon_after is None else now - abandon_after
