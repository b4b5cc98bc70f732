"""Random sequences of calls, played against two drivers at once and compared call by call.

A sequence is plain data that depends on its seed alone, so a difference can be found again, and a sequence
that shows one is made shorter by leaving out calls for as long as it still does.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from tests.case_player import Driver, ModelDriver
from tests.model import (
    AS_STORED,
    MODEL_SAFE,
    History,
    Item,
    Model,
    Policy,
    RefusedError,
    Stored,
)

USERS = (None,) * 18 + ("ann", "")
RESPONSES = tuple(f"r{number}" for number in range(9))
CONVERSATIONS = ("c1", "c2")
CALLS = ("k1", "k1", "k2")
HOSTED = ("web_search_call", "mcp_call", "local_shell_call_output", "x_call_output")
KINDS = ("function_call", "function_call", "function_call", "custom_tool_call", "tool_search_call")
ENDED = ("COMPLETED", "COMPLETED", "UNSPECIFIED", "INCOMPLETE", "CANCELLED", "FAILED")
RUNNING = ("QUEUED", "IN_PROGRESS", "IN_PROGRESS")
RULES = ("INCLUDE", "SANITIZE", "INPUT_ONLY", "EXCLUDE")
# In characters: less than any setting of a reply's limit.
LARGE = 30_000
# Metadata that is compared word for word. Which field of a bad request is named first is not laid down.
NOT_COMPARED = {"INVALID_FIELD"}


@dataclass(frozen=True)
class Call:
    """One call of a sequence: the driver's method, the user, and the arguments by name."""

    method: str
    user: str | None
    arguments: dict[str, Any]

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return _without_padding(f"{self.method}({self.user!r}, {given})")


def _without_padding(text: str) -> str:
    return re.sub("x{20,}", "x...", text)


