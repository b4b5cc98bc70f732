"""The story of the bug, played against a service of its own: `python -m turnstore_service.demo`.

A real service runs as a child process, with its MongoDB in a temporary folder, and is called through the
generated client. After each step the demo prints the turns, their status and what the next turn is given, and
compares that with what the rules say. Exit status 0: every answer was right. 1: one was not, or the demo could
not be played.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import replay_pb2, response_pb2
from turnstore.v1.history_service_pb2_grpc import HistoryServiceStub
from turnstore_service.embedded.directory_lock import DirectoryLock

START_SECONDS = 90.0
"""How long the service may take until it is ready; on a slow disk MongoDB alone takes some of it."""
CALL_SECONDS = 30.0
STOP_SECONDS = 15.0
"""How long the service may take to end, its MongoDB included (about 1 s), before it is killed."""
_POLL_SECONDS = 0.02

_WIDTH = 80
_COLUMNS = (7, 11, 4, 28, 19)
"""Widths of the table's columns; with two spaces between them and three in front they fill the width."""
_LOG_LINES = 20
"""How much of the service's log is shown when it is the service that fails."""

_MODEL_SAFE = replay_pb2.ReplayPolicy(
    cancelled=replay_pb2.TURN_RULE_SANITIZE,
    incomplete=replay_pb2.TURN_RULE_SANITIZE,
    in_flight=replay_pb2.TURN_RULE_INCLUDE,
    tool_items=replay_pb2.TOOL_ITEMS_PAIRED,
    limit_cut=replay_pb2.LIMIT_CUT_WHOLE,
)


class DemoError(Exception):
    """The demo cannot be played. The message is for whoever runs it: what happened and what to do."""


# The service


