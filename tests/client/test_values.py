"""The values that go into the client and come out of it."""

import json

import pytest

from turnstore import Item, Response, ResponseFailure, ResponseStatus, Scope


def test_text_of_an_item_is_kept_as_it_is() -> None:
    text = '{ "n": 1e400,  "b": 12345678901234567890, "s": "\\ud800\\u0000", "n": 2 }'
    assert Item(text).json == text


def test_dict_becomes_compact_json() -> None:
    item = Item({"type": "message", "content": [{"text": "Grüße"}], "n": 2**70})
    assert item.json == '{"type":"message","content":[{"text":"Grüße"}],"n":1180591620717411303424}'


def test_lone_surrogate_in_a_dict_becomes_an_escape() -> None:
    assert Item({"s": "\ud800"}).json == '{"s":"\\ud800"}'


def test_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        Item({"n": float("nan")})


@pytest.mark.parametrize("value", [["a"], 1, None, b"{}"])
def test_item_is_a_dict_or_a_text(value: object) -> None:
    with pytest.raises(TypeError, match="as a dict or as its text"):
        Item(value)  # type: ignore[arg-type]


def test_data_is_the_parsed_text_once() -> None:
    item = Item('{"a": [1, 2]}')
    assert item.data == {"a": [1, 2]}
    assert item.data is item.data


def test_data_of_an_item_without_body_is_an_error() -> None:
    with pytest.raises(ValueError, match="'item_1' came without its body"):
        Item("", "item_1").data  # noqa: B018


def test_items_are_equal_by_what_they_hold() -> None:
    assert Item('{"a":1}', "x") == Item({"a": 1}, "x")
    assert Item('{"a":1}') != Item('{"a": 1}')


def test_response_takes_items_in_every_form() -> None:
    forms = [{"a": 1}, '{"a":1}', Item('{"a":1}')]
    response = Response("resp_1", input_items=forms, output_items=iter(forms))
    assert response.input_items == response.output_items == (Item('{"a":1}'),) * 3


@pytest.mark.parametrize("items", ['{"a":1}', {"a": 1}])
def test_single_item_in_place_of_a_list_is_refused(items: object) -> None:
    with pytest.raises(TypeError, match="as a list"):
        Response("resp_1", input_items=items)  # type: ignore[arg-type]


def test_status_is_given_by_its_word() -> None:
    assert Response("resp_1", "in_progress").status is ResponseStatus.IN_PROGRESS


def test_unknown_status_is_refused() -> None:
    with pytest.raises(ValueError, match="'done' is not a valid ResponseStatus"):
        Response("resp_1", "done")


def test_response_is_completed_unless_told_otherwise() -> None:
    assert Response("resp_1").status is ResponseStatus.COMPLETED


def test_payload_is_read_and_written_as_a_dict() -> None:
    response = Response("resp_1", payload_json={"model": "m", "n": 1})
    assert json.loads(response.payload_json) == response.payload == {"model": "m", "n": 1}


def test_payload_that_is_not_there_is_an_empty_dict() -> None:
    assert Response("resp_1").payload == {}


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Response("resp_1", error=ResponseFailure("c", "m")).status = ResponseStatus.FAILED  # type: ignore[misc]


def test_scope_of_another_user_keeps_the_namespace() -> None:
    assert Scope("ns", "anna").for_user(None) == Scope("ns")
