"""Requests as checked values. Every input is hostile: what cannot be taken is refused with its field's name."""

import hashlib
import re
from collections.abc import Iterable, Sequence

from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import replay_pb2, response_pb2
from turnstore_service.replay.items import (
    MAX_ID_LENGTH,
    InvalidItemError,
    has_control_characters,
    pairing_key,
    parse_object,
    read_head,
)
from turnstore_service.replay.values import (
    Head,
    LimitCut,
    LimitUnit,
    Part,
    Policy,
    Question,
    Status,
    ToolItems,
    TurnRule,
)
from turnstore_service.rpc.errors import invalid, unimplemented
from turnstore_service.storage.values import Items, ResponseFault, Scope, Write

_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
MAX_ITEM_BYTES = 16 * 1024 * 1024
"""JSON of one item. Contract."""
MAX_ERROR_BYTES = 256 * 1024
"""Code or message of an error: they come along with every page of their response."""
MAX_ITEMS = 10_000
"""Items in one part of a response: their heads share one document of 16 MiB and are named in one reply."""
MAX_SNAPSHOT = 100_000
"""Ids in a snapshot."""
MAX_ANSWERED = 1000
"""Calls that one input answers."""
MAX_ASKED = 1000
"""Ids in one BatchGetItems. Contract."""
_STATUSES = frozenset(map(int, Status))
_DUPLICATE_ITEMS = frozenset(replay_pb2.DuplicateItems.values())
_LIMIT_UNITS = frozenset(replay_pb2.LimitUnit.values())
_VIEWS = frozenset(replay_pb2.HistoryView.values())
DEFAULT_PAGE = 20
MAX_PAGE = 100
"""Page sizes. Contract; a larger one is lowered (AIP-158)."""


def scope(message: response_pb2.Scope, namespace: str) -> Scope:
    """A request's scope, with the namespace that the credential gave it."""
    if not message.HasField("user"):
        return Scope(namespace)
    _check_name("scope.user", message.user)
    return Scope(namespace, message.user)


def namespace(name: str, text: str) -> str:
    """The namespace that a request names in this field; empty for the credential's own."""
    _check_name(name, text)
    return text


def _check_name(name: str, text: str) -> None:
    if len(text) > MAX_ID_LENGTH:
        raise invalid(name, f"has {len(text)} characters; the limit is {MAX_ID_LENGTH}")
    if has_control_characters(text):
        raise invalid(name, "has a control character")


def identifier(name: str, text: str) -> str:
    """An id that has to be there."""
    if not text:
        raise invalid(name, "is required")
    return optional_identifier(name, text)


def optional_identifier(name: str, text: str) -> str:
    """An id, or empty."""
    _check_name(name, text)
    return text


def identifiers(name: str, texts: Sequence[str], most: int) -> list[str]:
    """A list of ids."""
    if len(texts) > most:
        raise invalid(name, f"has {len(texts)} entries; the limit is {most}")
    return [identifier(f"{name}[{index}]", text) for index, text in enumerate(texts)]


def write(request: rpc.StoreResponseRequest) -> Write:
    """A StoreResponse."""
    if request.HasField("lease"):
        raise unimplemented("StoreResponseRequest.lease")
    response = request.response
    response_id = identifier("response.id", response.id)
    conversation_id = optional_identifier("response.conversation_id", response.conversation_id)
    previous_response_id = optional_identifier("response.previous_response_id", response.previous_response_id)
    if conversation_id and previous_response_id:
        raise invalid("response.previous_response_id", "cannot be given together with conversation_id")
    if response.status not in _STATUSES:
        raise invalid("response.status", f"has the unknown value {response.status}")
    if request.duplicate_items not in _DUPLICATE_ITEMS:
        raise invalid("duplicate_items", f"has the unknown value {request.duplicate_items}")
    expected = request.expected_revision if request.HasField("expected_revision") else None
    if expected is not None and expected < 0:
        raise invalid("expected_revision", "is negative; 0 means that the response must not exist")
    return Write(
        response_id,
        Status(response.status),
        conversation_id,
        previous_response_id,
        items("response.input_items", response.input_items, response_id, Part.INPUT),
        items("response.output_items", response.output_items, response_id, Part.OUTPUT),
        _payload(response.payload_json),
        _fault(response.error) if response.HasField("error") else None,
        response.exclude_from_replay if response.HasField("exclude_from_replay") else None,
        expected,
        request.duplicate_items == replay_pb2.DUPLICATE_ITEMS_KEEP_FIRST,
        _snapshot(request, bool(previous_response_id)),
        _request_id(request.request_id),
    )


def _snapshot(request: rpc.StoreResponseRequest, has_parent: bool) -> Sequence[str]:
    ids = identifiers("inherited_item_ids", request.inherited_item_ids, MAX_SNAPSHOT)
    return () if has_parent else ids


def _request_id(text: str) -> bytes:
    if text and not _UUID.fullmatch(text):
        raise invalid("request_id", "is no UUID: 8-4-4-4-12 hexadecimal digits")
    return bytes.fromhex(text.replace("-", ""))


def _fault(error: response_pb2.ResponseError) -> ResponseFault:
    for name, text in (("code", error.code), ("message", error.message)):
        if len(text) * 4 > MAX_ERROR_BYTES and len(text.encode()) > MAX_ERROR_BYTES:
            raise invalid(
                f"response.error.{name}", f"has {len(text.encode())} bytes; the limit is {MAX_ERROR_BYTES}"
            )
    return ResponseFault(error.code, error.message)


