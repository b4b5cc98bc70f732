"""Making calls and timing them."""

import asyncio
import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

from turnstore.v1 import history_service_pb2 as rpc

SERVICE = rpc.DESCRIPTOR.services_by_name["HistoryService"].full_name
TOKEN = "of-the-callers-of-the-benchmark"
_METADATA = (("authorization", f"Bearer {TOKEN}"),)
DEADLINE = 60.0
"""Seconds after which a call is taken to hang."""
_TICKS = os.sysconf("SC_CLK_TCK")

Side = TypeVar("Side")
Supply = list[Iterator[bytes]]
"""Serialised requests: for each caller its own, in the order in which it makes them."""
Progress = Callable[[str], None]
"""Is told what begins."""


class Target:
    """A server process, over one channel. Messages stay bytes: the caller's own work would blur what is compared."""

    def __init__(self, title: str, address: str, pid: int) -> None:
        self.title = title
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._methods: dict[str, Any] = {}
        self._proc = Path("/proc") / str(pid)

    async def call(self, method: str, request: bytes) -> bytes:
        """Makes one call."""
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(f"/{SERVICE}/{method}")
        reply: bytes = await self._methods[method](request, timeout=DEADLINE, metadata=_METADATA)
        return reply

    async def close(self) -> None:
        """Ends the connection."""
        await self._channel.close()

    @property
    def processor_seconds(self) -> float:
        """Processor time that the process has had, by the kernel's clock of some milliseconds."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def resident_bytes(self) -> int:
        """Memory that the process has now."""
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@dataclass
class Sample:
    """What many calls took."""

    seconds: list[float] = field(default_factory=list)
    """Of each call."""
    elapsed: float = 0.0
    """Seconds in which they were made, at the concurrency that was asked for."""
    processor: float = 0.0
    """Processor seconds of the server in that time."""
    rounds: list["Sample"] = field(default_factory=list)
    """What was added."""

    def add(self, other: "Sample") -> None:
        """Takes in the calls of another round."""
        self.rounds.append(other)
        self.seconds.extend(other.seconds)
        self.elapsed += other.elapsed
        self.processor += other.processor

    @property
    def median(self) -> float:
        """Seconds of the call in the middle."""
        return statistics.median(self.seconds)

    @property
    def p99(self) -> float:
        """Seconds within which 99 of 100 calls were answered."""
        return sorted(self.seconds)[math.ceil(len(self.seconds) * 0.99) - 1]

    @property
    def rate(self) -> float:
        """Calls a second."""
        return len(self.seconds) / self.elapsed

    @property
    def processor_a_call(self) -> float:
        """Processor seconds of the server for one call, which other work on the machine blurs least."""
        return self.processor / len(self.seconds)

    def figures(self) -> dict[str, float]:
        """In milliseconds and calls a second, for machines."""
        return {
            "median_ms": self.median * 1000,
            "p99_ms": self.p99 * 1000,
            "calls_per_second": self.rate,
            "processor_ms_per_call": self.processor_a_call * 1000,
            "calls": len(self.seconds),
        }


def ratio(one: Sample, other: Sample, figure: Callable[[Sample], float]) -> float:
    """What is usual between rounds that followed each other: the median of their ratios.

    The machine is now faster, now slower, for seconds on end. A ratio of figures of all rounds would compare what
    was measured at different speeds.
    """
    rounds = zip(one.rounds or [one], other.rounds or [other], strict=True)
    return statistics.median(figure(first) / figure(second) for first, second in rounds)


async def run(target: Target, method: str, supply: Supply, seconds: float) -> Sample:
    """Makes calls, a caller for each part of the supply, until time or supply are at an end."""
    sample = Sample()

    async def caller(requests: Iterable[bytes]) -> None:
        for request in requests:
            began = time.perf_counter()
            await target.call(method, request)
            ended = time.perf_counter()
            sample.seconds.append(ended - began)
            if ended - start >= seconds:
                return

    gc.disable()
    try:
        processor = target.processor_seconds
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for requests in supply:
                group.create_task(caller(requests))
        sample.elapsed = time.perf_counter() - start
        sample.processor = target.processor_seconds - processor
    finally:
        gc.enable()
    return sample


def in_turns(sides: Sequence[Side], rounds: int) -> Iterator[Side]:
    """The sides in alternation, the last first in every other round, so that a drift strikes both alike."""
    for number in range(rounds):
        yield from sides if number % 2 == 0 else reversed(sides)
