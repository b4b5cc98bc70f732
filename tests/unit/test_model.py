"""The model itself, where a replay case does not reach: whole answers, places, receipts and metadata."""

import json
from typing import Any

import pytest

from tests.model import AS_STORED, MODEL_SAFE, Exclusion, Item, Model, Policy, Receipt, RefusedError


def _message(item_id: str, text: str = "hi") -> str:
    return json.dumps({"type": "message", "id": item_id, "content": [{"type": "output_text", "text": text}]})


def _call(item_id: str, call_id: str) -> str:
    return json.dumps({"type": "function_call", "id": item_id, "call_id": call_id})


def _store(model: Model, response_id: str, status: str = "COMPLETED", **fields: Any) -> None:
    options = {name: fields.pop(name) for name in ("inherited_item_ids", "duplicate_items") if name in fields}
    model.store(None, {"id": response_id, "status": status, **fields}, **options)


def test_an_empty_line_is_an_empty_history() -> None:
    history = Model().resolve(None, conversation_id="c", limit=0, policy=MODEL_SAFE, explain=True)
    assert history.items == ()
    assert history.exclusions == ()
    assert not history.truncated
    assert not history.ancestor_deleted


def test_items_come_back_as_they_were_given() -> None:
    text = '{ "id" : "x", "type":"message", "n": 1e400, "big": 12345678901234567890, "s": "\\ud800\\u0000" }'
    model = Model()
    _store(model, "r1", input_items=[text])
    assert model.resolve(None, previous_response_id="r1").items == (Item("x", "message", text),)


def test_an_item_without_id_has_one_that_a_retry_gives_again() -> None:
    model = Model()
    first = model.store(None, {"id": "r1", "input_items": ['{"a":1}', '{"id":null}', '{"id":"__fake_id__"}']})
    again = model.store(None, {"id": "r1", "input_items": ['{"a":1}', '{"id":null}', '{"id":"__fake_id__"}']})
    assert first == again
    assert len(set(first.input_ids)) == 3
    assert all(item_id.startswith("item_") and len(item_id) == 37 for item_id in first.input_ids)


def test_places_are_dense_and_stay_when_a_turn_is_deleted() -> None:
    model = Model()
    for name in ("r1", "r2", "r3"):
        _store(model, name, conversation_id="c", input_items=[_message(name)])
    model.delete(None, "r2")
    _store(model, "r4", conversation_id="c")
    _store(model, "b1", previous_response_id="r3")
    line = model.list_responses(None, conversation_id="c")
    assert [(turn.id, turn.place, turn.input_item_count) for turn in line] == [
        ("r1", 1, 1),
        ("r3", 3, 1),
        ("r4", 4, 0),
    ]
    branch = model.list_responses(None, previous_response_id="b1")
    assert [(turn.id, turn.place) for turn in branch] == [("r1", 1), ("r3", 3), ("b1", 4)]


def test_exclusions_are_one_for_each_turn_and_reason() -> None:
    model = Model()
    _store(
        model,
        "r1",
        "FAILED",
        conversation_id="c",
        input_items=[_message("u1")],
        output_items=[_message("a1")],
    )
    _store(model, "r2", "CANCELLED", conversation_id="c", output_items=[_call("f1", "k1"), _call("f2", "k2")])
    _store(model, "r3", conversation_id="c")
    model.delete(None, "r3")
    history = model.resolve(None, conversation_id="c", policy=MODEL_SAFE, explain=True)
    assert history.exclusions == (
        Exclusion("r1", "FAILED", "FAILED", ("u1", "a1")),
        Exclusion("r2", "CANCELLED", "UNPAIRED_CALL", ("f1", "f2")),
        Exclusion("r3", "UNSPECIFIED", "DELETED", ()),
    )