def _payload(text: str) -> str:
    if text:
        try:
            parse_object(text)
        except InvalidItemError as error:
            raise invalid("response.payload_json", str(error)) from None
    return text


def items(name: str, messages: Sequence[response_pb2.Item], response_id: str, part: Part) -> Items:
    """The items of a part, each with its head; one without an id of its own is given one."""
    if len(messages) > MAX_ITEMS:
        raise invalid(name, f"has {len(messages)} items; the limit is {MAX_ITEMS}")
    heads: list[Head] = []
    bodies: list[str] = []
    for index, message in enumerate(messages):
        text = message.json
        heads.append(_head(f"{name}[{index}]", message, text, response_id, part, index))
        bodies.append(text)
    return Items(heads, bodies)


def _head(name: str, message: response_pb2.Item, text: str, response_id: str, part: Part, index: int) -> Head:
    # A character has at most four bytes, so most texts need not be encoded to know that they fit.
    if len(text) * 4 > MAX_ITEM_BYTES and len(text.encode()) > MAX_ITEM_BYTES:
        raise invalid(f"{name}.json", f"has {len(text.encode())} bytes; the limit is {MAX_ITEM_BYTES}")
    if not text:
        raise invalid(f"{name}.json", "is required")
    try:
        head = read_head(text)
    except InvalidItemError as error:
        raise invalid(f"{name}.json", str(error)) from None
    if not head.id:
        given = given_id(response_id, part, index)
        # An approval request is answered by its id, so one that is given an id is paired by it.
        head = head._replace(id=given, call=given if head.type == "mcp_approval_request" else head.call)
    if message.id and message.id != head.id:
        raise invalid(f"{name}.id", "differs from the id in the item's JSON: leave it empty")
    if message.type and message.type != head.type:
        raise invalid(f"{name}.type", "differs from the type in the item's JSON: leave it empty")
    return head


def given_id(response_id: str, part: Part, index: int) -> str:
    """The id of an item that has none of its own: the same for the same place, so that a repeated write agrees."""
    name = f"{response_id}\n{part.name}\n{index}".encode()
    return f"item_{hashlib.sha256(name).hexdigest()[:32]}"


def question(request: rpc.ResolveHistoryRequest, default: Policy) -> Question:
    """What a ResolveHistory wants of its line."""
    limit = request.limit if request.HasField("limit") else None
    if limit is not None and limit < 0:
        raise invalid("limit", "is negative; leave it unset for everything")
    if request.limit_unit not in _LIMIT_UNITS:
        raise invalid("limit_unit", f"has the unknown value {request.limit_unit}")
    if request.view not in _VIEWS:
        raise invalid("view", f"has the unknown value {request.view}")
    if len(request.answered_call_ids) > MAX_ANSWERED:
        raise invalid(
            "answered_call_ids", f"has {len(request.answered_call_ids)} entries; the limit is {MAX_ANSWERED}"
        )
    for index, call_id in enumerate(request.answered_call_ids):
        if not call_id:
            raise invalid(f"answered_call_ids[{index}]", "is empty")
    return Question(
        policy(request.policy, default) if request.HasField("policy") else default,
        limit,
        LimitUnit(request.limit_unit or LimitUnit.ITEMS),
        frozenset(map(pairing_key, request.answered_call_ids)),
        bool(request.answered_call_ids),
    )


def policy(message: replay_pb2.ReplayPolicy, default: Policy) -> Policy:
    """A policy; what is unset is the server's default."""
    for name, values in (
        ("cancelled", TurnRule),
        ("incomplete", TurnRule),
        ("in_flight", TurnRule),
        ("tool_items", ToolItems),
        ("limit_cut", LimitCut),
    ):
        value = getattr(message, name)
        if value and value not in set(map(int, values)):
            raise invalid(f"policy.{name}", f"has the unknown value {value}")
    in_flight = TurnRule(message.in_flight) if message.in_flight else default.in_flight
    if in_flight not in {TurnRule.INCLUDE, TurnRule.EXCLUDE}:
        raise invalid("policy.in_flight", "can be INCLUDE or EXCLUDE: a turn that runs has no final output")
    return Policy(
        TurnRule(message.cancelled) if message.cancelled else default.cancelled,
        TurnRule(message.incomplete) if message.incomplete else default.incomplete,
        in_flight,
        ToolItems(message.tool_items) if message.tool_items else default.tool_items,
        LimitCut(message.limit_cut) if message.limit_cut else default.limit_cut,
    )


def page_size(value: int) -> int:
    """How many entries a page has at the most."""
    if value < 0:
        raise invalid("page_size", "is negative; 0 means the default")
    return min(value or DEFAULT_PAGE, MAX_PAGE)


def only_one(names: Iterable[str], values: Iterable[str]) -> None:
    """Exactly one of these fields has to be given."""
    given = [name for name, value in zip(names, values, strict=True) if value]
    joined = " or ".join(names)
    if not given:
        raise invalid(joined.split(" ")[0], f"is required, or another one of {joined}")
    if len(given) > 1:
        raise invalid(given[-1], f"must be the only one given of {joined}")
