"""Responses as JSON documents: what `turnstore store` reads and what `--json` writes.

An item stands in a document as it was stored, byte for byte, so that what one command writes another can
store without changing a number, a key order or an escape in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from turnstore.response import Item, Response, ResponseFailure, ResponseStatus

KEYS = (
    "id",
    "status",
    "conversation_id",
    "previous_response_id",
    "input_items",
    "output_items",
    "payload",
    "error",
    "exclude_from_replay",
)
"""What a document of a response may hold."""

WRITTEN_KEYS = ("revision", "create_time", "update_time")
"""What `--json` writes besides: taken and passed over, since the service alone decides them."""

_SPACE = re.compile(r"[ \t\n\r]*")

# Only the extent of a value is wanted here, so numbers of any size do.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


class DocumentError(ValueError):
    """The text is no document of a response. The message tells where it goes wrong."""


def response_from(text: str) -> Response:
    """Return the response that a document describes.

    Raises:
        DocumentError: it describes none.
    """
    try:
        fields = dict(_members(text.removeprefix("\ufeff")))
        unknown = sorted(fields.keys() - {*KEYS, *WRITTEN_KEYS})
        if unknown:
            raise DocumentError(f"unknown key {unknown[0]!r}; there are {', '.join(KEYS)}")
        if "id" not in fields:
            raise DocumentError("the key 'id' is missing")
        return Response(
            _text(fields, "id"),
            _status(fields),
            conversation_id=_text(fields, "conversation_id"),
            previous_response_id=_text(fields, "previous_response_id"),
            input_items=_items(fields, "input_items"),
            output_items=_items(fields, "output_items"),
            payload_json=fields.get("payload", "") if fields.get("payload") != "null" else "",
            error=_failure(fields),
            exclude_from_replay=_flag(fields, "exclude_from_replay"),
        )
    except json.JSONDecodeError as error:
        raise DocumentError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError:
        raise DocumentError("it is nested too deeply") from None


def written(value: object) -> str:
    """Return a value as JSON text. An `Item` becomes its own text."""
    if isinstance(value, Item):
        # A service that names an item without its body gives no text.
        return value.json or written({"id": value.id, "type": value.type})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, datetime):
        return json.dumps(value.isoformat())
    return json.dumps(value, ensure_ascii=False)


def response_document(response: Response) -> dict[str, object]:
    """Return the document of a response, to be given to `written`. What is empty is left out."""
    error = response.error
    document: dict[str, object] = {
        "id": response.id,
        "status": response.status,
        "conversation_id": response.conversation_id,
        "previous_response_id": response.previous_response_id,
        "input_items": response.input_items,
        "output_items": response.output_items,
        "payload": Item(response.payload_json) if response.payload_json else None,
        "error": None if error is None else {"code": error.code, "message": error.message},
        "exclude_from_replay": response.exclude_from_replay,
        "revision": response.revision,
        "create_time": response.create_time,
        "update_time": response.update_time,
    }
    kept = {"id", "status", "input_items", "output_items", "revision"}
    return {key: value for key, value in document.items() if key in kept or value not in ("", None)}


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Yield each key of the object that a text holds, with its value's own text."""
    position = _after_space(text, 0)
    if text[position : position + 1] != "{":
        raise DocumentError("it is no JSON object")
    seen = set()
    for start, end in _parts(text, position, "}", keyed=True):
        key_end = _DECODER.raw_decode(text, start)[1]
        key = json.loads(text[start:key_end])
        if key in seen:
            raise DocumentError(f"the key {key!r} stands twice")
        seen.add(key)
        value_start = _after_space(text, _after_space(text, key_end) + 1)
        yield key, text[value_start:end]


def _elements(text: str) -> Iterator[str]:
    """Yield each element of the array that a text holds, as its own text."""
    for start, end in _parts(text, 0, "]", keyed=False):
        yield text[start:end]


def _parts(text: str, opening: int, closing: str, *, keyed: bool) -> Iterator[tuple[int, int]]:
    """Yield from where to where each part of an object or an array goes.

    Raises:
        json.JSONDecodeError: the text is no JSON, or something follows it.
    """
    position = _after_space(text, opening + 1)
    if text[position : position + 1] != closing:
        while True:
            start = position
            if keyed:
                if text[start : start + 1] != '"':
                    raise json.JSONDecodeError("a key in double quotes is expected", text, start)
                position = _after_space(text, _DECODER.raw_decode(text, start)[1])
                if text[position : position + 1] != ":":
                    raise json.JSONDecodeError("':' is expected", text, position)
                position = _after_space(text, position + 1)
            end = _DECODER.raw_decode(text, position)[1]
            yield start, end
            position = _after_space(text, end)
            if text[position : position + 1] == closing:
                break
            if text[position : position + 1] != ",":
                raise json.JSONDecodeError(f"',' or '{closing}' is expected", text, position)
            position = _after_space(text, position + 1)
    position = _after_space(text, position + 1)
    if position != len(text):
        raise json.JSONDecodeError("nothing more is expected", text, position)


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _text(fields: Mapping[str, str], key: str) -> str:
    value = json.loads(fields.get(key, '""'))
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DocumentError(f"{key!r} must be a text")
    return value


def _flag(fields: Mapping[str, str], key: str) -> bool | None:
    value = json.loads(fields.get(key, "null"))
    if value is not None and not isinstance(value, bool):
        raise DocumentError(f"{key!r} must be true or false")
    return value


def _status(fields: Mapping[str, str]) -> ResponseStatus:
    word = _text(fields, "status") or ResponseStatus.COMPLETED.value
    try:
        return ResponseStatus(word)
    except ValueError:
        words = ", ".join(ResponseStatus)
        raise DocumentError(f"'status' is {word!r}; it must be one of {words}") from None


def _failure(fields: Mapping[str, str]) -> ResponseFailure | None:
    value: Any = json.loads(fields.get("error", "null"))
    if value is None:
        return None
    allowed = {"code", "message"}
    if (
        not isinstance(value, dict)
        or value.keys() - allowed
        or not all(isinstance(text, str) for text in value.values())
    ):
        raise DocumentError("'error' must be an object with the texts 'code' and 'message'")
    return ResponseFailure(**value)


def _items(fields: Mapping[str, str], key: str) -> Iterable[str]:
    text = fields.get(key, "null")
    if text == "null":
        return
    if not text.startswith("["):
        raise DocumentError(f"{key!r} must be a list of items")
    for element in _elements(text):
        # An item may also be given as a text that holds its JSON.
        yield json.loads(element) if element.startswith('"') else element
