"""A service that is killed in the middle of a deletion: the next one completes it, and nothing of it comes back."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pymongo
import pytest

from tests.conftest import StartService
from tests.faults.calls import MIB, Caller, Refusal, item
from tests.service_process import ServiceProcess
from tests.storage.turns import Raw
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import response_pb2

MARKER = "said-in-confidence"
TURNS = 30
OPTIONS = [("grpc.max_receive_message_length", -1)]
DIES_AFTER = 11
"""Responses that are erased before the process dies: some of each kind."""

MORTAL = f"""
import os, signal
from turnstore_service.storage.mongo.erasing import Erasing

erase, erased = Erasing._erase, 0

async def erase_and_die(self, *arguments):
    global erased
    done = await erase(self, *arguments)
    erased += 1
    if erased == {DIES_AFTER}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

Erasing._erase = erase_and_die
"""
"""Run by Python before the service."""


async def _say(caller: Caller) -> list[str]:
    """Turns in a conversation, branches out of it, failed and large ones; their ids."""
    ids = []
    for number in range(TURNS):
        size = 9 * MIB if number % 10 == 3 else 200
        kind: dict[str, Any] = (
            {"conversation_id": "c"} if number % 3 else {"previous_response_id": ids[-1]} if ids else {}
        )
        status = (
            response_pb2.RESPONSE_STATUS_FAILED if number % 7 == 5 else response_pb2.RESPONSE_STATUS_COMPLETED
        )
        answer = await caller.store(
            f"r{number}",
            status=status,
            input_items=[item(f"{MARKER}-{number}", size)],
            payload_json=json.dumps({"text": MARKER}),
            **kind,
        )
        assert not isinstance(answer, Refusal), answer
        ids.append(f"r{number}")
    return ids


async def _readable(caller: Caller, ids: list[str]) -> set[str]:
    """Which responses any call still tells of."""
    found = set()
    for response_id in ids:
        for method, message in (
            ("GetResponse", rpc.GetResponseRequest(scope=caller.scope, response_id=response_id)),
            ("ListInputItems", rpc.ListInputItemsRequest(scope=caller.scope, response_id=response_id)),
            (
                "ResolveHistory",
                rpc.ResolveHistoryRequest(scope=caller.scope, previous_response_id=response_id, limit=1),
            ),
            (
                "ListResponses",
                rpc.ListResponsesRequest(scope=caller.scope, previous_response_id=response_id, page_size=1),
            ),
        ):
            answer = await caller.call(method, message)
            if not isinstance(answer, Refusal):
                found.add(response_id)
            else:
                assert answer.code == "NOT_FOUND", answer
    items = rpc.BatchGetItemsRequest(
        scope=caller.scope, item_ids=[f"{MARKER}-{name[1:]}" for name in ids if int(name[1:]) % 10 != 3]
    )
    for one in (await caller.call("BatchGetItems", items)).items:
        if one.found:
            found.add(f"r{one.item.id.rpartition('-')[2]}")
    return found


@pytest.mark.parametrize("method", ["DeleteUserData", "DeleteConversation"])
async def test_deletion_that_was_killed_is_completed_by_the_next(
    start_service: StartService, mongodb_uri: str, database_name: str, tmp_path: Path, method: str
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(MORTAL)
    paths = [str(tmp_path / "site"), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])]
    mortal = start_service({"PYTHONPATH": ":".join(paths)}).wait_ready()
    request = {
        "DeleteUserData": lambda scope: rpc.DeleteUserDataRequest(scope=scope),
        "DeleteConversation": lambda scope: rpc.DeleteConversationRequest(scope=scope, conversation_id="c"),
    }[method]
    async with grpc.aio.insecure_channel(mortal.target, options=OPTIONS) as channel:
        caller = Caller(channel)
        ids = await _say(caller)
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await getattr(caller.stub, method)(request(caller.scope))
        assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    assert mortal.wait_ended() == -signal.SIGKILL
    gone = set(ids) if method == "DeleteUserData" else {name for name in ids if int(name[1:]) % 3}
    service = start_service(migrate=False).wait_ready()
    await _check(service, ids, gone, method, request)
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri) as client:
        raw = Raw(client, database_name)
        assert raw.chunks() == raw.named_chunks()
        if method == "DeleteUserData":
            assert raw.holding(MARKER) == []
        for response_id in gone:
            (left,) = raw.responses(id=response_id)
            assert MARKER not in repr(left)


async def _check(
    service: ServiceProcess, ids: list[str], gone: set[str], method: str, request: Callable[[Any], Any]
) -> None:
    """What was erased is gone, the rest is there; then the same deletion again, and late writes."""
    async with grpc.aio.insecure_channel(service.target, options=OPTIONS) as channel:
        caller = Caller(channel)
        left = await _readable(caller, ids)
        assert len(left) == len(ids) - DIES_AFTER
        answer = await caller.call(method, request(caller.scope))
        assert answer.receipt.responses == len(gone) - DIES_AFTER
        assert await _readable(caller, ids) == set(ids) - gone
        for response_id in gone:
            late = await caller.store(response_id, output_items=[item("late")])
            assert isinstance(late, Refusal)
            assert late.reason == "RESPONSE_NOT_FOUND"
        assert (await caller.call(method, request(caller.scope))).receipt.responses == 0
