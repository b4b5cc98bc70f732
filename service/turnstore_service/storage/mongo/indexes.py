"""The indexes that the store stands on: what they are, making them, and telling whether they stand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnstore_service.storage.errors import StoreBrokenError, StoreError
from turnstore_service.storage.mongo.driver import Database

RESPONSES = "responses"
PATHS = "paths"
BODIES = "bodies"
COLLECTIONS = (RESPONSES, PATHS, BODIES)


@dataclass(frozen=True, slots=True)
class Index:
    """One index, and why it is there."""

    collection: str
    name: str
    keys: Mapping[str, int]
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)


def _present(name: str) -> dict[str, Any]:
    return {"partialFilterExpression": {name: {"$exists": True}}}


INDEXES = (
    Index(
        RESPONSES,
        "place",
        {"scope": 1, "thread": 1, "place": 1},
        "two writers never get the same place; the newest place of a thread",
        {"unique": True, **_present("place")},
    ),
    Index(
        RESPONSES,
        "replay",
        {"scope": 1, "thread": 1, "replay_place": 1},
        "replay reads the newest turns that count; failed ones cost nothing",
        _present("replay_place"),
    ),
    Index(
        RESPONSES,
        "claims",
        {"scope": 1, "root": 1, "claims": 1},
        "an item id that stands twice on a line is met by its second writer",
        {"unique": True, **_present("claims")},
    ),
    Index(
        RESPONSES, "input_ids", {"scope": 1, "input.ids": 1}, "who holds an input item", _present("input.ids")
    ),
    Index(
        RESPONSES,
        "output_ids",
        {"scope": 1, "output.ids": 1},
        "who holds an output item",
        _present("output.ids"),
    ),
    Index(
        RESPONSES,
        "snapshot_ids",
        {"scope": 1, "snapshot.ids": 1},
        "which snapshot names an item",
        _present("snapshot.ids"),
    ),
    Index(
        RESPONSES, "input_calls", {"scope": 1, "input.calls": 1}, "calls by call id", _present("input.calls")
    ),
    Index(
        RESPONSES,
        "output_calls",
        {"scope": 1, "output.calls": 1},
        "calls by call id",
        _present("output.calls"),
    ),
    Index(
        RESPONSES,
        "deleted",
        {"scope": 1, "thread": 1, "place": 1, "deleted": 1},
        "whether a line has lost a response",
        {"partialFilterExpression": {"deleted": True}},
    ),
    Index(
        RESPONSES,
        "erase",
        {"erase_time": 1},
        "the database removes what stays of a user's deleted data",
        {"expireAfterSeconds": 0, **_present("erase_time")},
    ),
    Index(PATHS, "scope", {"scope": 1}, "a user's data can be erased"),
    Index(PATHS, "erase", {"erase_time": 1}, "as above", {"expireAfterSeconds": 0, **_present("erase_time")}),
    Index(
        BODIES,
        "token",
        {"scope": 1, "token": 1, "part": 1, "index": 1, "chunk": 1},
        "the bodies of one write, in order",
        {"unique": True},
    ),
    Index(BODIES, "age", {"create_time": 1}, "bodies whose response was never written"),
)


async def make_indexes(database: Database) -> None:
    """Makes what is missing; an index that stands is no work.

    Raises WrongIndexError when one stands differently: dropping it is for the operator to decide.
    """
    for collection in COLLECTIONS:
        try:
            await database.command(
                "createIndexes",
                collection,
                indexes=[
                    {"name": index.name, "key": dict(index.keys), **index.options}
                    for index in INDEXES
                    if index.collection == collection
                ],
                writeConcern={"w": "majority"},
            )
        except StoreBrokenError as error:
            raise WrongIndexError("; ".join(await index_problems(database))) from error


class WrongIndexError(StoreError):
    """An index stands that is not as it should be; the message names it and what to do."""


async def index_problems(database: Database) -> list[str]:
    """What is missing or stands differently, a sentence each; empty when all is well."""
    problems = []
    for collection in COLLECTIONS:
        standing = {index["name"]: index for index in await database.indexes(collection)}
        for index in INDEXES:
            if index.collection != collection:
                continue
            found = standing.get(index.name)
            if found is None:
                problems.append(
                    f"index {collection}.{index.name} ({index.why}) is missing: run `turnstore-service migrate`"
                )
            elif not _same(index, found):
                problems.append(
                    f"index {collection}.{index.name} ({index.why}) is not as it should be: drop it, then run"
                    " `turnstore-service migrate`"
                )
    return problems


def _same(index: Index, found: Mapping[str, Any]) -> bool:
    if list(found["key"].items()) != list(index.keys.items()):
        return False
    names = ("unique", "partialFilterExpression", "expireAfterSeconds")
    return all(found.get(name) == index.options.get(name) for name in names) and not found.get("hidden")
