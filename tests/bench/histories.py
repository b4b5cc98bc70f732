"""Turns for the benchmark, and long histories of them put in bulk.

The documents come from the store's own builder, and places and forks are given by the store's own rules, so that
what is put in bulk is what the service would have written (`test_bench_small.py` compares the two).
"""

import asyncio
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from bson.int64 import Int64

from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import response_pb2
from turnstore_service.replay.values import Status
from turnstore_service.rpc import parsing
from turnstore_service.storage.mongo import documents
from turnstore_service.storage.mongo.driver import Database, Document
from turnstore_service.storage.mongo.indexes import RESPONSES
from turnstore_service.storage.mongo.lines import (
    Lines,
    conversation_thread,
    is_conversation,
    new_chain_thread,
)
from turnstore_service.storage.values import Scope

SCOPE = Scope("bench", "ann")
SCOPE_MESSAGE = response_pb2.Scope(namespace=SCOPE.namespace, user=SCOPE.user)
_BATCH = 500
"""Documents in one insert."""
_WORDS = " ".join(hashlib.sha256(bytes([number])).hexdigest()[: 3 + number % 8] for number in range(256)) * 16


def name(kind: str, *parts: object) -> str:
    """An id as model services give them: the kind, then 48 digits that look random and are the same each time."""
    return f"{kind}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:48]}"


def message(item_id: str, role: str, size: int) -> response_pb2.Item:
    """A message of that many bytes of JSON (more if its frame alone is longer)."""
    kind = "output_text" if role == "assistant" else "input_text"
    head = f'{{"id":"{item_id}","type":"message","role":"{role}","content":[{{"type":"{kind}","text":"'
    text = _WORDS[int(item_id[-2:], 16) :][: max(0, size - len(head) - 4)]
    return response_pb2.Item(id=item_id, type="message", json=f'{head}{text}"}}]}}')


def _tool_call(item_id: str, call_id: str) -> response_pb2.Item:
    text = (
        f'{{"id":"{item_id}","type":"function_call","call_id":"{call_id}","name":"look_up",'
        f'"arguments":"{{\\"subject\\":\\"{_WORDS[:40]}\\"}}"}}'
    )
    return response_pb2.Item(id=item_id, type="function_call", json=text)


def _tool_output(item_id: str, call_id: str) -> response_pb2.Item:
    kind = "function_call_output"
    text = f'{{"id":"{item_id}","type":"{kind}","call_id":"{call_id}","output":"{_WORDS[:120]}"}}'
    return response_pb2.Item(id=item_id, type=kind, json=text)


def _reasoning(item_id: str) -> response_pb2.Item:
    text = f'{{"id":"{item_id}","type":"reasoning","summary":[],"encrypted_content":"{_WORDS[:160]}"}}'
    return response_pb2.Item(id=item_id, type="reasoning", json=text)


def store_request(
    response_id: str,
    inputs: Sequence[response_pb2.Item] = (),
    outputs: Sequence[response_pb2.Item] = (),
    *,
    status: Status = Status.COMPLETED,
    conversation_id: str = "",
    previous_response_id: str = "",
    payload: str = "",
) -> rpc.StoreResponseRequest:
    """The write of a turn."""
    return rpc.StoreResponseRequest(
        scope=SCOPE_MESSAGE,
        response=response_pb2.Response(
            id=response_id,
            status=int(status),  # type: ignore[arg-type]
            conversation_id=conversation_id,
            previous_response_id=previous_response_id,
            input_items=inputs,
            output_items=outputs,
            payload_json=payload,
        ),
        request_id=str(uuid.UUID(hashlib.sha256(f"{response_id} {status}".encode()).hexdigest()[:32])),
    )


def talk(
    line: str,
    count: int,
    *,
    chained: bool = False,
    after: str = "",
    first: int = 0,
    status: Status = Status.COMPLETED,
    size: int = 160,
    payload: str = "",
) -> Iterator[rpc.StoreResponseRequest]:
    """Turns of a question and an answer each: of the conversation `line`, or of a chain that begins after a turn.

    They are numbered from `first` on, so that a conversation can be continued.
    """
    previous = after
    for number in range(first, first + count):
        response_id = name("resp", line, number)
        yield store_request(
            response_id,
            [message(name("msg", line, number, "in"), "user", size)],
            [message(name("msg", line, number, "out"), "assistant", size)],
            status=status,
            conversation_id="" if chained else line,
            previous_response_id=previous if chained else "",
            payload=payload,
        )
        previous = response_id


def talk_with_tools(line: str, count: int) -> Iterator[rpc.StoreResponseRequest]:
    """Turns of a conversation with two items in and two out, in which each calls a tool that the next answers."""
    for number in range(count):
        inputs = [message(name("msg", line, number), "user", 160)]
        if number:
            inputs.insert(0, _tool_output(name("fco", line, number), name("call", line, number - 1)))
        outputs = [
            _reasoning(name("rs", line, number)),
            _tool_call(name("fc", line, number), name("call", line, number)),
        ]
        yield store_request(name("resp", line, number), inputs, outputs, conversation_id=line)


def talk_with_forks(line: str, count: int, forks: Sequence[int]) -> Iterator[rpc.StoreResponseRequest]:
    """A chain of turns in which, before each turn of these numbers, a side request was chained to the same parent."""
    previous = ""
    for number, request in enumerate(talk(line, count, chained=True)):
        if number in forks:
            yield from talk(f"{line} aside {number}", 1, chained=True, after=previous)
        yield request
        previous = request.response.id


def document_of(request: rpc.StoreResponseRequest, thread: bytes, place: int, root: bytes) -> Document:
    """The document that the service stores for the create of a response whose item ids are new."""
    write = parsing.write(request)
    document = documents.new_document(
        write,
        key=documents.response_key(SCOPE, write.response_id, 0),
        scope=SCOPE,
        now=datetime.now(UTC).replace(microsecond=0),
    )
    claims: list[Int64] = [documents.claim(item_id) for item_id in documents.replay_ids(write)]
    documents.place(document, thread, place, root, claims)
    return document


class Bulk:
    """Puts turns into a database, in order, many at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lines = Lines(database)
        self._newest: dict[bytes, int] = {}
        self._stands: dict[str, tuple[bytes, int, bytes]] = {}
        """Thread, place and root of the turns that others may be chained to."""

    async def put(self, requests: Iterable[rpc.StoreResponseRequest]) -> int:
        """Stores them as the service would if they came one after the other; how many."""
        waiting: list[Document] = []
        running: set[asyncio.Task[None]] = set()
        count = 0
        for request in requests:
            response = request.response
            thread, place, root = await self._spot(response)
            self._newest[thread] = place
            self._stands[response.id] = thread, place, root
            waiting.append(document_of(request, thread, place, root))
            count += 1
            if len(waiting) == _BATCH:
                if len(running) == 2:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                running.add(asyncio.create_task(self._database.insert_many(RESPONSES, waiting)))
                waiting = []
                await asyncio.sleep(0)
        if waiting:
            await self._database.insert_many(RESPONSES, waiting)
        for task in running:
            await task
        return count

    async def _spot(self, response: response_pb2.Response) -> tuple[bytes, int, bytes]:
        if response.conversation_id:
            thread = conversation_thread(response.conversation_id)
            return thread, self._newest.get(thread, 0) + 1, thread
        if not response.previous_response_id:
            thread = new_chain_thread()
            return thread, 1, thread
        thread, place, root = self._stands[response.previous_response_id]
        if self._newest[thread] != place or is_conversation(thread):
            thread = await self._lines.fork(SCOPE, thread, place)
        return thread, place + 1, root
