"""Every query that a service sends, by its shape, with the plan that the database has for it at that moment."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pymongo
from pymongo import monitoring

Stage = Mapping[str, Any]

_QUERIES = frozenset({"find", "update", "delete", "findAndModify"})
_NO_QUERIES = frozenset({"insert", "getMore", "killCursors", "endSessions", "listIndexes", "createIndexes"})
_NO_QUERIES_OF_THE_DATABASE = frozenset({"explain", "hello", "ping", "dropDatabase"})
_ABOUT_THE_CALL = frozenset({"lsid", "txnNumber", "writeConcern", "readConcern", "maxTimeMS", "ordered"})
"""Fields of a command that `explain` does not take, or that change nothing about the plan."""
_EXPLAINED = 25
"""Queries of one shape that are explained in each part of a run; the plans of more are alike."""


@dataclass(frozen=True)
class Plan:
    """How the database carries out one query, as `explain` tells."""

    indexes: frozenset[str]
    stages: frozenset[str]
    matched: int
    """Documents that the query is about: those returned, changed or removed."""
    documents: int
    """Documents that were looked at."""
    keys: int
    """Index keys that were looked at."""
    asked: int
    """Ranges and values that were asked for: each of them costs a key even if nothing is there."""
    text: str
    """The query itself, for a message."""


class Recorder(monitoring.CommandListener):
    """Notes the shape of each query on one database, and explains it just before it is carried out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: pymongo.MongoClient[dict[str, Any]] | None = None
        self.begin("", "")

    def begin(self, uri: str, database: str) -> None:
        """From now on, looks at this database alone, and forgets all others; none by empty texts."""
        if self._client is not None:
            self._client.close()
        self._client = pymongo.MongoClient(uri) if uri else None
        self._database = database
        self.plans: dict[str, list[Plan]] = defaultdict(list)
        self.unknown: set[str] = set()
        """Commands of which nobody has said whether they have a query."""
        self.errors: list[str] = []
        self.next_part()

    def next_part(self) -> None:
        """Explains queries again of whose shape enough were explained."""
        self._counts: Counter[str] = Counter()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        name = event.command_name
        if event.database_name != self._database or name in _NO_QUERIES | _NO_QUERIES_OF_THE_DATABASE:
            return
        if name not in _QUERIES:
            self.unknown.add(name)
            return
        try:  # the driver would swallow an error
            for command, shape in _single_queries(event.command):
                self._explain(command, shape)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells it
            self.errors.append(f"{event.command}: {error!r}")

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass

    def _explain(self, command: dict[str, Any], shape: str) -> None:
        assert self._client is not None
        with self._lock:
            self._counts[shape] += 1
            if self._counts[shape] > _EXPLAINED:
                return
        explained = self._client[self._database].command("explain", command, verbosity="executionStats")
        with self._lock:
            self.plans[shape].append(_plan_of(explained, command))


def _single_queries(command: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each query of a command as a command of its own, and its shape."""
    bare = {
        name: value
        for name, value in command.items()
        if name not in _ABOUT_THE_CALL and not name.startswith("$")
    }
    name = next(iter(bare))
    parts = {"update": "updates", "delete": "deletes"}.get(name)
    if parts is None:
        yield bare, shape_of(bare)
        return
    for one in bare[parts]:
        single = {**bare, parts: [one]}
        yield single, shape_of(single)


def shape_of(command: Mapping[str, Any]) -> str:
    """A query without its values: `responses find {scope, place: $gt} by place down, limited`.

    One that names the `_id` of a single document finds that one and no other, whatever else it asks for, so the
    rest of its conditions is left out.
    """
    name = next(iter(command))
    text = f"{command[name]} {name} {_filter_shape(query_of(command))}"
    if command.get("sort"):
        order = (f"{field} {'up' if way > 0 else 'down'}" for field, way in command["sort"].items())
        text += f" by {', '.join(order)}"
    return f"{text}, limited" if command.get("limit") else text


def query_of(command: Mapping[str, Any]) -> Mapping[str, Any]:
    """The filter of a command with one query."""
    for parts in ("updates", "deletes"):
        if parts in command:
            return dict(command[parts][0]["q"])
    return dict(command.get("filter") or command.get("query") or {})


def _filter_shape(query: Mapping[str, Any]) -> str:
    if "_id" in query and not isinstance(query["_id"], dict):
        return "{_id}"
    fields = sorted(f"{field}{_condition_shape(field, value)}" for field, value in query.items())
    return "{" + ", ".join(fields) + "}"


def _condition_shape(field: str, value: Any) -> str:
    if field == "$or":
        return f" {' or '.join(sorted({_filter_shape(branch) for branch in value}))}"
    if isinstance(value, dict):
        # Whether a field is there decides which partial indexes can be used.
        operators = (f"{name} {value[name]}" if name == "$exists" else name for name in sorted(value))
        return f": {' '.join(operators)}"
    return ""


def _asked(query: Mapping[str, Any]) -> int:
    """How many ranges and values a filter asks for."""
    branches = sum(map(_asked, query.get("$or", ())))
    values = sum(len(value["$in"]) for value in query.values() if isinstance(value, dict) and "$in" in value)
    return max(1, branches) * max(1, values)


def _plan_of(explained: Mapping[str, Any], command: Mapping[str, Any]) -> Plan:
    winning = explained["queryPlanner"]["winningPlan"]
    stages = list(_stages(winning.get("queryPlan", winning)))
    statistics = explained["executionStats"]
    return Plan(
        frozenset(_index_of(stage) for stage in stages if _index_of(stage)),
        frozenset(stage["stage"] for stage in stages),
        _matched(statistics),
        statistics["totalDocsExamined"],
        statistics["totalKeysExamined"],
        _asked(query_of(command)),
        str(dict(command))[:1000],
    )


def _stages(stage: Stage) -> Iterator[Stage]:
    yield stage
    below: Iterable[Stage] = stage.get("inputStages", ())
    for one in (*below, *([stage["inputStage"]] if "inputStage" in stage else [])):
        yield from _stages(one)


def _index_of(stage: Stage) -> str:
    return "_id_" if "IDHACK" in stage["stage"] else str(stage.get("indexName", ""))


def _matched(statistics: Mapping[str, Any]) -> int:
    """A write that is explained returns nothing: what it would write to comes out of the stage below."""
    stage = statistics["executionStages"]
    while stage["stage"] in ("UPDATE", "DELETE", "PROJECTION_DEFAULT", "PROJECTION_SIMPLE"):
        stage = stage["inputStage"]
    return int(stage["nReturned"])
