"""A client process that writes turns one after the other: `python -m tests.faults.writing_client` with the arguments
as one JSON object (see Task). It says READY, waits for a line on standard input, writes, and ends with one line of
JSON for each turn that was answered: its id.
"""

import json
import sys
import time
import uuid
from dataclasses import asdict, dataclass

import grpc

from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2

RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
SECONDS = 60.0


@dataclass(frozen=True)
class Task:
    """What a client writes."""

    target: str
    namespace: str
    name: str
    """Begins the ids of its turns."""
    turns: int
    conversation: str = ""
    """Where they go; empty: each follows the one before."""
    parent: str = ""
    """What the first one follows, without a conversation."""

    def response_id(self, number: int) -> str:
        return f"{self.name}-{number}"

    def item_ids(self, number: int) -> list[str]:
        """Of the turn's input and output."""
        return [f"{self.name}-{number}-in", f"{self.name}-{number}-out"]

    def command(self) -> list[str]:
        return [sys.executable, "-m", __name__, json.dumps(asdict(self))]


def _item(item_id: str) -> response_pb2.Item:
    return response_pb2.Item(json=json.dumps({"id": item_id, "type": "message", "text": item_id}))


def write(stub: history_service_pb2_grpc.HistoryServiceStub, task: Task, number: int) -> None:
    """Writes one turn, until it is answered."""
    given, made = task.item_ids(number)
    request = rpc.StoreResponseRequest(
        scope=response_pb2.Scope(namespace=task.namespace),
        response=response_pb2.Response(
            id=task.response_id(number),
            status=response_pb2.RESPONSE_STATUS_COMPLETED,
            conversation_id=task.conversation,
            previous_response_id=""
            if task.conversation
            else (task.response_id(number - 1) if number else task.parent),
            input_items=[_item(given)],
            output_items=[_item(made)],
        ),
        request_id=str(uuid.uuid4()),
    )
    ends = time.monotonic() + SECONDS
    while True:
        try:
            stub.StoreResponse(request, timeout=SECONDS, wait_for_ready=True)
            return
        except grpc.RpcError as error:
            if error.code() not in RETRIED or time.monotonic() > ends:
                raise


def main(task: Task) -> None:
    with grpc.insecure_channel(task.target) as channel:
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        grpc.channel_ready_future(channel).result(SECONDS)
        print("READY", flush=True)
        sys.stdin.readline()
        for number in range(task.turns):
            write(stub, task, number)
            print(json.dumps(task.response_id(number)), flush=True)


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