@contextlib.contextmanager
def running_service() -> Iterator[grpc.Channel]:
    """A channel to a service of the demo's own, which is gone, with its folder, when the block ends.

    Raises:
        DemoError: It did not start. The message has what it said.
    """
    folder = Path(tempfile.mkdtemp(prefix="turnstore-demo-"))
    service = None
    try:
        log_path, ready_file = folder / "service.log", folder / "ready.json"
        with log_path.open("wb") as log:
            service = subprocess.Popen(
                [sys.executable, "-m", "turnstore_service", "serve"],
                env=_environment(folder, ready_file),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        address = _await_address(service, ready_file, log_path)
        with grpc.insecure_channel(address) as channel:
            _await_ready(channel, service, log_path)
            print(
                _wrapped(
                    f"It runs as process {service.pid} on {address}, with a MongoDB of its own in {folder}. Both"
                    " end with this demo."
                )
            )
            yield channel
    finally:
        with _undisturbed():
            if service is not None:
                _end(service, folder / "data")
            shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path, ready_file: Path) -> dict[str, str]:
    """The caller's environment without settings of a service, but for where mongod is."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("TURNSTORE_") or name == "TURNSTORE_MONGOD"
    }
    return {
        **kept,
        "TURNSTORE_LISTEN": "127.0.0.1:0",
        "TURNSTORE_METRICS_LISTEN": "127.0.0.1:0",
        "TURNSTORE_DATA_DIR": str(folder / "data"),
        "TURNSTORE_READY_FILE": str(ready_file),
    }


def _await_address(service: "subprocess.Popen[bytes]", ready_file: Path, log_path: Path) -> str:
    ends = time.monotonic() + START_SECONDS
    while not ready_file.exists():
        if service.poll() is not None:
            raise DemoError(
                f"The service did not start. It said:\n\n{_tail(log_path)}\n\n"
                "The demo always runs a MongoDB of its own, so it needs a mongod program and does not look at\n"
                "TURNSTORE_MONGODB_URI."
            )
        if time.monotonic() >= ends:
            raise DemoError(
                f"The service did not listen in {START_SECONDS:g} s. It said:\n\n{_tail(log_path)}"
            )
        time.sleep(_POLL_SECONDS)
    return str(json.loads(ready_file.read_text())["listen"])


def _await_ready(channel: grpc.Channel, service: "subprocess.Popen[bytes]", log_path: Path) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)  # its published types do not tell its methods
    request = health_pb2.HealthCheckRequest(service="turnstore.v1.HistoryService")
    ends = time.monotonic() + START_SECONDS
    while service.poll() is None and time.monotonic() < ends:
        with contextlib.suppress(grpc.RpcError):
            if health.Check(request, timeout=CALL_SECONDS).status == health_pb2.HealthCheckResponse.SERVING:
                return
        time.sleep(_POLL_SECONDS)
    raise DemoError(f"The service did not get ready. It said:\n\n{_tail(log_path)}")


def _tail(log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return textwrap.indent("\n".join(lines) or "(nothing)", "  ")


def _end(service: "subprocess.Popen[bytes]", data_dir: Path) -> None:
    service.terminate()
    try:
        service.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        service.kill()
        service.wait()
        # Its MongoDB notices and ends a moment later; it holds this lock until then.
        lock = DirectoryLock(data_dir / "mongod.lock")
        with contextlib.suppress(OSError):
            lock.acquire(STOP_SECONDS)
            lock.release()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Lets no signal break off the cleaning up, which has an end of its own."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *_ENDING)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_ENDING = (signal.SIGTERM, signal.SIGHUP)


def _exit_by_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """Ends the process the ordinary way, so that what the demo started is ended too."""
    sys.exit(128 + number)


# The story


class Story:
    """Steps with their answers: made through the client, printed, compared with what the rules say."""

    def __init__(self, history: HistoryServiceStub) -> None:
        self._history = history
        self._scope = response_pb2.Scope(namespace="demo")
        self._stored: dict[str, str] = {}
        self.answers = 0
        self.right = 0

    def step(self, title: str, text: str) -> None:
        """Begins a step."""
        print(f"\n{title}\n{_wrapped(text, '   ')}")

    def store(
        self,
        turn: str,
        status: response_pb2.ResponseStatus,
        *,
        conversation: str = "",
        parent: str = "",
        given: Sequence[Mapping[str, object]] = (),
        made: Sequence[Mapping[str, object]] = (),
        error: response_pb2.ResponseError | None = None,
    ) -> None:
        """Stores a turn. Raises grpc.RpcError when the service refuses it."""
        self._stored.update({str(item["id"]): json.dumps(item) for item in (*given, *made)})
        response = response_pb2.Response(
            id=turn,
            status=status,
            conversation_id=conversation,
            previous_response_id=parent,
            input_items=[response_pb2.Item(json=self._stored[str(item["id"])]) for item in given],
            output_items=[response_pb2.Item(json=self._stored[str(item["id"])]) for item in made],
            error=error,
        )
        self._history.StoreResponse(
            rpc.StoreResponseRequest(scope=self._scope, response=response), timeout=CALL_SECONDS
        )

    def next_turn(
        self,
        expected: Sequence[str],
        *,
        left_out: Mapping[str, str] | None = None,
        conversation: str = "",
        parent: str = "",
        policy: replay_pb2.ReplayPolicy | None = None,
    ) -> None:
        """Asks what the next turn of a line is given, and why items are left out.

        `expected`: the ids that the rules say, in order. `left_out`: for each other item, the reason.
        """
        request = rpc.ResolveHistoryRequest(
            scope=self._scope, conversation_id=conversation, previous_response_id=parent, policy=policy
        )
        given = list(self._history.ResolveHistory(request, timeout=CALL_SECONDS).item_ids)
        # A host asks without the explanation, which reads more of the store; both have to agree.
        request.explain = True
        explained = self._history.ResolveHistory(request, timeout=CALL_SECONDS)
        reasons = {
            item_id: replay_pb2.ExclusionReason.Name(exclusion.reason).removeprefix("EXCLUSION_REASON_")
            for exclusion in explained.exclusions
            for item_id in exclusion.item_ids
        }
        self._print_turns(conversation, parent, given, reasons)
        self._answer(
            f"the next turn is given {_listed(given)}",
            given == list(expected) == list(explained.item_ids) and reasons == dict(left_out or {}),
            f"the rules say {_listed(expected)}"
            + "".join(f", {item_id} left out as {reason}" for item_id, reason in (left_out or {}).items()),
        )

    def read(
        self, turn: str, status: response_pb2.ResponseStatus, item_ids: Sequence[str], error_code: str
    ) -> None:
        """Reads a whole turn, for diagnosis."""
        request = rpc.GetResponseRequest(scope=self._scope, response_id=turn)
        response = self._history.GetResponse(request, timeout=CALL_SECONDS).response
        items = [*response.input_items, *response.output_items]
        print(f"\n   GetResponse({turn})")
        print(f"     status  {_status(response.status)}, revision {response.revision}")
        print(_wrapped(f"{response.error.code}: {response.error.message}", " " * 13, "     error   "))
        for item in items:
            print(_wrapped(item.json, " " * 13, "     item    "))
        self._answer(
            f"the turn is readable, with {_listed([item.id for item in items])}",
            response.status == status
            and [item.id for item in items] == list(item_ids)
            and all(item.json == self._stored[item.id] for item in items)
            and response.error.code == error_code,
            f"the rules say {_listed(item_ids)}",
        )

    def refused(self, turn: str, status: response_pb2.ResponseStatus, reason: str) -> None:
        """Makes a write that has to be refused."""
        print(f"\n   StoreResponse({turn}, {_status(status)})")
        try:
            self.store(turn, status)
        except grpc.RpcError as error:
            print(_wrapped(f"{error.code().name} {_reason(error)}: {error.details()}", "     "))
            refusal = _reason(error)
        else:
            print("     OK")
            refusal = ""
        self._answer(
            f"the late write is {'refused' if refusal else 'accepted'}",
            refusal == reason,
            f"the rules say {reason}",
        )

    def _answer(self, told: str, right: bool, expected: str) -> None:
        self.answers += 1
        self.right += right
        print()
        print(_wrapped(f"{'right' if right else 'WRONG'}: {told}", "   "))
        if not right:
            print(_wrapped(expected, "          "))

    def _print_turns(
        self, conversation: str, parent: str, given: Sequence[str], reasons: Mapping[str, str]
    ) -> None:
        print()
        _print_row("TURN", "STATUS", "ITEM", "WHAT IT IS", "FOR THE NEXT TURN")
        _print_row(*("-" * width for width in _COLUMNS))
        request = rpc.ListResponsesRequest(
            scope=self._scope, conversation_id=conversation, previous_response_id=parent
        )
        for turn in self._history.ListResponses(request, timeout=CALL_SECONDS).responses:
            read = rpc.GetResponseRequest(scope=self._scope, response_id=turn.id)
            whole = self._history.GetResponse(read, timeout=CALL_SECONDS).response
            name, status = turn.id, _status(turn.status)
            for item in (*whole.input_items, *whole.output_items):
                fate = "given" if item.id in given else f"out: {reasons.get(item.id, 'no reason')}"
                _print_row(name, status, item.id, _words(json.loads(item.json)), fate)
                name = status = ""


def _print_row(*cells: str) -> None:
    text = "  ".join(cell.ljust(width) for cell, width in zip(cells, _COLUMNS, strict=True))
    print(f"   {text}".rstrip())


def _wrapped(text: str, indent: str = "", first: str | None = None) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _listed(item_ids: Sequence[str]) -> str:
    return ", ".join(item_ids) or "nothing"


def _status(status: response_pb2.ResponseStatus) -> str:
    return response_pb2.ResponseStatus.Name(status).removeprefix("RESPONSE_STATUS_")


def _reason(error: grpc.RpcError) -> str:
    """The reason in an error's details; empty where it has none."""
    status = rpc_status.from_call(cast(grpc.Call, error))  # what a stub raises is both
    info = error_details_pb2.ErrorInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(info):
            return str(info.reason)
    return ""


