"""Every replay case holds for the model, and the player refuses a case that is not one."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.case_player import BadCaseError, ModelDriver, case_files, check, load, play
from tests.model import Model


@pytest.mark.parametrize("path", case_files(), ids=lambda path: path.stem)
async def test_case_holds_for_the_model(path: Path) -> None:
    await play(load(path), ModelDriver(Model()))


def _case(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"name": "n", "why": "w", "source": "constructed", "steps": list(steps)}


STORE = {"op": "store", "response": {"id": "r1", "conversation_id": "c"}}
RESOLVE = {"op": "resolve", "conversation_id": "c", "expect": []}
GET = {"op": "get", "response_id": "r1", "status": "COMPLETED", "revision": 1}


def _with(step: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(step), **changes}


BAD_CASES = {
    "case key": {**_case(STORE, RESOLVE), "because": "x"},
    "no source": {key: value for key, value in _case(STORE, RESOLVE).items() if key != "source"},
    "no steps": _case(),
    "op": _case(_with(STORE, op="stores")),
    "step key": _case(STORE, _with(RESOLVE, expects=[])),
    "key of another op": _case(STORE, _with(GET, limit=1)),
    "response key": _case(_with(STORE, response={"id": "r1", "state": "FAILED"}), RESOLVE),
    "response without id": _case(_with(STORE, response={"conversation_id": "c"}), RESOLVE),
    "response status": _case(_with(STORE, response={"id": "r1", "status": "DONE"}), RESOLVE),
    "response error key": _case(_with(STORE, response={"id": "r1", "error": {"kind": "x"}}), RESOLVE),
    "policy key": _case(STORE, _with(RESOLVE, policy={"canceled": "SANITIZE"})),
    "policy value": _case(STORE, _with(RESOLVE, policy={"cancelled": "PAIRED"})),
    "limit unit": _case(STORE, _with(RESOLVE, limit_unit="TOKENS")),
    "status": _case(STORE, _with(GET, status="OK")),
    "reason": _case(STORE, _with(RESOLVE, explain=True, reasons={"u": "GONE"})),
    "reasons without explain": _case(STORE, _with(RESOLVE, reasons={})),
    "texts in ids only": _case(STORE, _with(RESOLVE, texts={"u": ["x"]})),
    "error code": _case(STORE, _with(GET, error="MISSING")),
    "error and answer": _case(STORE, _with(RESOLVE, error="NOT_FOUND")),
    "resolve without expectation": _case(
        STORE, {"op": "resolve", "conversation_id": "c", "truncated": False}
    ),
    "get without expectation": _case(STORE, {"op": "get", "response_id": "r1"}),
    "no expectation at all": _case(STORE),
}


@pytest.mark.parametrize("case", BAD_CASES.values(), ids=BAD_CASES.keys())
def test_a_case_outside_the_format_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(BadCaseError):
        check(case)


def test_a_case_inside_the_format_is_taken() -> None:
    check(_case(STORE, RESOLVE, GET))


TWO_TURNS = (
    {
        "op": "store",
        "response": {
            "id": "r1",
            "status": "CANCELLED",
            "conversation_id": "c",
            "input_items": ['{"id":"u1","type":"message","content":"hi"}'],
            "output_items": ['{"id":"a1","type":"message","content":[{"type":"output_text","text":"ok"}]}'],
        },
    },
    {"op": "store", "response": {"id": "r2", "status": "FAILED", "input_items": ['{"id":"u2"}']}},
)
HISTORY = {
    "op": "resolve",
    "conversation_id": "c",
    "policy": {"cancelled": "INPUT_ONLY"},
    "limit": 1,
    "view": "FULL",
    "explain": True,
    "expect": ["u1"],
    "expect_texts": ["hi"],
    "truncated": False,
    "ancestor_deleted": False,
    "reasons": {"a1": "CANCELLED"},
    "same_json": True,
    "texts": {"u1": ["hi"]},
    "partial": [],
}
FIRST_INPUT = {"op": "input_items", "response_id": "r1", "expect": ["u1"]}
BATCH = {"op": "batch_get", "item_ids": ["a1", "zz"], "expect": ["a1", None]}

WRONG_STEPS = {
    "expect": _with(HISTORY, expect=["u1", "a1"]),
    "order of ids": _with(HISTORY, policy={}, reasons={}, limit=2, expect=["a1", "u1"]),
    "expect_texts": _with(HISTORY, expect_texts=["ho"]),
    "truncated": _with(HISTORY, truncated=True),
    "ancestor_deleted": _with(HISTORY, ancestor_deleted=True),
    "a reason missing": _with(HISTORY, reasons={}),
    "a reason too many": _with(HISTORY, reasons={"a1": "CANCELLED", "u2": "FAILED"}),
    "another reason": _with(HISTORY, reasons={"a1": "INCOMPLETE"}),
    "texts": _with(HISTORY, texts={"u1": ["hi", "ho"]}),
    "partial": _with(HISTORY, partial=["u1"]),
    "revision": _with(GET, status="CANCELLED", revision=2),
    "first page": _with(FIRST_INPUT, expect=[]),
    "batch": _with(BATCH, expect=["a1", "zz"]),
    "an error that does not come": {"op": "get", "response_id": "r1", "error": "NOT_FOUND"},
    "another code": {"op": "get", "response_id": "r3", "error": "ABORTED"},
    "another reason of an error": {"op": "get", "response_id": "r3", "error": "NOT_FOUND:PARENT_NOT_FOUND"},
    "an error that is not expected": {"op": "get", "response_id": "r3", "status": "FAILED"},
}


async def test_right_expectations_pass() -> None:
    right = (HISTORY, _with(GET, status="CANCELLED"), FIRST_INPUT, BATCH)
    await play(_case(*TWO_TURNS, *right), ModelDriver(Model()))


@pytest.mark.parametrize("step", WRONG_STEPS.values(), ids=WRONG_STEPS.keys())
async def test_a_wrong_expectation_fails(step: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        await play(_case(*TWO_TURNS, step), ModelDriver(Model()))
