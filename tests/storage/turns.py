"""Turns for tests of the store, and what is in the database after them."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pymongo

from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import response_pb2
from turnstore_service.replay.values import BodyRef, Part, Question, Status
from turnstore_service.rpc import parsing
from turnstore_service.storage.mongo.store import MongoStore
from turnstore_service.storage.values import Scope, StoredResponse, Write

MIB = 1024 * 1024
SCOPE = Scope("tests", "ada")
ALL = Question()
SIDES = ("input_side", "output_side", "payload_side")
"""Fields of a response that tell where bodies outside of its document are."""


def item(item_id: str, size: int = 0) -> str:
    """A message of at least so many bytes."""
    return json.dumps({"id": item_id, "type": "message", "role": "user", "content": item_id + "-" * size})


def items(prefix: str, count: int, size: int = 0) -> list[str]:
    return [item(f"{prefix}-{number}", size) for number in range(count)]


def turn(
    response_id: str,
    *,
    conversation: str = "",
    parent: str = "",
    status: Status = Status.COMPLETED,
    given: Sequence[str] = (),
    made: Sequence[str] = (),
    payload: str = "",
    snapshot: Sequence[str] = (),
    revision: int | None = None,
    request_id: str = "",
) -> Write:
    """A write, as the service makes it of a request."""
    return parsing.write(
        rpc.StoreResponseRequest(
            response=response_pb2.Response(
                id=response_id,
                status=int(status),  # type: ignore[arg-type]
                conversation_id=conversation,
                previous_response_id=parent,
                input_items=[response_pb2.Item(json=text) for text in given],
                output_items=[response_pb2.Item(json=text) for text in made],
                payload_json=payload,
            ),
            expected_revision=revision,
            inherited_item_ids=snapshot,
            request_id=request_id,
        )
    )


async def read(store: MongoStore, response_id: str, scope: Scope = SCOPE) -> tuple[list[str], list[str], str]:
    """Input, output and payload of a response, all of it. Raises what the store raises."""
    stored, texts, payload = await store.reading.response(scope, response_id)
    refs = _refs(stored)
    texts.update(await store.reading.bodies(refs, {stored.key: stored.revision}, 1 << 40))
    if payload is None:
        payload = await store.reading.payload(scope, stored)
    bodies = [texts.get(ref) or "" for ref in refs]
    return bodies[: len(stored.input)], bodies[len(stored.input) :], payload


def _refs(stored: StoredResponse) -> list[BodyRef]:
    return [
        BodyRef(stored.key, part, index)
        for part, heads in ((Part.INPUT, stored.input), (Part.OUTPUT, stored.output))
        for index in range(len(heads))
    ]


class Raw:
    """The documents themselves, past the store."""

    def __init__(self, client: "pymongo.MongoClient[dict[str, Any]]", database_name: str) -> None:
        self.database = client[database_name]

    def responses(self, **query: Any) -> list[dict[str, Any]]:
        return list(self.database["responses"].find(query))

    def chunks(self) -> set[bytes]:
        """The tokens of all bodies outside of their response's document."""
        return set(self.database["bodies"].distinct("token"))

    def named_chunks(self) -> set[bytes]:
        """The tokens that responses name."""
        return {
            response[side]
            for response in self.responses()
            for side in SIDES
            if response.get(side) is not None
        }

    def places(self, conversation: str) -> list[int]:
        found = self.database["responses"].find({"conversation_id": conversation}, {"place": 1})
        return sorted(response["place"] for response in found)

    def holding(self, marker: str) -> list[str]:
        """The collections and keys of all documents that have a text anywhere in them."""
        wanted = marker.encode()
        return [
            f"{collection}: {document['_id']!r}"
            for collection in self.database.list_collection_names()
            for document in self.database[collection].find()
            if any(wanted in text for text in _bytes_in(document))
        ]


def _bytes_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield name.encode()
            yield from _bytes_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from _bytes_in(part)
    elif isinstance(value, str):
        yield value.encode()
    elif isinstance(value, bytes):
        yield value
