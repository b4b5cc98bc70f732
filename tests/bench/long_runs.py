"""What takes long to show: many writers of one conversation, and whether a worker's memory grows."""

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc

from tests.bench.calls import create_request, get_request, resolve_request, update_request
from tests.bench.histories import SCOPE_MESSAGE, name
from tests.bench.measuring import Progress, Sample, Supply, Target, in_turns, run
from turnstore.v1 import history_service_pb2 as rpc

LEAST_CONTENDED = 1 / 3
"""Bound: writes a second of many writers on one conversation, to those of as many on a conversation each."""
MOST_GROWTH = 1.1
"""Bound: resident memory after many calls, to that after few."""


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    writers: int = 50
    rounds: int = 4
    seconds: float = 20.0
    """Of one round of writers."""
    few_calls: int = 20_000
    many_calls: int = 200_000
    callers: int = 16


@dataclass(frozen=True)
class Contention:
    """Writers of one conversation beside writers of a conversation each."""

    one: Sample
    each: Sample
    failures: list[str]

    @property
    def ratio(self) -> float:
        """Of the writes a second."""
        return self.one.rate / self.each.rate


@dataclass(frozen=True)
class Growth:
    """Resident memory of a worker."""

    few_calls: int
    few_bytes: int
    many_calls: int
    many_bytes: int

    @property
    def ratio(self) -> float:
        """How much it has grown."""
        return self.many_bytes / self.few_bytes


async def contend(service: Target, sizes: Sizes, progress: Progress) -> Contention:
    """Lets the writers append to one conversation, and to one each, in alternation."""
    numbers = itertools.count()
    samples = {"one": Sample(), "each": Sample()}
    failures: list[str] = []

    def writes(conversation_id: str) -> Iterator[bytes]:
        for number in numbers:
            yield create_request(name("resp", "contended", number), conversation_id).SerializeToString()

    for which in in_turns(("one", "each"), sizes.rounds):
        progress(
            f"{sizes.writers} writers, {'one conversation' if which == 'one' else 'a conversation each'}"
        )
        supply: Supply = [
            writes("contended" if which == "one" else f"contended {writer}")
            for writer in range(sizes.writers)
        ]
        try:
            samples[which].add(await run(service, "StoreResponse", supply, sizes.seconds))
        except* grpc.aio.AioRpcError as errors:
            failures.extend(str(error) for error in errors.exceptions)
        if failures:
            break
    return Contention(samples["one"], samples["each"], failures)


async def grow(service: Target, sizes: Sizes, progress: Progress) -> Growth:
    """Makes calls of all kinds, and looks at the worker's memory early and late."""
    progress(f"{sizes.few_calls:,} mixed calls")
    numbers = itertools.count()
    await _mixed_calls(service, sizes.callers, sizes.few_calls, numbers)
    few = service.resident_bytes
    progress(f"{sizes.many_calls:,} mixed calls")
    await _mixed_calls(service, sizes.callers, sizes.many_calls - sizes.few_calls, numbers)
    return Growth(sizes.few_calls, few, sizes.many_calls, service.resident_bytes)


async def _mixed_calls(service: Target, callers: int, calls: int, numbers: Iterator[int]) -> None:
    left = iter(range(calls))

    async def caller(seed: int) -> None:
        for (method, request), _ in zip(_calls(random.Random(seed), numbers), left, strict=False):
            await service.call(method, request)

    async with asyncio.TaskGroup() as group:
        for seed in range(callers):
            group.create_task(caller(seed))


def _calls(chance: random.Random, numbers: Iterator[int]) -> Iterator[tuple[str, bytes]]:
    """Writes and reads of line after line: conversations, and chains that fork now and then."""
    while True:
        line = f"mixed {next(numbers)}"
        chained = chance.random() < 0.5
        turns: list[str] = []
        for number in range(chance.randint(2, 40)):
            turn = name("resp", line, number)
            forks = chance.random() < 0.1
            parent = (chance.choice(turns) if forks else turns[-1]) if chained and turns else ""
            turns.append(turn)
            yield "StoreResponse", create_request(turn, "" if chained else line, parent).SerializeToString()
            yield _read(chance, "" if chained else line, turns)
            yield "StoreResponse", update_request(turn).SerializeToString()
            yield _read(chance, "" if chained else line, turns)


def _read(chance: random.Random, conversation_id: str, turns: Sequence[str]) -> tuple[str, bytes]:
    kind = chance.randrange(4)
    if kind == 0:
        return "GetResponse", get_request(chance.choice(turns)).SerializeToString()
    if kind == 1:
        request = rpc.ListResponsesRequest(
            scope=SCOPE_MESSAGE,
            conversation_id=conversation_id,
            previous_response_id="" if conversation_id else turns[-1],
        )
        return "ListResponses", request.SerializeToString()
    resolve = resolve_request(conversation_id, "" if conversation_id else turns[-1], full=kind == 2)
    return "ResolveHistory", resolve.SerializeToString()
