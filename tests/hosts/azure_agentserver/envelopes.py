"""Envelopes and items as a host makes them."""

from typing import Any

from azure.ai.agentserver.responses import PlatformContext


def envelope(
    response_id: str, status: str = "completed", *output: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """The envelope of a response."""
    return {"id": response_id, "object": "response", "status": status, "output": list(output), **more}


def question(item_id: str, text: str = "question") -> dict[str, Any]:
    """A message of the user."""
    return {
        "id": item_id,
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }


def answer(item_id: str, text: str = "answer") -> dict[str, Any]:
    """A message of the agent."""
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def user(key: str | None) -> PlatformContext:
    """The context of a request of this user."""
    return PlatformContext(user_id_key=key, call_id="call")
