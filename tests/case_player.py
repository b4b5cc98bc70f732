"""Plays a replay case, step by step, against a driver: the model, or a service behind a channel.

A case is strict in both directions. The whole of what a step names is compared, and a key or a value that the
player does not know is refused before the first step is played, so that a misspelt expectation cannot pass as
one that holds. `tests/cases/README.md` describes the format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.model import (
    DEFAULT_PAGE,
    LARGEST_PAGE,
    STATUSES,
    History,
    Item,
    Model,
    Policy,
    Receipt,
    RefusedError,
    Stored,
    Summary,
    Turn,
)

CASES = Path(__file__).parent / "cases"

CASE_KEYS = {"name", "why", "source", "steps"}
STEP_KEYS = {
    "store": {
        "response",
        "expected_revision",
        "duplicate_items",
        "inherited_item_ids",
        "request_id",
        "error",
    },
    "resolve": {
        "conversation_id",
        "previous_response_id",
        "before_response_id",
        "limit",
        "limit_unit",
        "policy",
        "answered_call_ids",
        "view",
        "explain",
        "expect",
        "expect_texts",
        "truncated",
        "ancestor_deleted",
        "reasons",
        "same_json",
        "texts",
        "partial",
        "error",
    },
    "get": {"response_id", "status", "revision", "error"},
    "input_items": {"response_id", "order", "page_size", "after", "before", "expect", "error"},
    "batch_get": {"item_ids", "expect", "error"},
    "exclude": {"response_id", "excluded", "error"},
    "delete": {"response_id", "error"},
}
REQUIRED = {
    "store": {"response"},
    "get": {"response_id"},
    "input_items": {"response_id"},
    "batch_get": {"item_ids"},
    "exclude": {"response_id", "excluded"},
    "delete": {"response_id"},
}
# A step of these kinds that expects nothing would pass whatever came back.
EXPECTATIONS = {
    "resolve": {"expect", "expect_texts", "error"},
    "get": {"status", "revision", "error"},
    "input_items": {"expect", "error"},
    "batch_get": {"expect", "error"},
}
RESPONSE_KEYS = {
    "id",
    "status",
    "conversation_id",
    "previous_response_id",
    "input_items",
    "output_items",
    "payload_json",
    "error",
    "exclude_from_replay",
}
TURN_RULES = {"INCLUDE", "SANITIZE", "INPUT_ONLY", "EXCLUDE"}
POLICY_VALUES = {
    "cancelled": TURN_RULES,
    "incomplete": TURN_RULES,
    "in_flight": TURN_RULES,
    "tool_items": {"KEEP", "PAIRED"},
    "limit_cut": {"EXACT", "WHOLE"},
}
STEP_VALUES = {
    "duplicate_items": {"REJECT", "KEEP_FIRST"},
    "limit_unit": {"ITEMS", "TURNS"},
    "view": {"ITEM_IDS", "FULL"},
    "order": {"ASC", "DESC"},
}
REASONS = {
    "FAILED",
    "EXCLUDED_BY_CALLER",
    "DELETED",
    "CANCELLED",
    "INCOMPLETE",
    "IN_FLIGHT",
    "UNPAIRED_CALL",
    "UNPAIRED_OUTPUT",
    "TIED_REASONING",
    "PENDING_REQUEST",
    "EMPTY_CONTENT",
    "DUPLICATE",
    "SPLIT_UNIT",
    "NO_CONTRIBUTOR",
}
CODES = {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "ABORTED"}


class BadCaseError(Exception):
    """The case itself is wrong: a key or value that the format has not, or a step that checks nothing."""


class Driver(Protocol):
    """What cases and sequences are played against: a method an RPC, RefusedError for an error.

    A reply that comes in pages is given whole.
    """

    async def store(
        self,
        user: str | None,
        response: dict[str, Any],
        *,
        expected_revision: int | None = None,
        duplicate_items: str = "REJECT",
        inherited_item_ids: Sequence[str] = (),
        request_id: str = "",
    ) -> Stored: ...

    async def resolve(
        self,
        user: str | None,
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
        before_response_id: str = "",
        limit: int | None = None,
        limit_unit: str = "ITEMS",
        policy: Policy | None = None,
        answered_call_ids: Sequence[str] = (),
        explain: bool = False,
        view: str = "ITEM_IDS",
    ) -> History:
        """In the view ITEM_IDS the items of the history have nothing but their ids."""
        ...

    async def get(self, user: str | None, response_id: str) -> Turn: ...

    async def list_input_items(
        self,
        user: str | None,
        response_id: str,
        *,
        order: str = "DESC",
        page_size: int = 0,
        after: str = "",
        before: str = "",
        include_inherited: bool = False,
    ) -> list[tuple[Item, ...]]:
        """All pages, one tuple a page."""
        ...

    async def batch_get(
        self,
        user: str | None,
        item_ids: Sequence[str],
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
    ) -> tuple[Item | None, ...]: ...

    async def list_responses(
        self,
        user: str | None,
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
        page_size: int = 0,
    ) -> tuple[Summary, ...]: ...

    async def set_replay_exclusion(self, user: str | None, response_id: str, excluded: bool) -> int: ...

    async def delete(self, user: str | None, response_id: str) -> Receipt: ...

    async def delete_conversation(self, user: str | None, conversation_id: str) -> Receipt: ...

    async def delete_user_data(self, user: str | None) -> Receipt: ...


class ModelDriver:
    """The model behind the interface of a service."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def store(self, user: str | None, response: dict[str, Any], **fields: Any) -> Stored:
        return self._model.store(user, response, **fields)

    async def resolve(
        self, user: str | None, *, policy: Policy | None = None, view: str = "ITEM_IDS", **fields: Any
    ) -> History:
        history = self._model.resolve(user, policy=policy or Policy(), **fields)
        if view == "FULL":
            return history
        bare = tuple(Item(item_id) for item_id in history.item_ids)
        return History(bare, history.exclusions, history.ancestor_deleted, history.truncated)

    async def get(self, user: str | None, response_id: str) -> Turn:
        return self._model.get(user, response_id)

    async def list_input_items(
        self, user: str | None, response_id: str, *, page_size: int = 0, **fields: Any
    ) -> list[tuple[Item, ...]]:
        items = self._model.list_input_items(user, response_id, **fields)
        if page_size < 0:
            raise RefusedError("INVALID_ARGUMENT", "INVALID_FIELD", {"field": "page_size"})
        size = min(page_size or DEFAULT_PAGE, LARGEST_PAGE)
        return [items[start : start + size] for start in range(0, max(len(items), 1), size)]

    async def batch_get(
        self, user: str | None, item_ids: Sequence[str], **fields: Any
    ) -> tuple[Item | None, ...]:
        return self._model.batch_get(user, item_ids, **fields)

    async def list_responses(
        self, user: str | None, *, page_size: int = 0, **fields: Any
    ) -> tuple[Summary, ...]:
        return self._model.list_responses(user, **fields)

    async def set_replay_exclusion(self, user: str | None, response_id: str, excluded: bool) -> int:
        return self._model.set_replay_exclusion(user, response_id, excluded)

    async def delete(self, user: str | None, response_id: str) -> Receipt:
        return self._model.delete(user, response_id)

    async def delete_conversation(self, user: str | None, conversation_id: str) -> Receipt:
        return self._model.delete_conversation(user, conversation_id)

    async def delete_user_data(self, user: str | None) -> Receipt:
        return self._model.delete_user_data(user)