class _Writer:
    """Makes one sequence. It plays each call on a model of its own, so as to choose ids that are there."""

    def __init__(self, seed: int, padding: int = 0) -> None:
        self.padding = padding
        self.random = random.Random(seed)
        # Each third of the sequences is rich in something: tool calls, repeated ids, neither.
        self.tools, self.repeats = ((80, 10), (30, 50), (40, 15))[seed % 3]
        self.model = Model()
        self.calls: list[Call] = []
        self.updates: list[Call] = []
        self.numbers = itertools.count()
        self.items: list[str] = ["i0"]
        self.approvals: list[str] = ["i0"]
        self.open_calls: list[tuple[str, Any]] = [("function_call", "k1")]
        self.requests: list[str] = []

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def add(self, method: str, user: str | None, **arguments: Any) -> None:
        call = Call(method, user, arguments)
        self.calls.append(call)
        model_arguments = {
            name: value for name, value in arguments.items() if name not in ("view", "page_size")
        }
        with contextlib.suppress(RefusedError):
            answer = getattr(self.model, method)(user, **model_arguments)
            if isinstance(answer, Stored) and answer.revision > 1 and "request_id" in arguments:
                self.updates.append(call)

    def live(self, user: str | None) -> list[str]:
        """The responses that are there now."""
        found = []
        for response_id in RESPONSES:
            try:
                self.model.get(user, response_id)
            except RefusedError:
                continue
            found.append(response_id)
        return found

    def target(self, user: str | None) -> str:
        """A response that is mostly there."""
        live = self.live(user)
        return self.random.choice(live if live and self.chance(85) else RESPONSES)

    def item_id(self) -> str:
        if self.chance(self.repeats):
            return self.random.choice(self.items[-12:])
        item_id = f"i{next(self.numbers)}"
        self.items.append(item_id)
        return item_id

    def call_id(self) -> Any:
        return self.random.choice((*CALLS, *CALLS, *CALLS, *CALLS, *CALLS, *CALLS, "", None, 7))

    def item(self) -> str:
        """One item as JSON, in a spelling of its own: what is re-encoded on the way can be told from it."""
        kind = 8 + self.random.randrange(11) if self.chance(self.tools) else self.random.randrange(8)
        item: dict[str, Any] = {"type": "message", "role": "user", "id": self.item_id()}
        if kind < 3:
            item["content"] = [{"type": "input_text", "text": f"text {next(self.numbers)}"}]
        elif kind < 5:
            texts = [self.random.choice(("", "half", "whole")) for _ in range(self.random.randrange(4))]
            item["content"] = [{"type": "output_text", "text": text} for text in texts]
        elif kind == 5:
            item["content"] = self.random.choice(
                ("", "plain", None, [""], [{"type": "refusal", "refusal": ""}])
            )
            if self.chance(50):
                del item["type"]
        elif kind == 6:
            item["id"] = self.random.choice((None, "", "__fake_id__"))
            item["content"] = "without an id"
        elif kind == 7:
            item = {"id": item["id"], "type": self.random.choice(HOSTED)}
        elif kind < 11:
            item = {"id": item["id"], "type": "reasoning", "summary": []}
        elif kind < 14:
            called = (self.random.choice(KINDS), self.call_id())
            self.open_calls.append(called)
            item = {"id": item["id"], "type": called[0], "call_id": called[1]}
        elif kind < 16:
            kind_called, call_id = self.random.choice(self.open_calls[-3:])
            answer = "tool_search_output" if kind_called == "tool_search_call" else f"{kind_called}_output"
            item = {"id": item["id"], "type": answer, "call_id": call_id}
        elif kind == 16:
            item = {"id": item["id"], "type": "mcp_approval_request", "name": "n"}
            self.approvals.append(item["id"])
        else:
            request = self.random.choice(self.approvals[-3:])
            item = {"id": item["id"], "type": "mcp_approval_response", "approval_request_id": request}
        if self.padding and self.chance(30):
            item["padding"] = "x" * self.random.randrange(self.padding)
        return json.dumps(item, separators=(" , ", " : "))

    def some_items(self, most: int) -> list[str]:
        return [self.item() for _ in range(self.random.randrange(most + 1))]

    def request_id(self) -> str:
        if self.requests and self.chance(15):
            return self.random.choice(self.requests[-4:])
        request_id = str(uuid.UUID(int=self.random.getrandbits(128)))
        self.requests.append(request_id)
        return request_id

    def some_extras(self, response: dict[str, Any]) -> None:
        if self.chance(15):
            response["payload_json"] = self.random.choice(('{"model":"m"}', '{"model": "n"}', "{}"))
        if response.get("status") == "FAILED" and self.chance(50):
            response["error"] = {"code": self.random.choice(("a", "b")), "message": ""}
        if self.chance(8):
            response["exclude_from_replay"] = self.chance(70)

    def some_options(self, user: str | None, response_id: str) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.chance(35):
            options["duplicate_items"] = "KEEP_FIRST"
        if self.chance(60):
            options["request_id"] = self.request_id()
        if self.chance(35):
            try:
                revision = self.model.get(user, response_id).revision
            except RefusedError:
                revision = 0
            options["expected_revision"] = revision if self.chance(75) else self.random.randrange(3)
        return options

    def snapshot(self) -> list[str]:
        """Ids as a host hands them over: mostly what came last, sometimes anything, sometimes unknown."""
        if self.chance(50):
            last = self.random.randrange(6)
            return self.items[-1 - last - self.random.randrange(6) : len(self.items) - last]
        return [
            self.random.choice(self.items) if self.chance(85) else f"foreign{self.random.randrange(3)}"
            for _ in range(self.random.randrange(5))
        ]

    def create(self, user: str | None) -> None:
        live = self.live(user)
        free = [response_id for response_id in RESPONSES if response_id not in live]
        response_id = self.random.choice(free if free and self.chance(90) else RESPONSES)
        response: dict[str, Any] = {"id": response_id, "status": self.random.choice((*ENDED, *RUNNING))}
        options = self.some_options(user, response_id)
        where = self.random.randrange(10)
        if where < 4:
            response["conversation_id"] = self.random.choice(CONVERSATIONS)
        elif where < 8 and live:
            response["previous_response_id"] = self.random.choice(live)
        elif where == 9:
            response["previous_response_id"] = self.random.choice(RESPONSES)
        if self.chance(8 if "previous_response_id" in response else 30):
            options["inherited_item_ids"] = self.snapshot()
        response["input_items"] = self.some_items(4)
        response["output_items"] = self.some_items(7)
        self.some_extras(response)
        if response_id not in live and self.chance(80):
            # Free again for revision 0 alone, and that is what most creates say anyway.
            options["expected_revision"] = 0
        self.add("store", user, response=response, **options)

    def update(self, user: str | None) -> None:
        live = self.live(user)
        if not live:
            return
        response_id = self.random.choice(live)
        turn = self.model.get(user, response_id)
        response: dict[str, Any] = {"id": response_id}
        response["status"] = turn.status if self.chance(30) else self.random.choice((*ENDED, *RUNNING))
        if self.chance(25):
            response["conversation_id"] = turn.conversation_id
            response["previous_response_id"] = turn.previous_response_id
        if self.chance(5):
            response["conversation_id"] = self.random.choice(CONVERSATIONS)
        if self.chance(5):
            response["previous_response_id"] = self.random.choice(RESPONSES)
        if self.chance(25):
            repeats, self.repeats = self.repeats, 60
            response["input_items"] = self.some_items(3)
            self.repeats = repeats
        elif self.chance(25):
            response["input_items"] = [item.json for item in turn.input_items]
        if self.chance(50):
            response["output_items"] = [item.json for item in turn.output_items]
        else:
            response["output_items"] = self.some_items(4)
        if self.chance(60) and turn.payload_json:
            response["payload_json"] = turn.payload_json
        self.some_extras(response)
        options = self.some_options(user, response_id)
        if turn.status in ENDED and self.chance(60):
            options["expected_revision"] = turn.revision
        self.add("store", user, response=response, **options)

    def again(self) -> None:
        """An earlier write once more, as a caller whose reply was lost makes it."""
        writes = [call for call in self.calls if call.method == "store"]
        if self.updates and self.chance(40):
            writes = self.updates
        if writes:
            call = self.random.choice(writes[-2:])
            response = dict(call.arguments["response"])
            if self.chance(30):
                self.add("set_replay_exclusion", call.user, response_id=response["id"], excluded=True)
            if self.chance(25):
                # A request id that is known is a success whatever else the write says.
                response["status"] = self.random.choice((*ENDED, *RUNNING))
            self.add("store", call.user, **{**call.arguments, "response": response})

    def length(self, user: str | None, arguments: dict[str, Any]) -> int:
        """How many items the history has without a limit."""
        try:
            return len(self.model.resolve(user, **arguments).items)
        except RefusedError:
            return 0

    def policy(self) -> Policy:
        which = self.random.randrange(5)
        if which == 0:
            return AS_STORED
        if which == 1:
            return MODEL_SAFE
        return Policy(
            self.random.choice(RULES),
            self.random.choice(RULES),
            self.random.choice(("INCLUDE", "INCLUDE", "EXCLUDE")) if self.chance(97) else "SANITIZE",
            self.random.choice(("KEEP", "PAIRED", "PAIRED")),
            self.random.choice(("EXACT", "WHOLE", "WHOLE", "WHOLE")),
        )

    def resolve(self, user: str | None, **line: str) -> None:
        if not line:
            where = self.random.randrange(10)
            parent = self.random.choice(self.live(user) or RESPONSES)
            if where < 3 or where == 8:
                line["conversation_id"] = self.random.choice(CONVERSATIONS)
            if 3 <= where < 6 or where == 8:
                line["previous_response_id"] = parent
            if 6 <= where < 8:
                line["before_response_id"] = parent
            if where == 9 and self.chance(30):
                line["previous_response_id"] = self.random.choice(RESPONSES)
        arguments: dict[str, Any] = {**line, "policy": self.policy(), "explain": self.chance(80)}
        if self.chance(40):
            names = ("k1", "k2", *self.approvals[-4:])
            arguments["answered_call_ids"] = [
                self.random.choice(names) for _ in range(self.random.randrange(1, 4))
            ]
        if self.chance(60):
            unit = self.random.choice(("ITEMS", "ITEMS", "TURNS"))
            most = 4 if unit == "TURNS" else self.length(user, arguments) + 1
            arguments["limit"] = self.random.randrange(most + 1)
            arguments["limit_unit"] = unit
        if self.chance(80):
            arguments["view"] = "FULL"
        self.add("resolve", user, **arguments)

    def read(self, user: str | None) -> None:
        response_id = self.target(user)
        which = self.random.randrange(4)
        if which == 0:
            self.add("get", user, response_id=response_id)
        elif which == 1:
            arguments: dict[str, Any] = {"order": self.random.choice(("ASC", "DESC"))}
            arguments["page_size"] = self.random.choice((0, 1, 2, 3, 1000))
            arguments["include_inherited"] = self.chance(50)
            for name in ("after", "before"):
                if self.chance(25):
                    arguments[name] = self.random.choice(self.items)
            self.add("list_input_items", user, response_id=response_id, **arguments)
        elif which == 2:
            names = [
                self.random.choice((*self.items, "foreign0")) for _ in range(self.random.randrange(1, 6))
            ]
            line = {}
            if self.chance(60):
                line = self.random.choice(
                    (
                        {"conversation_id": "c1"},
                        {"conversation_id": "c2"},
                        {"previous_response_id": response_id},
                    )
                )
            self.add("batch_get", user, item_ids=names, **line)
        else:
            line = self.random.choice(
                ({"conversation_id": "c1"}, {"conversation_id": "c2"}, {"previous_response_id": response_id})
            )
            self.add("list_responses", user, page_size=self.random.choice((0, 1, 2, 3)), **line)

    def sweep(self) -> None:
        """Looks at what the sequence has left behind."""
        for user in dict.fromkeys(call.user for call in self.calls):
            for conversation_id in CONVERSATIONS:
                self.resolve(user, conversation_id=conversation_id)
                self.add("list_responses", user, conversation_id=conversation_id)
            for response_id in self.live(user):
                self.add("get", user, response_id=response_id)
                self.resolve(user, previous_response_id=response_id)
                self.resolve(user, before_response_id=response_id)

    def write(self, length: int) -> None:
        while len(self.calls) < length:
            user = self.random.choice(USERS)
            which = self.random.randrange(1000)
            if which < 380:
                self.create(user)
            elif which < 530:
                self.update(user)
            elif which < 570:
                self.again()
            elif which < 615:
                response_id = self.target(user)
                self.add("set_replay_exclusion", user, response_id=response_id, excluded=self.chance(60))
            elif which < 650:
                self.add("delete", user, response_id=self.target(user))
            elif which < 657:
                self.add("delete_conversation", user, conversation_id=self.random.choice(CONVERSATIONS))
            elif which < 659:
                self.add("delete_user_data", user)
            elif which < 890:
                self.resolve(user)
            else:
                self.read(user)

    def change(self, line: Sequence[str], reading: dict[str, str]) -> None:
        """One change to a turn of the line, or a turn that is added behind it."""
        which = self.random.randrange(5)
        response_id = self.random.choice(line)
        turn = self.model.get(None, response_id)
        if which == 0:
            self.add("set_replay_exclusion", None, response_id=response_id, excluded=not turn.excluded)
        elif which == 1:
            self.add("delete", None, response_id=response_id)
        elif which == 2:
            failed = {"id": response_id, "status": "FAILED"}
            self.add("store", None, response=failed, expected_revision=turn.revision)
        else:
            added = {
                "id": "added",
                "status": "COMPLETED",
                **reading,
                "input_items": [f'{{"id":"{uuid.UUID(int=1)}"}}'],
            }
            self.add("store", None, response=added, expected_revision=0)


