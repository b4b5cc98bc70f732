"""What the floor sends and stores: messages and documents put together without a check, from templates."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.calls import create_request, update_request
from tests.bench.histories import document_of
from turnstore.v1.response_pb2 import Item, Response
from turnstore_service.storage.mongo import documents

PARTS = ("input", "output")
_LINKS = ("conversation_id", "previous_response_id")
_META = ("id", "status", "revision", "create_time", "update_time", *_LINKS)
WRITTEN = dict.fromkeys((*_META, *PARTS), 1)
"""Projection: what the reply to a write tells."""
WHOLE = {**WRITTEN, "payload": 1, "input_json": 1, "output_json": 1}
"""Projection: what GetResponse tells."""
_CREATED = document_of(create_request("template"), b"", 1, b"")
_CHANGED = {
    name: value
    for name, value in document_of(update_request("template"), b"", 1, b"").items()
    if name in {"status", "output_size", "payload", "payload_size", "content", "written_by"}
}


def created(key: str, sent: Response, end: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a new response after the turn at the end of its line."""
    place = end["place"] + 1
    links = {name: getattr(sent, name) for name in _LINKS if getattr(sent, name)}
    return {
        **_CREATED,
        **links,
        "_id": key,
        "id": sent.id,
        "thread": end["thread"],
        "root": end["root"],
        "place": place,
        "replay_place": place,
        "input": _columns(sent.input_items),
        "input_json": [item.json for item in sent.input_items],
        "claims": [documents.claim(item.id) for item in sent.input_items],
    }


def changed(sent: Response) -> dict[str, Any]:
    """The update that gives a response its output."""
    return {
        "$set": {
            **_CHANGED,
            "output": _columns(sent.output_items),
            "output_json": [item.json for item in sent.output_items],
        },
        "$addToSet": {"claims": {"$each": [documents.claim(item.id) for item in sent.output_items]}},
        "$inc": {"revision": 1},
        "$currentDate": {"update_time": True},
    }


def _columns(sent: Sequence[Item]) -> dict[str, list[str]]:
    return {"ids": [item.id for item in sent], "types": [item.type for item in sent]}


def items(turns: Sequence[Mapping[str, Any]]) -> list[Item]:
    """The items of turns that were read with their bodies."""
    return [
        Item(id=item_id, type=kind, json=text)
        for turn in turns
        for part in PARTS
        for item_id, kind, text in zip(
            turn[part]["ids"], turn[part].get("types", ()), turn[f"{part}_json"], strict=True
        )
    ]


def response(found: Mapping[str, Any], *, whole: bool) -> Response:
    """A response with its items; not `whole`: without their bodies and the payload."""
    reply = Response(**{name: found[name] for name in _META if name in found})
    if whole:
        reply.payload_json = found.get("payload", "")
    for part, target in (("input", reply.input_items), ("output", reply.output_items)):
        heads = found[part]
        bodies = found[f"{part}_json"] if whole else ("",) * len(heads["ids"])
        for item_id, kind, text in zip(heads["ids"], heads.get("types", ()), bodies, strict=True):
            target.add(id=item_id, type=kind, json=text)
    return reply