# Items as the Responses protocol has them


def _message(item_id: str, role: str, text: str) -> dict[str, object]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "id": item_id, "role": role, "content": [{"type": kind, "text": text}]}


def _call(item_id: str, call_id: str, name: str) -> dict[str, object]:
    return {"type": "function_call", "id": item_id, "call_id": call_id, "name": name, "arguments": "{}"}


def _output(item_id: str, call_id: str, output: str) -> dict[str, object]:
    return {"type": "function_call_output", "id": item_id, "call_id": call_id, "output": output}


def _thought(item_id: str) -> dict[str, object]:
    return {"type": "reasoning", "id": item_id, "summary": []}


def _words(item: Mapping[str, object]) -> str:
    """An item in a few words."""
    match item:
        case {"type": "message", "role": role, "content": [{"text": text}]}:
            return f"{role}: {text}"
        case {"type": "function_call", "call_id": call_id, "name": name}:
            return f"call {call_id} of {name}"
        case {"type": "function_call_output", "call_id": call_id}:
            return f"output of call {call_id}"
    return str(item["type"])


_REFUSAL = response_pb2.ResponseError(
    code="invalid_request_error", message="No tool call found for function call output with call_id lost."
)
"""What a model service answers to an output without its call; a host stores it with the failed turn."""