def sequence(seed: int, padding: int = 0) -> list[Call]:
    """The sequence of this number: the same at every run.

    With padding some items have so many characters more, at most, so that replies come in pages.
    """
    writer = _Writer(seed, padding)
    writer.write(length=20 + seed % 40)
    writer.sweep()
    return writer.calls


@dataclass(frozen=True)
class InterruptedReading:
    """A sequence, then a history to be read in pages, and a call that is made after the first page."""

    before: Sequence[Call]
    reading: Call
    change: Call

    @property
    def adds(self) -> bool:
        """Whether the change is a turn added behind those that are read."""
        return bool(self.change.arguments.get("response", {}).get("id") == "added")

    @property
    def deletes_parent(self) -> bool:
        """Whether the change deletes the very response whose chain is read."""
        parent = self.reading.arguments.get("previous_response_id")
        return self.change.method == "delete" and self.change.arguments["response_id"] == parent


def interrupted_reading(seed: int, padding: int) -> InterruptedReading:
    """The interrupted reading of this number: the same at every run."""
    writer = _Writer(seed, padding)
    lines: list[tuple[dict[str, str], list[str]]] = []
    while not lines:
        writer.write(length=len(writer.calls) + 30)
        named = [{"conversation_id": conversation_id} for conversation_id in CONVERSATIONS]
        named += [{"previous_response_id": response_id} for response_id in writer.live(None)]
        for name in named:
            turns = writer.model.list_responses(None, **name)
            if turns:
                lines.append((name, [turn.id for turn in turns]))
    # The longest has the most pages.
    name, line = max(lines, key=lambda one: len(one[1]))
    before = list(writer.calls)
    policy = replace(writer.policy(), in_flight="INCLUDE")
    reading = Call("resolve", None, {**name, "policy": policy, "view": "FULL"})
    writer.change(line, name)
    return InterruptedReading(before, reading, writer.calls[-1])


