"""Two servers beside each other: each kind of call on both in alternation, alone and many at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.calls import Row
from tests.bench.measuring import Progress, Sample, Target, in_turns, ratio, run
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import response_pb2

MOST_MEDIAN = 1.3
"""Bound: the service's median to the floor's, one call at a time."""
LEAST_RATE = 0.8
"""Bound: the service's calls a second to the floor's, with `CALLERS`."""
CALLERS = 32
"""Callers at a time for which that bound is meant."""


class UnlikeError(Exception):
    """The two sides do not answer alike, so comparing what they take would mean nothing."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int = 6
    seconds: float = 0.35
    """Of one round: short, so that what else the machine does strikes both sides alike."""
    callers: int = CALLERS
    """Of many at a time."""
    calls_alone: int = 500
    calls_at_once: int = 50
    """Writes that one caller can make in a round, alone or as one of many."""


@dataclass(frozen=True)
class Compared:
    """One kind of call on both sides."""

    title: str
    sides: tuple[str, str]
    samples: Mapping[int, Mapping[str, Sample]]
    """By the number of callers and the side."""

    def median_ratio(self, callers: int) -> float:
        """The first side's median to the second's."""
        first, second = (self.samples[callers][side] for side in self.sides)
        return ratio(first, second, lambda sample: sample.median)

    def add(self, other: "Compared") -> None:
        """Takes in the rounds of another pass over the same calls."""
        for callers, by_side in other.samples.items():
            for side, sample in by_side.items():
                for one in sample.rounds:
                    self.samples[callers][side].add(one)

    @property
    def most_callers(self) -> int:
        """How many callers there were at the most."""
        return max(self.samples)

    def rate_ratio(self, callers: int) -> float:
        """The first side's calls a second to the second's."""
        first, second = (self.samples[callers][side] for side in self.sides)
        return ratio(first, second, lambda sample: sample.rate)


async def compare(row: Row, sides: tuple[Target, Target], effort: Effort, progress: Progress) -> Compared:
    """Measures one kind of call on both sides."""
    samples: dict[int, dict[str, Sample]] = {}
    await _check_alike(row, sides)
    for callers in (1, effort.callers):
        progress(f"{row.title}, {callers} at a time")
        calls = effort.calls_alone if callers == 1 else effort.calls_at_once
        samples[callers] = {side.title: Sample() for side in sides}
        for side in sides:  # connections, caches, code that has never run
            supply = await row.supply(side.title, callers, calls)
            await run(side, row.method, supply, effort.seconds)
        for side in in_turns(sides, effort.rounds):
            supply = await row.supply(side.title, callers, calls)
            samples[callers][side.title].add(await run(side, row.method, supply, effort.seconds))
    return Compared(row.title, (sides[0].title, sides[1].title), samples)


async def _check_alike(row: Row, sides: Sequence[Target]) -> None:
    answers = []
    for side in sides:
        (requests,) = await row.supply(side.title, 1, 1)
        reply = getattr(rpc, f"{row.method}Response").FromString(await side.call(row.method, next(requests)))
        if isinstance(reply, rpc.StoreResponseResponse):
            _forget_names(reply.response)
        answers.append(reply)
    if answers[0] != answers[1]:
        raise UnlikeError(
            f"{row.title}: {sides[0].title} answers {answers[0]}, {sides[1].title} {answers[1]}"
        )


def _forget_names(response: response_pb2.Response) -> None:
    """Takes out what two writes have each of their own; that it is there at all stays."""
    for name in ("id", "conversation_id", "previous_response_id"):
        if getattr(response, name):
            setattr(response, name, "some")
    for item in (*response.input_items, *response.output_items):
        item.id = "some" if item.id else ""
    for time in (response.create_time, response.update_time):
        time.seconds, time.nanos = min(1, time.seconds), 0


def figures(compared: Compared) -> dict[str, Any]:
    """For machines."""
    return {
        "title": compared.title,
        "samples": [
            {"callers": callers, "side": side, **sample.figures()}
            for callers, by_side in compared.samples.items()
            for side, sample in by_side.items()
        ],
        "ratios": [
            {
                "callers": callers,
                "median": compared.median_ratio(callers),
                "calls_per_second": compared.rate_ratio(callers),
            }
            for callers in compared.samples
        ],
    }
