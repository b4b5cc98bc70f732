"""From the host's envelopes (plain dicts) to responses, and back. No I/O."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from turnstore.response import Item, Response, ResponseFailure, ResponseStatus

FINAL = frozenset(
    {
        ResponseStatus.COMPLETED,
        ResponseStatus.INCOMPLETE,
        ResponseStatus.CANCELLED,
        ResponseStatus.FAILED,
    }
)
"""The statuses that end a turn."""

_ID_CHARACTERS = 256
"""Characters that an id may have in the service."""


def response_of(
    envelope: Mapping[str, Any],
    *,
    input_items: Iterable[Mapping[str, Any]] = (),
    conversation_id: str = "",
    previous_response_id: str = "",
) -> Response:
    """Return what is stored of an envelope: its output as items, the rest as the payload.

    Raises:
        ValueError, TypeError: it holds something that JSON has no text for.
    """
    output = envelope.get("output") or ()
    rest = {**envelope, "output": []} if output else envelope
    return Response(
        str(envelope.get("id")),
        _status(envelope.get("status")),
        conversation_id=conversation_id,
        previous_response_id=previous_response_id,
        input_items=[Item(_text(item)) for item in input_items],
        output_items=[Item(_text(item)) for item in output],
        payload_json=_text(rest),
        error=_failure(envelope.get("error")),
    )


def envelope_of(response: Response) -> dict[str, Any]:
    """Return the envelope that was stored. One that another client stored without a payload is made up of
    what is known.
    """
    if response.payload_json:
        envelope = dict(response.payload)
    else:
        envelope = {"id": response.id, "object": "response", "status": response.status.value, "output": []}
    if response.output_items:
        envelope["output"] = [item.data for item in response.output_items]
    return envelope


def conversation_id_of(envelope: Mapping[str, Any]) -> str:
    """Return the conversation of an envelope, which names it or holds an object with its id; or nothing."""
    conversation = envelope.get("conversation")
    if isinstance(conversation, Mapping):
        conversation = conversation.get("id")
    return str(conversation) if conversation else ""


def is_id(text: str) -> bool:
    """Return whether the service takes this as an id. What it does not take, it does not hold either."""
    return 0 < len(text) <= _ID_CHARACTERS and not any(unicodedata.category(c) in {"Cc", "Cs"} for c in text)


def _status(status: Any) -> ResponseStatus:
    try:
        return ResponseStatus(status)
    except ValueError:
        # A status that is missing, or that only a newer host knows.
        return ResponseStatus.UNSPECIFIED


def _failure(error: object) -> ResponseFailure | None:
    if not isinstance(error, Mapping):
        return None
    return ResponseFailure(str(error.get("code") or ""), str(error.get("message") or ""))


def _text(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form. As an escape it is plain JSON.
        return json.dumps(value, default=_plain, allow_nan=False, separators=(",", ":"))
    return text


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        # As the host writes times on the wire.
        return int(value.timestamp())
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")