class _Labels:
    """Names for the item ids that a server makes up: two drivers may make them up differently."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def learn(self, call: Call, stored: Stored) -> None:
        for part, ids in (("input", stored.input_ids), ("output", stored.output_ids)):
            for index, item_id in enumerate(ids):
                if item_id.startswith("item_"):
                    self._labels[item_id] = f"<{part} {index} of {call.arguments['response']['id']}>"

    def put(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._labels.get(value, value)
        if isinstance(value, (tuple, list)):
            return type(value)(self.put(one) for one in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(
                value, **{field.name: self.put(getattr(value, field.name)) for field in fields(value)}
            )
        return value


class Side:
    """One of the two drivers, with item ids and refusals in a form that can be compared."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._labels = _Labels()

    async def answer(self, call: Call, **options: Any) -> Any:
        """What the call comes to. `options` are further arguments, of this driver's own."""
        try:
            answer = await getattr(self._driver, call.method)(call.user, **call.arguments, **options)
        except RefusedError as refused:
            return _comparable_refusal(refused)
        except AssertionError as broken:
            return ("breaks what holds for every answer", str(broken))
        if isinstance(answer, Stored):
            self._labels.learn(call, answer)
        return self._labels.put(answer)


def _comparable_refusal(refused: RefusedError) -> Any:
    told: dict[str, Any] = {} if refused.reason in NOT_COMPARED else dict(refused.metadata)
    if refused.reason == "DUPLICATE_ITEM":
        told["item_ids"] = json.loads(refused.metadata.get("item_ids", "null"))
        told["message"] = refused.message
    return ("refused", refused.code, refused.reason, told)


