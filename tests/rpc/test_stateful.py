"""Random sequences of all calls over a real channel, compared with the model call by call."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import grpc
import pytest

from tests.sequences import (
    Call,
    Side,
    comparable,
    difference,
    interrupted_reading,
    model_side,
    sequence,
    shortest,
    texts_of,
)
from tests.service_driver import ServiceDriver
from tests.service_process import service_in_process

BRIEF, BRIEF_IN_PAGES, BRIEF_INTERRUPTED = 60, 15, 30
DEEP = int(os.environ.get("TURNSTORE_TEST_SEQUENCES", "2000"))
# Several at a time keep both the service and the test busy.
AT_ONCE = 8
# The least that the setting takes, and items so large that a history of a few turns is above it.
SMALL_REPLY = 64 * 1024
PADDING = 50_000


@pytest.fixture
async def small_reply_channel(mongodb_uri: str, database_name: str) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a service that answers in small pages."""
    async with service_in_process(
        mongodb_uri=mongodb_uri, mongodb_database=database_name, max_reply_bytes=SMALL_REPLY
    ) as service:
        yield service.channel


def _service_side(channel: grpc.aio.Channel) -> Side:
    """The service, in a namespace in which nothing is stored."""
    return Side(ServiceDriver(channel, namespace=f"sequence-{uuid.uuid4()}"))


async def _some_at_once(numbers: range, work: Callable[[int], Awaitable[None]]) -> None:
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


async def _compare(channel: grpc.aio.Channel, seeds: range, padding: int = 0) -> None:
    """Plays the sequences of these numbers, and tells of the first that differs in as few calls as will do."""

    async def differs(calls: Sequence[Call]) -> str:
        return await difference(calls, model_side(), _service_side(channel))

    async def compare(seed: int) -> None:
        calls = sequence(seed, padding)
        if await differs(calls):
            fewer, told = await shortest(calls, differs)
            steps = "\n".join(f"  {number}: {call}" for number, call in enumerate(fewer))
            pytest.fail(f"sequence {seed} differs, in {len(fewer)} calls:\n{steps}\n{told}", pytrace=False)

    await _some_at_once(seeds, compare)


async def _interrupt(channel: grpc.aio.Channel, seeds: range) -> None:
    """Reads histories in pages while something changes: each is whole and of one moment, or refused."""
    outcomes: dict[str, int] = {"read on": 0, "refused": 0}

    async def interrupt(seed: int) -> None:
        sketch = interrupted_reading(seed, PADDING)
        model, service = model_side(), _service_side(channel)
        told = await difference(sketch.before, model, service)
        assert not told, f"reading {seed} differs before it begins: {told}"
        first = await model.answer(sketch.reading)
        changed = []

        async def change() -> None:
            told = await difference([sketch.change], model, service)
            assert not told, f"reading {seed} differs where it is interrupted: {told}"
            changed.append(True)

        actual = await service.answer(sketch.reading, between=change)
        if not changed:
            return
        if isinstance(actual, tuple):
            outcomes["refused"] += 1
            # Beginning again tells of a parent that is gone in any case.
            allowed = {("ABORTED", "HISTORY_CHANGED")}
            if sketch.deletes_parent:
                allowed.add(("NOT_FOUND", "PARENT_NOT_FOUND"))
            assert actual[1:3] in allowed, f"reading {seed}: {actual}"
            assert not sketch.adds, f"reading {seed} is refused because of a later turn"
            return
        outcomes["read on"] += 1
        texts = texts_of(sketch.before)
        expected, joined = comparable(first, actual, texts)
        assert joined == expected, f"reading {seed} has joined pages of different histories"
        if not sketch.adds:
            # The deletion of a turn that gave nothing changes a flag and no item: reading on is right.
            _, now = comparable(first, await model.answer(sketch.reading), texts)
            assert now["items"] == expected["items"], f"reading {seed} is out of date"

    await _some_at_once(seeds, interrupt)
    assert min(outcomes.values()) >= len(seeds) // 10, f"too few readings were interrupted: {outcomes}"


async def test_random_sequences_answer_as_the_model(history_channel: grpc.aio.Channel) -> None:
    await _compare(history_channel, range(BRIEF))


async def test_random_sequences_in_pages_answer_as_the_model(small_reply_channel: grpc.aio.Channel) -> None:
    await _compare(small_reply_channel, range(BRIEF_IN_PAGES), PADDING)


async def test_a_history_that_changes_between_its_pages(small_reply_channel: grpc.aio.Channel) -> None:
    await _interrupt(small_reply_channel, range(BRIEF_INTERRUPTED))


@pytest.mark.deep
@pytest.mark.timeout(7200)
async def test_many_random_sequences_answer_as_the_model(history_channel: grpc.aio.Channel) -> None:
    await _compare(history_channel, range(BRIEF, BRIEF + DEEP))


@pytest.mark.deep
@pytest.mark.timeout(7200)
async def test_many_random_sequences_in_pages(small_reply_channel: grpc.aio.Channel) -> None:
    await _compare(small_reply_channel, range(BRIEF_IN_PAGES, BRIEF_IN_PAGES + DEEP // 10), PADDING)


@pytest.mark.deep
@pytest.mark.timeout(7200)
async def test_many_histories_that_change_between_their_pages(small_reply_channel: grpc.aio.Channel) -> None:
    await _interrupt(small_reply_channel, range(BRIEF_INTERRUPTED, BRIEF_INTERRUPTED + DEEP // 10))
