"""Random sequences of all calls over a real channel, compared with the model call by call."""

import asyncio
import os
import uuid
from collections.abc import Sequence

import grpc
import pytest

from tests.sequences import Call, difference, sequence, shortest
from tests.service_driver import ServiceDriver

BRIEF = 60
DEEP = int(os.environ.get("TURNSTORE_TEST_SEQUENCES", "2000"))
AT_ONCE = 8


async def _compare(channel: grpc.aio.Channel, seeds: range) -> None:
    """Plays the sequences of these numbers, some at once, each in a namespace of its own."""

    async def differs(calls: Sequence[Call]) -> str:
        return await difference(calls, ServiceDriver(channel, namespace=f"sequence-{uuid.uuid4()}"))

    waiting = iter(seeds)

    async def worker() -> None:
        for seed in waiting:
            calls = sequence(seed)
            if await differs(calls):
                fewer, told = await shortest(calls, differs)
                steps = "\n".join(f"  {number}: {call}" for number, call in enumerate(fewer))
                pytest.fail(
                    f"sequence {seed} differs, in {len(fewer)} calls:\n{steps}\n{told}", pytrace=False
                )

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


async def test_random_sequences_answer_as_the_model(history_channel: grpc.aio.Channel) -> None:
    await _compare(history_channel, range(BRIEF))


@pytest.mark.deep
@pytest.mark.timeout(7200)
async def test_many_random_sequences_answer_as_the_model(history_channel: grpc.aio.Channel) -> None:
    await _compare(history_channel, range(BRIEF, BRIEF + DEEP))