def test_receipts_count_what_was_there() -> None:
    model = Model()
    _store(model, "r1", conversation_id="c", input_items=[_message("u1")], output_items=[_message("a1")])
    _store(model, "r2", conversation_id="c", input_items=[_message("u2")])
    _store(model, "b1", previous_response_id="r2", input_items=[_message("v1")])
    assert model.delete(None, "r1") == Receipt(1, 2)
    assert model.delete_conversation(None, "c") == Receipt(1, 1)
    assert model.delete_conversation(None, "c") == Receipt(0, 0)
    assert model.resolve(None, previous_response_id="b1").item_ids == ("v1",)
    assert model.delete_user_data(None) == Receipt(1, 1)
    assert model.delete_user_data("ann") == Receipt(0, 0)


def test_a_refusal_says_what_was_wrong() -> None:
    model = Model()
    _store(model, "r1", "IN_PROGRESS", conversation_id="c", input_items=[_message("u1"), _message("u2")])
    with pytest.raises(RefusedError) as duplicate:
        _store(
            model, "r2", conversation_id="c", input_items=[_message(name) for name in ("u2", "x", "u1", "u2")]
        )
    assert json.loads(duplicate.value.metadata["item_ids"]) == ["u2", "u1"]
    assert duplicate.value.metadata["item_count"] == "2"
    with pytest.raises(RefusedError) as stale:
        model.store(None, {"id": "r1", "status": "COMPLETED"}, expected_revision=4)
    assert stale.value.metadata == {"response_id": "r1", "expected": "4", "actual": "1"}
    _store(model, "r1", "FAILED")
    with pytest.raises(RefusedError) as finished:
        _store(model, "r1", "QUEUED")
    assert finished.value.metadata == {
        "response_id": "r1",
        "stored_status": "FAILED",
        "requested_status": "QUEUED",
    }


def test_inherited_items_come_before_the_own_input() -> None:
    model = Model()
    _store(model, "r1", input_items=[_message("u1")], output_items=[_message("a1")])
    _store(model, "r2", "FAILED", previous_response_id="r1", input_items=[_message("u2"), _message("u3")])
    shown = model.list_input_items(None, "r2", order="ASC", include_inherited=True)
    assert [item.id for item in shown] == ["u1", "a1", "u2", "u3"]
    shown = model.list_input_items(None, "r2", after="u3", before="u1", include_inherited=True)
    assert [item.id for item in shown] == ["u2", "a1"]


def test_an_item_of_several_turns_is_that_of_the_newest_good_one() -> None:
    model = Model()
    for name, text in (("r1", "one"), ("r2", "two"), ("r3", "three")):
        _store(model, name, input_items=[_message("x", text)])
    assert model.batch_get(None, ["x"]) == (Item("x", "message", _message("x", "three")),)
    model.set_replay_exclusion(None, "r3", True)
    assert model.batch_get(None, ["x"]) == (Item("x", "message", _message("x", "two")),)
    assert model.batch_get(None, ["x"], previous_response_id="r1") == (
        Item("x", "message", _message("x", "one")),
    )
    assert model.batch_get(None, ["x"], previous_response_id="r3") == (None,)
    for name in ("r1", "r2"):
        model.set_replay_exclusion(None, name, True)
    assert model.batch_get(None, ["x"]) == (Item("x", "message", _message("x", "three")),)


def test_empty_text_is_taken_out_of_the_json() -> None:
    model = Model()
    parts = [{"type": "output_text", "text": ""}, {"type": "output_text", "text": "half", "n": 1}]
    _store(
        model, "r1", "CANCELLED", output_items=[json.dumps({"id": "a", "type": "message", "content": parts})]
    )
    (item,) = model.resolve(None, previous_response_id="r1", policy=Policy(cancelled="SANITIZE")).items
    assert json.loads(item.json) == {"id": "a", "type": "message", "content": parts[1:]}
    (item,) = model.resolve(None, previous_response_id="r1", policy=AS_STORED).items
    assert json.loads(item.json)["content"] == parts