def _comparable_history(history: History, re_encoded: set[int]) -> Any:
    items = [
        replace(item, json=json.dumps(json.loads(item.json), sort_keys=True))
        if number in re_encoded and item.json
        else item
        for number, item in enumerate(history.items)
    ]
    # The order of the turns is laid down, but neither that of the reasons within a turn nor the status of a
    # deleted turn.
    turns = [name for name, _ in itertools.groupby(one.response_id for one in history.exclusions)]
    exclusions = sorted(
        (one.response_id, one.reason, "" if one.reason == "DELETED" else one.status, one.item_ids)
        for one in history.exclusions
    )
    return {
        "items": items,
        "turns explained": turns,
        "exclusions": exclusions,
        "ancestor_deleted": history.ancestor_deleted,
        "truncated": history.truncated,
    }


def _are_large(pages: list[tuple[Item, ...]]) -> bool:
    """Whether a page of such items may end before its size is reached."""
    return sum(len(item.json) for page in pages for item in page) > LARGE


def comparable(expected: Any, actual: Any, texts: set[str]) -> tuple[Any, Any]:
    """Both answers in a form in which they are equal when nothing that is laid down differs.

    `texts` are the item texts that have been sent: an item whose text is one of them has to be that to the byte.
    """
    if isinstance(expected, list) and isinstance(actual, list) and _are_large(expected):
        return list(itertools.chain(*expected)), list(itertools.chain(*actual))
    if not isinstance(expected, History) or not isinstance(actual, History):
        return expected, actual
    # A message that has lost its empty parts is the one JSON that is not the text given: its spelling is free,
    # its value is not. The model spells it as no text of a sequence is spelt.
    re_encoded = {
        number for number, item in enumerate(expected.items) if item.json and item.json not in texts
    }
    return _comparable_history(expected, re_encoded), _comparable_history(actual, re_encoded)


def texts_of(calls: Sequence[Call]) -> set[str]:
    """Every item text that the calls send."""
    return {
        text
        for call in calls
        for part in ("input_items", "output_items")
        for text in call.arguments.get("response", {}).get(part, ())
    }


async def difference(calls: Sequence[Call], model: Side, other: Side) -> str:
    """The first answer in which the other side differs from the model, in words; empty when there is none."""
    texts = texts_of(calls)
    for number, call in enumerate(calls):
        expected, actual = comparable(await model.answer(call), await other.answer(call), texts)
        if actual != expected:
            told = f"call {number}: {call}\n    model:   {expected}\n    service: {actual}"
            return _without_padding(told)
    return ""


def model_side() -> Side:
    """A model in which nothing is stored."""
    return Side(ModelDriver(Model()))


async def shortest(
    calls: Sequence[Call], differs: Callable[[Sequence[Call]], Awaitable[str]]
) -> tuple[list[Call], str]:
    """Leaves out calls of a sequence that differs, for as long as what is left differs still."""
    kept, found = list(calls), await differs(calls)
    size = max(1, len(kept) // 2)
    while size:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if told := await differs(fewer):
                kept, found = fewer, told
            else:
                start += size
        size //= 2
    return kept, found
