"""A service that goes away and comes back while clients call it."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.both_clients import KINDS, client_of
from tests.conftest import StartService
from tests.service_process import ServiceProcess
from turnstore import Response

CALLS = 1000
AT_ONE_TIME = 8
EMBEDDED = {"TURNSTORE_MONGODB_URI": None}

ENDINGS: dict[str, Callable[[ServiceProcess], object]] = {
    "SIGTERM": ServiceProcess.terminate,
    "SIGKILL": ServiceProcess.kill,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
async def test_no_call_of_a_thousand_fails(
    kind: str, end: Callable[[ServiceProcess], object], start_service: StartService
) -> None:
    service = start_service(EMBEDDED).wait_ready()
    target = service.target
    numbers = itertools.count()
    half_way = asyncio.Event()

    async def call_in_turn(client: Any) -> None:
        while (number := next(numbers)) < CALLS:
            if number == CALLS // 2:
                half_way.set()
            if number % 2:
                await client.resolve_history(conversation_id="conv_1", limit=20)
            else:
                turn = Response(f"resp_{number}", conversation_id="conv_1", input_items=[{"type": "message"}])
                assert (await client.store_response(turn, expected_revision=0)).revision == 1

    def restart() -> None:
        end(service)
        start_service({**EMBEDDED, "TURNSTORE_LISTEN": target}).wait_ready()

    # The restart takes seconds, more on a machine that is busy.
    async with client_of(kind, target, timeout=40) as client:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONE_TIME):
                tasks.create_task(call_in_turn(client))
            await half_way.wait()
            await asyncio.to_thread(restart)
        turns = [turn async for turn in client.list_responses(conversation_id="conv_1")]
    assert sorted(turn.id for turn in turns) == sorted(f"resp_{number}" for number in range(0, CALLS, 2))
    assert [turn.place for turn in turns] == list(range(1, CALLS // 2 + 1))
    assert {turn.revision for turn in turns} == {1}