def case_files() -> list[Path]:
    """Every case, in the order of the names. Raises when there is none: an empty run must not pass."""
    files = sorted(CASES.glob("*.json"))
    if not files:
        raise FileNotFoundError(f"no replay case in {CASES}")
    return files


def load(path: Path) -> dict[str, Any]:
    """The case of a file, checked against the format. Raises BadCaseError."""
    case = json.loads(path.read_text(encoding="utf-8"))
    check(case)
    if case["name"] != path.stem:
        raise BadCaseError(f"{path.name} is named {case['name']}")
    return dict(case)


def check(case: dict[str, Any]) -> None:
    """Raises BadCaseError for anything in the case that the format does not have."""
    _check_keys("case", case, CASE_KEYS, CASE_KEYS)
    if not case["steps"]:
        raise BadCaseError("a case without steps")
    for number, step in enumerate(case["steps"]):
        where = f"step {number}"
        op = step.get("op")
        if op not in STEP_KEYS:
            raise BadCaseError(f"{where}: unknown op {op!r}")
        _check_keys(where, step, STEP_KEYS[op] | {"op", "user"}, REQUIRED.get(op, set()))
        _check_step(f"{where} ({op})", op, step)
    if all(_expects_nothing(step) for step in case["steps"]):
        raise BadCaseError("a case that expects nothing")