def play(story: Story) -> None:
    """The story. Raises grpc.RpcError when the service refuses a step that the rules allow."""
    _play_conversation(story)
    _play_chain(story)
    _play_cancelled(story)


def _play_conversation(story: Story) -> None:
    trip = "trip"
    story.step("1. A good turn in a conversation", "The user asks, the agent answers.")
    story.store(
        "turn_1",
        response_pb2.RESPONSE_STATUS_COMPLETED,
        conversation=trip,
        given=[_message("q1", "user", "A weekend in Oslo?")],
        made=[_message("a1", "assistant", "Gladly. When?")],
    )
    story.next_turn(["q1", "a1"], conversation=trip)

    story.step(
        "2. A bad turn begins",
        "Its input is the output of a tool call that is nowhere in the conversation: a bug of the client, a lost"
        " message. While the turn runs, its items count.",
    )
    story.store(
        "turn_2",
        response_pb2.RESPONSE_STATUS_IN_PROGRESS,
        conversation=trip,
        given=[_output("o1", "lost", "sunny")],
    )
    story.next_turn(["q1", "a1", "o1"], conversation=trip)

    story.step(
        "3. The bad turn fails",
        "The model service refuses an output without its call. A store that went on replaying o1 would make every"
        " later turn fail in the same way: the conversation would be poisoned for good. Here o1 is out at once.",
    )
    story.store("turn_2", response_pb2.RESPONSE_STATUS_FAILED, conversation=trip, error=_REFUSAL)
    story.next_turn(["q1", "a1"], left_out={"o1": "FAILED"}, conversation=trip)

    story.step("4. Nothing is lost", "The failed turn stays readable, so that somebody can find the cause.")
    story.read("turn_2", response_pb2.RESPONSE_STATUS_FAILED, ["o1"], _REFUSAL.code)

    story.step("5. The conversation goes on", "The next turn works, and so does every one after it.")
    story.store(
        "turn_3",
        response_pb2.RESPONSE_STATUS_COMPLETED,
        conversation=trip,
        given=[_message("q2", "user", "In May.")],
        made=[_message("a2", "assistant", "Take the train.")],
    )
    story.next_turn(["q1", "a1", "q2", "a2"], left_out={"o1": "FAILED"}, conversation=trip)


