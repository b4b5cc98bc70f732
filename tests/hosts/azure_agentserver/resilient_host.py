"""A host of a resilient agent, run as a process of its own so that a test can kill it.

Arguments: the descriptor of a listening socket, the service's target, the namespace. The agent writes one
line after the other and makes a checkpoint after each; in its first life it stops for ever after the first.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from azure.ai.agentserver.responses import (
    ResponseEventStream,
    ResponsesAgentServerHost,
    ResponsesServerOptions,
)
from hypercorn.asyncio import serve
from hypercorn.config import Config

from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider

LINES = 3


async def write_lines(request: Any, context: Any, cancellation_signal: asyncio.Event) -> AsyncIterator[Any]:
    """Writes the lines that are not written yet."""
    written = context.persisted_response["output"] if context.is_recovery else []
    life = "second" if context.is_recovery else "first"
    stream = ResponseEventStream(response_id=context.response_id, request=request)
    yield stream.emit_created()
    for number in range(LINES):
        text = (
            written[number]["content"][0]["text"]
            if number < len(written)
            else f"line {number} in the {life} life"
        )
        message = stream.add_output_item_message()
        yield message.emit_added()
        part = message.add_text_content()
        yield part.emit_added()
        yield part.emit_text_done(text)
        yield part.emit_done()
        yield message.emit_done()
        if number >= len(written):
            yield stream.checkpoint()
            if not context.is_recovery:
                await asyncio.Event().wait()
    yield stream.emit_completed()


def main(descriptor: str, target: str, namespace: str) -> None:
    """Serves the agent until the process is killed."""
    host = ResponsesAgentServerHost(
        store=TurnstoreResponseProvider(target, namespace=namespace),
        options=ResponsesServerOptions(resilient_background=True),
        configure_observability=None,
    )
    host.response_handler(write_lines)
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    asyncio.run(serve(host, config))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
