"""Responses as JSON documents."""

import json

import pytest

from turnstore import Item, Response, ResponseFailure, ResponseStatus
from turnstore.cli.documents import DocumentError, response_document, response_from, written

ODD = '{ "n":1e400, "big":1234567890123456789012345678901234567890, "s":"\\ud800",  "n":-0.0 }'


def test_document_with_everything() -> None:
    text = f"""
    {{
      "id": "resp_1", "status": "failed", "conversation_id": "conv_1", "previous_response_id": null,
      "input_items": [ {ODD} , {{"a": [1, {{"b": "]}}"}}]}} ],
      "output_items": [],
      "payload": {{"x":  1}},
      "error": {{"code": "c", "message": "m"}},
      "exclude_from_replay": true,
      "revision": 7, "create_time": "2026-01-02T03:04:05+00:00", "update_time": null
    }}
    """
    assert response_from(text) == Response(
        "resp_1",
        ResponseStatus.FAILED,
        conversation_id="conv_1",
        input_items=[ODD, '{"a": [1, {"b": "]}"}]}'],
        payload_json='{"x":  1}',
        error=ResponseFailure("c", "m"),
        exclude_from_replay=True,
    )


def test_id_is_enough() -> None:
    assert response_from('{"id":"resp_1"}') == Response("resp_1")


def test_item_may_be_a_text_that_holds_it() -> None:
    document = json.dumps({"id": "resp_1", "input_items": [ODD]})
    assert response_from(document).input_items == (Item(ODD),)


def test_what_is_written_is_read_back() -> None:
    response = Response(
        "resp_1",
        "cancelled",
        previous_response_id="resp_0",
        input_items=[ODD],
        output_items=['{"b":2}'],
        payload_json='{"x":  1e400}',
        error=ResponseFailure("c", "m"),
        exclude_from_replay=False,
    )
    assert response_from(written(response_document(response))) == response


def test_item_without_body_is_written_by_its_id() -> None:
    assert json.loads(written([Item("", "i", "message")])) == [{"id": "i", "type": "message"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is no JSON object"),
        ("[]", "it is no JSON object"),
        ("{}", "the key 'id' is missing"),
        ('{"id": "r", "input": []}', "unknown key 'input'"),
        ('{"id": "r", "id": "s"}', "the key 'id' stands twice"),
        ('{"id": "r",}', "line 1, column 12"),
        ('{"id": "r"\n "status": 1}', "line 2, column 2"),
        ('{"id" "r"}', "line 1, column 7"),
        ('{"id": "r"} {}', "line 1, column 13: nothing more"),
        ('{"id": "r"', "line 1, column 11"),
        ('{"id": }', "line 1, column 8"),
        ('{"id": 1}', "'id' must be a text"),
        ('{"id": "r", "status": "done"}', "'status' is 'done'; it must be one of unspecified, queued"),
        ('{"id": "r", "input_items": {}}', "'input_items' must be a list"),
        ('{"id": "r", "input_items": [{]}', "line 1"),
        ('{"id": "r", "exclude_from_replay": 1}', "'exclude_from_replay' must be true or false"),
        ('{"id": "r", "error": "it broke"}', "'error' must be an object"),
        ('{"id": "r", "error": {"code": 1}}', "'error' must be an object"),
        ('{"id": "r", "error": {"kind": "x"}}', "'error' must be an object"),
        ('{"id": "r", "payload": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_text_that_is_no_document_is_told_where(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        response_from(text)
    assert message in str(caught.value)