def _play_chain(story: Story) -> None:
    story.step(
        "6. The same by previous_response_id",
        "A chain: each turn names the one before. link_3 is stored while its parent, the bad link_2, still runs,"
        " so at that moment the bad output is part of what comes after link_3.",
    )
    story.store(
        "link_1",
        response_pb2.RESPONSE_STATUS_COMPLETED,
        given=[_message("q3", "user", "Translate 'tog'.")],
        made=[_message("a3", "assistant", "Train.")],
    )
    story.store(
        "link_2",
        response_pb2.RESPONSE_STATUS_IN_PROGRESS,
        parent="link_1",
        given=[_output("o2", "lost", "train")],
    )
    story.store(
        "link_3",
        response_pb2.RESPONSE_STATUS_COMPLETED,
        parent="link_2",
        given=[_message("q4", "user", "And 'fjord'?")],
        made=[_message("a4", "assistant", "Fjord.")],
    )
    story.next_turn(["q3", "a3", "o2", "q4", "a4"], parent="link_3")

    story.step(
        "7. The parent fails after its child was stored",
        "No resolved history is kept anywhere: the status counts as it is now, so the chain is clean from this"
        " moment on, for link_3 too.",
    )
    story.store("link_2", response_pb2.RESPONSE_STATUS_FAILED, error=_REFUSAL)
    story.next_turn(["q3", "a3", "q4", "a4"], left_out={"o2": "FAILED"}, parent="link_3")

    story.step(
        "8. A late write cannot bring it back",
        "A slow worker reports that link_2 is in progress. A final status stays, unless a write names the"
        " revision that it repairs.",
    )
    story.refused("link_2", response_pb2.RESPONSE_STATUS_IN_PROGRESS, "RESPONSE_FINISHED")
    story.next_turn(["q3", "a3", "q4", "a4"], left_out={"o2": "FAILED"}, parent="link_3")


def _play_cancelled(story: Story) -> None:
    cafe = "cafe"
    story.step(
        "9. A cancelled turn, as it was stored",
        "The user stopped the agent in the middle of a tool call. Under the default policy (as_stored) the turn"
        " counts with all that it had produced, the unanswered call c1 included.",
    )
    story.store(
        "table_1",
        response_pb2.RESPONSE_STATUS_CANCELLED,
        conversation=cafe,
        given=[_message("q5", "user", "Book a table.")],
        made=[
            _message("a5", "assistant", "One moment."),
            _thought("r1"),
            _call("c1", "open", "find_table"),
        ],
    )
    story.next_turn(["q5", "a5", "r1", "c1"], conversation=cafe)

    story.step(
        "10. The same for a model service that is strict",
        "Under the policy model_safe, what such a service would refuse is left out: the call without its output,"
        " and the reasoning that belongs to the call. The rest of the turn stays.",
    )
    story.next_turn(
        ["q5", "a5"],
        left_out={"c1": "UNPAIRED_CALL", "r1": "TIED_REASONING"},
        conversation=cafe,
        policy=_MODEL_SAFE,
    )


def main() -> int:
    """Plays the demo; the exit status."""
    for number in _ENDING:
        signal.signal(number, _exit_by_signal)
    print("turnstore: a failed turn never poisons a conversation. Starting the service ...", flush=True)
    try:
        with running_service() as channel:
            story = Story(HistoryServiceStub(channel))
            try:
                play(story)
            except grpc.RpcError as error:
                story.answers += 1
                refusal = f"the service answered {error.code().name} {_reason(error)}: {error.details()}"
                print(f"\n{_wrapped(f'WRONG: {refusal}', '   ')}")
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    # Last, when everything has ended: whoever reads only the end sees how it went.
    print(f"\ndemo: {story.right} of {story.answers} answers as the rules say")
    return 0 if story.right == story.answers else 1


if __name__ == "__main__":
    sys.exit(main())