def _expects_nothing(step: dict[str, Any]) -> bool:
    return "error" not in step and step["op"] in ("store", "exclude", "delete")


def _check_keys(where: str, value: dict[str, Any], known: set[str], required: set[str]) -> None:
    if unknown := value.keys() - known:
        raise BadCaseError(f"{where}: unknown key {', '.join(sorted(unknown))}")
    if missing := required - value.keys():
        raise BadCaseError(f"{where}: no {', '.join(sorted(missing))}")


def _check_value(where: str, value: Any, known: set[str] | frozenset[str]) -> None:
    if value not in known:
        raise BadCaseError(f"{where}: {value!r} is none of {', '.join(sorted(known))}")


def _check_step(where: str, op: str, step: dict[str, Any]) -> None:
    if op in EXPECTATIONS and not step.keys() & EXPECTATIONS[op]:
        raise BadCaseError(f"{where}: expects nothing")
    if "error" in step:
        code, colon, reason = step["error"].partition(":")
        _check_value(where, code, CODES)
        if colon and not reason:
            raise BadCaseError(f"{where}: no reason after the colon")
        answers = {"expect", "expect_texts", "truncated", "ancestor_deleted", "reasons", "same_json", "texts"}
        if extra := step.keys() & (answers | {"partial", "status", "revision"}):
            raise BadCaseError(f"{where}: an error and {', '.join(sorted(extra))}")
    for name, known in STEP_VALUES.items():
        if name in step:
            _check_value(f"{where}: {name}", step[name], known)
    if op == "get" and "status" in step:
        _check_value(f"{where}: status", step["status"], STATUSES)
    if "response" in step:
        response = step["response"]
        _check_keys(f"{where}: response", response, RESPONSE_KEYS, {"id"})
        _check_value(f"{where}: status", response.get("status", "COMPLETED"), STATUSES)
        if "error" in response:
            _check_keys(f"{where}: response.error", response["error"], {"code", "message"}, set())
    if "policy" in step:
        _check_keys(f"{where}: policy", step["policy"], set(POLICY_VALUES), set())
        for name, value in step["policy"].items():
            _check_value(f"{where}: policy.{name}", value, POLICY_VALUES[name])
    for reason in step.get("reasons", {}).values():
        _check_value(f"{where}: reasons", reason, REASONS)
    if "reasons" in step and not step.get("explain"):
        raise BadCaseError(f"{where}: reasons without explain")
    if step.keys() & {"expect_texts", "same_json", "texts", "partial"} and step.get("view") != "FULL":
        raise BadCaseError(f"{where}: what it expects needs the view FULL")


async def play(case: dict[str, Any], driver: Driver) -> None:
    """Plays the case. Raises BadCaseError for a wrong case, AssertionError for an answer that differs."""
    check(case)
    texts: dict[str, set[str]] = {}
    for number, step in enumerate(case["steps"]):
        where = f"{case['name']}, step {number} ({step['op']})"
        try:
            await _STEPS[step["op"]](where, step, driver, texts)
        except RefusedError as refused:
            _check_refusal(where, refused, step.get("error"))
        else:
            assert "error" not in step, f"{where}: expected {step.get('error')}, but it was accepted"


def _check_refusal(where: str, refused: RefusedError, expected: str | None) -> None:
    assert expected, f"{where}: refused with {refused}"
    actual = f"{refused.code}:{refused.reason}" if ":" in expected else refused.code
    assert actual == expected, f"{where}: expected {expected}, refused with {refused}"


def _equal(where: str, what: str, actual: Any, expected: Any) -> None:
    assert actual == expected, f"{where}: {what} is\n  {actual!r}, expected\n  {expected!r}"


def _given(step: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: step[name] for name in names if name in step}


