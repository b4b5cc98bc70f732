"""An agent host that keeps its turns in turnstore: `python azure_agent_host.py`, with a service running.

curl localhost:8088/responses --json '{"model": "echo", "conversation": "c1", "input": "Hello"}'
"""

import os

from azure.ai.agentserver.responses import ResponsesAgentServerHost, TextResponse

from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider

host = ResponsesAgentServerHost(
    store=TurnstoreResponseProvider(os.environ.get("TURNSTORE_TARGET", "127.0.0.1:50051"))
)


@host.response_handler
async def answer(request, context, _cancellation):
    """Run one turn: what came before in its conversation, and what it is given now."""
    items = [*await context.get_history(), *await context.get_input_items()]
    return TextResponse(context, request, text=lambda: ask_model(items))


def ask_model(items):
    """Stand in for a model service, which refuses a tool's output without its call."""
    calls = {item["call_id"] for item in items if item["type"] == "function_call"}
    for item in items:
        if item["type"] == "function_call_output" and item["call_id"] not in calls:
            raise ValueError(f"No tool call found for function call output with call_id {item['call_id']}.")
    return f"I remember {len(items) - 1} items."


if __name__ == "__main__":
    host.run(host="127.0.0.1")
