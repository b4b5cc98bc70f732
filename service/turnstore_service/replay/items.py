"""Reading what the rules need from an item's JSON, and taking empty text out of a message.

The JSON itself is never encoded again: what a caller stored comes back byte for byte.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson

from turnstore_service.replay.values import Head, Text

MAX_DEPTH = 512
"""Levels of nesting. Contract: deeper JSON is refused; parsers of other languages stop near 1,000."""
MAX_ID_LENGTH = 256
"""Characters of an id, and of a type."""
MAX_PLAIN_CALL = 256
"""Characters of a pairing key that are kept as they are; longer ones are replaced by their digest."""
PLACEHOLDER_ID = "__fake_id__"
"""Some SDKs put this on every message: it names nothing (openai-agents, chat completions models)."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


class _NumberText(str):
    """A number read by the slow parser, told apart from a string of the same characters."""

    __slots__ = ()


_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"


class InvalidItemError(ValueError):
    """The text is no item. The message says why, in words for the caller."""


def has_control_characters(text: str) -> bool:
    """Whether a Unicode control character (category Cc) stands in the text."""
    return _CONTROL.search(text) is not None


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object in a text, by RFC 8259, with the last value of a key that stands twice.

    Numbers beyond what a double or a 64-bit integer holds are accepted; their value is not used.
    Raises InvalidItemError for anything else: no JSON, no object, NaN, Infinity, more than 512 levels.
    """
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        # The fast parser refuses lone surrogates and numbers such as 1e400, which are JSON all the same.
        value = _parse_slowly(text)
    if not isinstance(value, dict):
        raise InvalidItemError("is not a JSON object")
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text, value) > MAX_DEPTH:
        raise InvalidItemError(_TOO_DEEP)
    return value


def _parse_slowly(text: str) -> Any:
    try:
        return json.loads(
            text, parse_int=_NumberText, parse_float=_NumberText, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise InvalidItemError(_TOO_DEEP) from None
    except ValueError as error:
        detail = f": {error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidItemError(f"is not JSON{detail}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _depth(text: str, value: Any) -> int:
    """Levels of nesting of a text that is known to be JSON; past the limit it stops counting."""
    try:
        orjson.dumps(value)
        return 1  # this encoder stops at 254 levels: a quick answer for what is merely large
    except (TypeError, UnicodeEncodeError):
        pass
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        bracket = match.group()
        if bracket in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
            if deepest > MAX_DEPTH:
                break
        elif bracket in ("]", "}"):
            depth -= 1
    return deepest


def read_head(text: str) -> Head:
    """What the rules need of an item. Its id is empty where the item has none of its own.

    Raises InvalidItemError when the text is no JSON object, or its id or type cannot be one.
    """
    item = parse_object(text)
    item_id = _own_id(item)
    item_type = _own_type(item)
    return Head(item_id, item_type, _pairing_key(item, item_type, item_id), _text_of(item, item_type))


def _own_id(item: dict[str, Any]) -> str:
    value = item.get("id")
    if value is None or value in ("", PLACEHOLDER_ID):
        return ""
    if not isinstance(value, str) or isinstance(value, _NumberText):
        raise InvalidItemError("has an id that is no string")
    if _SURROGATE.search(value):
        raise InvalidItemError("has an id with a lone surrogate")
    if len(value) > MAX_ID_LENGTH:
        raise InvalidItemError(f"has an id of {len(value)} characters; the limit is {MAX_ID_LENGTH}")
    if has_control_characters(value):
        raise InvalidItemError("has an id with a control character")
    return value


def _own_type(item: dict[str, Any]) -> str:
    value = item.get("type")
    if value is None:
        return ""
    if not isinstance(value, str) or isinstance(value, _NumberText) or _SURROGATE.search(value):
        raise InvalidItemError("has a type that is no string")
    if len(value) > MAX_ID_LENGTH:
        raise InvalidItemError(f"has a type of {len(value)} characters; the limit is {MAX_ID_LENGTH}")
    return value


@lru_cache(maxsize=4096)
def pairing(item_type: str) -> tuple[str, bool] | None:
    """The kind of pair that an item of this type belongs to, and whether it is the call's side.

    None for a type that has no partner. Two kinds never pair with each other.
    """
    if item_type == "mcp_approval_request":
        return "mcp_approval", True
    if item_type == "mcp_approval_response":
        return "mcp_approval", False
    if item_type == "tool_search_output":
        return "tool_search_call", False
    if item_type.endswith("_call"):
        return item_type, True
    if item_type.endswith("_call_output"):
        return item_type.removesuffix("_output"), False
    return None


def _pairing_key(item: dict[str, Any], item_type: str, item_id: str) -> str:
    if pairing(item_type) is None:
        return ""
    if item_type == "mcp_approval_request":
        return item_id
    field = "approval_request_id" if item_type == "mcp_approval_response" else "call_id"
    value = item.get(field)
    if not isinstance(value, str) or isinstance(value, _NumberText):
        return ""
    return pairing_key(value)


def pairing_key(value: str) -> str:
    """The form in which a call id is kept and compared: itself, unless the database could not hold it."""
    if len(value) <= MAX_PLAIN_CALL and not _SURROGATE.search(value):
        return value
    return "\x00" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def _text_of(item: dict[str, Any], item_type: str) -> Text:
    if item_type != "message" and (item_type or "role" not in item):
        return Text.WHOLE
    content = item.get("content")
    if not content:
        return Text.NOTHING
    if not isinstance(content, list):
        return Text.WHOLE
    empty = sum(map(_is_empty_text, content))
    if not empty:
        return Text.WHOLE
    return Text.NOTHING if empty == len(content) else Text.SOME_EMPTY


def _is_empty_text(part: Any) -> bool:
    if isinstance(part, dict):
        kind = part.get("type")
        return isinstance(kind, str) and kind.endswith("text") and part.get("text") == ""
    return bool(part == "")


def without_empty_text(text: str) -> str:
    """A message's JSON without its empty text parts; every other byte stays as it was."""
    content = None
    for key, start, end in _members(text):
        if key == "content":
            content = start, end  # the last one counts
    if content is None:
        return text
    start, end = content
    kept = [
        text[first:last]
        for first, last in _elements(text, start)
        if not _is_empty_text(_parse_slowly(text[first:last]))
    ]
    return f"{text[:start]}[{','.join(kept)}]{text[end:]}"


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE = re.compile(r"[ \t\n\r]*")


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of each value of the object that the text is."""
    at = _skip_space(text, _skip_space(text, 0) + 1)
    while text[at] == '"':
        key, at = _DECODER.raw_decode(text, at)
        start = _skip_space(text, _skip_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield key, start, end
        at = _skip_space(text, end)
        if text[at] == "}":
            return
        at = _skip_space(text, at + 1)


def _elements(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Start and end of each element of the array that begins at a position."""
    at = _skip_space(text, at + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield at, end
        at = _skip_space(text, end)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