async def _store(where: str, step: dict[str, Any], driver: Driver, texts: dict[str, set[str]]) -> None:
    response = {"status": "COMPLETED", **step["response"]}
    fields = _given(step, "expected_revision", "duplicate_items", "inherited_item_ids", "request_id")
    stored = await driver.store(step.get("user"), response, **fields)
    for ids, given in (
        (stored.input_ids, response.get("input_items", [])),
        (stored.output_ids, response.get("output_items", [])),
    ):
        # A retry that changes nothing may be answered with more items, or fewer, than it names.
        for item_id, text in zip(ids, given, strict=False):
            texts.setdefault(item_id, set()).add(text)


async def _resolve(where: str, step: dict[str, Any], driver: Driver, texts: dict[str, set[str]]) -> None:
    fields = _given(
        step,
        "conversation_id",
        "previous_response_id",
        "before_response_id",
        "limit",
        "limit_unit",
        "answered_call_ids",
        "view",
        "explain",
    )
    # What a case does not name is as_stored, whatever default policy the service has.
    history = await driver.resolve(step.get("user"), policy=Policy(**step.get("policy", {})), **fields)
    if "expect" in step:
        _equal(where, "the history", list(history.item_ids), step["expect"])
    if "expect_texts" in step:
        firsts = [(_text_parts(item) or [None])[0] for item in history.items]
        _equal(where, "the first texts", firsts, step["expect_texts"])
    for flag in ("truncated", "ancestor_deleted"):
        if flag in step:
            _equal(where, flag, getattr(history, flag), step[flag])
    if "reasons" in step:
        _equal(where, "the reasons", _reasons(where, history), step["reasons"])
    if step.get("same_json"):
        for item in history.items:
            given = texts.get(item.id, set())
            assert item.json in given, f"{where}: the JSON of {item.id} is {item.json!r}, given was {given!r}"
    if "texts" in step:
        parts = {item.id: _text_parts(item) for item in history.items if item.id in step["texts"]}
        _equal(where, "the texts", parts, step["texts"])
    if "partial" in step:
        flagged = [item.id for item in history.items if item.partial]
        _equal(where, "the partial items", flagged, step["partial"])


def _reasons(where: str, history: History) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for exclusion in history.exclusions:
        for item_id in exclusion.item_ids:
            earlier = reasons.setdefault(item_id, exclusion.reason)
            assert earlier == exclusion.reason, f"{where}: {item_id} has two reasons, which a case cannot say"
    return reasons


def _text_parts(item: Item) -> list[Any]:
    """The texts of an item: its content where that is a string, else the text of every part that has one."""
    content = json.loads(item.json).get("content") if item.json else None
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and "text" in part]


async def _get(where: str, step: dict[str, Any], driver: Driver, texts: dict[str, set[str]]) -> None:
    turn = await driver.get(step.get("user"), step["response_id"])
    _equal(where, "the id", turn.id, step["response_id"])
    for name in ("status", "revision"):
        if name in step:
            _equal(where, name, getattr(turn, name), step[name])


async def _input_items(where: str, step: dict[str, Any], driver: Driver, texts: dict[str, set[str]]) -> None:
    fields = _given(step, "order", "page_size", "after", "before")
    pages = await driver.list_input_items(step.get("user"), step["response_id"], **fields)
    _equal(where, "the first page", [item.id for item in pages[0]], step.get("expect"))


async def _batch_get(where: str, step: dict[str, Any], driver: Driver, texts: dict[str, set[str]]) -> None:
    items = await driver.batch_get(step.get("user"), step["item_ids"])
    _equal(where, "the batch", [item.id if item else None for item in items], step.get("expect"))


async def _exclude(where: str, step: dict[str, Any], driver: Driver, texts: dict[str, set[str]]) -> None:
    await driver.set_replay_exclusion(step.get("user"), step["response_id"], step["excluded"])


async def _delete(where: str, step: dict[str, Any], driver: Driver, texts: dict[str, set[str]]) -> None:
    await driver.delete(step.get("user"), step["response_id"])


_STEPS = {
    "store": _store,
    "resolve": _resolve,
    "get": _get,
    "input_items": _input_items,
    "batch_get": _batch_get,
    "exclude": _exclude,
    "delete": _delete,
}
