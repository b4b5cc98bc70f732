"""A turn fails, and the next one is not given what it left behind.

python failed_turn.py [HOST:PORT]
"""

import sys
import uuid

from turnstore import MODEL_SAFE, HistoryClient, Response

target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
conversation = f"conv_{uuid.uuid4().hex}"


def user_says(text: str) -> dict:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant_says(text: str) -> dict:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


with HistoryClient(target) as client:
    # A turn is stored when it begins, so that a crash leaves a trace, and again when it has ended.
    client.store_response(
        Response(
            f"{conversation}_1", "in_progress", conversation_id=conversation, input_items=[user_says("Hello")]
        )
    )
    client.store_response(
        Response(f"{conversation}_1", output_items=[assistant_says("Hello! How can I help?")])
    )

    # This one hands in the output of a call that nobody made, which a model service refuses. The turn fails.
    orphan = {"type": "function_call_output", "call_id": "call_9", "output": "42"}
    client.store_response(
        Response(f"{conversation}_2", "in_progress", conversation_id=conversation, input_items=[orphan])
    )
    client.store_response(Response(f"{conversation}_2", "failed"))

    # The next turn is given the good one alone.
    history = client.resolve_history(
        conversation_id=conversation, view="full", policy=MODEL_SAFE, explain=True
    )
    for item in history.items:
        print(f"{item.data['role']}: {item.data['content'][0]['text']}")
    for exclusion in history.exclusions:
        print(f"left out, since its turn is {exclusion.status}: {len(exclusion.item_ids)} item")
