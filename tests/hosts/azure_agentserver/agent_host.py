"""A real agent host over HTTP, with an agent whose model is as strict as a model service."""

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from azure.ai.agentserver.responses import (
    ResponseEventStream,
    ResponsesAgentServerHost,
    ResponsesServerOptions,
)
from hypercorn.asyncio import serve
from hypercorn.config import Config

WAIT_SECONDS = 30.0
POLL_SECONDS = 0.01
FINAL = {"completed", "failed", "cancelled", "incomplete"}

MODES: dict[str, dict[str, bool]] = {
    "synchronous": {},
    "streaming": {"stream": True},
    "background": {"background": True},
    "background-streaming": {"background": True, "stream": True},
}

ORPHAN = [{"type": "function_call_output", "call_id": "call_of_nobody", "output": "22 degrees"}]
"""An input that no model service takes: the output of a tool call that was never made."""


class ModelRefusedError(Exception):
    """The model service answered 400."""


def ask_model(items: Sequence[dict[str, Any]]) -> str:
    """Answers as a model service does: it refuses a tool's output without its call."""
    calls = {item["call_id"] for item in items if item["type"] == "function_call"}
    for item in items:
        if item["type"] == "function_call_output" and item["call_id"] not in calls:
            raise ModelRefusedError(
                f"No tool call found for function call output with call_id {item['call_id']}."
            )
    return f"answer to {len(items)} items"


class Agent:
    """What runs behind a host: sends the history and the input to the model, and answers with its text."""

    def __init__(self, *, reports_failure: bool = False, reads_history: bool = True) -> None:
        """Makes an agent.

        Args:
            reports_failure: Whether it ends a refused turn itself, instead of letting the exception out.
            reads_history: Whether it asks for the history at all.
        """
        self.histories: list[list[dict[str, Any]]] = []
        """The history of each turn, in the order in which they began."""
        self.gate: asyncio.Event | None = None
        """Turns wait here after they have begun; a cancelled one goes on at once."""
        self.waiting = asyncio.Event()
        """Set when a turn waits at the gate."""
        self._reports_failure = reports_failure
        self._reads_history = reads_history

    async def answer(
        self, request: Any, context: Any, cancellation_signal: asyncio.Event
    ) -> AsyncIterator[Any]:
        history = [dict(item) for item in await context.get_history()] if self._reads_history else []
        self.histories.append(history)
        given = [dict(item) for item in await context.get_input_items()]
        # Made without the request, the envelope does not name the parent of the turn.
        stream = ResponseEventStream(response_id=context.response_id)
        yield stream.emit_created()
        if self.gate is not None:
            self.waiting.set()
            await _first_of(self.gate.wait, cancellation_signal.wait, context.shutdown.wait)
            if cancellation_signal.is_set():
                return
        try:
            text = ask_model([*history, *given])
        except ModelRefusedError as refusal:
            if not self._reports_failure:
                raise
            yield stream.emit_failed(code="invalid_request", message=str(refusal))
            return
        message = stream.add_output_item_message()
        yield message.emit_added()
        part = message.add_text_content()
        yield part.emit_added()
        yield part.emit_text_done(text)
        yield part.emit_done()
        yield message.emit_done()
        yield stream.emit_completed()


async def _first_of(*waits: Callable[[], Awaitable[Any]]) -> None:
    tasks = [asyncio.ensure_future(wait()) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def host_of(agent: Agent, store: Any, **options: Any) -> ResponsesAgentServerHost:
    """A host of an agent. It sets up no logging, and sends nobody telemetry."""
    host = ResponsesAgentServerHost(
        store=store, options=ResponsesServerOptions(**options), configure_observability=None
    )
    host.response_handler(agent.answer)
    return host


class Talk:
    """The conversation of a client with a host, over HTTP."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def turn(self, mode: str, input: Any, **body: Any) -> dict[str, Any]:
        """Posts a turn, waits for its end as a client of that mode does, and returns the response."""
        body = {"model": "m", "input": input, **MODES[mode], **body}
        if body.get("stream"):
            *_, last = [event async for event in self.events(body)]
            return dict(last["response"])
        posted = await self.http.post("/responses", json=body)
        assert posted.status_code == 200, posted.text
        response = posted.json()
        return await self.ended(response["id"]) if body.get("background") else response

    async def events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Posts a turn and yields the events of its stream."""
        async with self.http.stream("POST", "/responses", json=body) as reply:
            assert reply.status_code == 200, await reply.aread()
            async for line in reply.aiter_lines():
                if line.startswith("data:"):
                    yield json.loads(line.removeprefix("data:"))

    async def ended(self, response_id: str) -> dict[str, Any]:
        """The response, when it has ended."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                found = await self.http.get(f"/responses/{response_id}")
                if found.status_code == 200 and found.json()["status"] in FINAL:
                    return dict(found.json())
                await asyncio.sleep(POLL_SECONDS)

    async def input_items(self, response_id: str, **query: Any) -> list[dict[str, Any]]:
        """The input items that the host lists, oldest first."""
        found = await self.http.get(f"/responses/{response_id}/input_items", params={"order": "asc", **query})
        assert found.status_code == 200, found.text
        return list(found.json()["data"])


class Line:
    """How the turns of a test follow each other."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._conversation = f"conv_{uuid.uuid4().hex}"
        self._last: str | None = None

    def next(self) -> dict[str, Any]:
        """What the next request says of it."""
        if self._kind == "conversation":
            return {"conversation": self._conversation}
        return {"previous_response_id": self._last} if self._last else {}

    def follow(self, response: dict[str, Any]) -> None:
        """Has the next turn follow this response."""
        self._last = response["id"]


@asynccontextmanager
async def running(host: ResponsesAgentServerHost) -> AsyncIterator[Talk]:
    """Serves a host on a port of its own, as its `run` does, and talks to it."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    config = Config()
    # The server takes the descriptor over and closes it.
    config.bind = [f"fd://{listening.detach()}"]
    config.graceful_timeout = 1.0
    stop = asyncio.Event()
    server = asyncio.create_task(serve(host, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as http:
            yield Talk(http)
    finally:
        stop.set()
        await server
