"""Who is let in, whose turn it is, and what is told to those who are too many."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from turnstore_service.rpc import limits
from turnstore_service.rpc.errors import ApiError
from turnstore_service.rpc.limits import CallLimits

LONG = 60.0


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Callers:
    """Calls that come in, in the order in which they get their places."""

    def __init__(self, limits: CallLimits) -> None:
        self.limits = limits
        self.ran: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str, seconds: float = LONG) -> None:
        """Calls that all come now, one after the other. The namespace is what comes before the dash."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._call(name, seconds))
            await self.settle()

    async def _call(self, name: str, seconds: float) -> None:
        await self.limits.enter(name.partition("-")[0], seconds)
        self.ran.append(name)

    async def end(self, *names: str) -> None:
        """Calls that run are done."""
        for name in names:
            assert name in self.ran
            self.limits.leave(name.partition("-")[0])
            await self.settle()

    async def settle(self) -> None:
        """Lets everything happen that can."""
        for _ in range(5):
            await asyncio.sleep(0)

    def refusal(self, name: str) -> ApiError:
        """What was answered to a call that was refused."""
        error = self.tasks[name].exception()
        assert isinstance(error, ApiError)
        return error


@asynccontextmanager
async def _callers(limits: CallLimits) -> AsyncIterator[Callers]:
    callers = Callers(limits)
    yield callers
    for task in callers.tasks.values():
        task.cancel()
    await asyncio.gather(*callers.tasks.values(), return_exceptions=True)


def _names(namespace: str, count: int) -> list[str]:
    return [f"{namespace}-{number}" for number in range(count)]


async def test_calls_run_at_once_while_there_are_places() -> None:
    async with _callers(CallLimits(100, 50, 24)) as callers:
        await callers.come(*_names("a", 18), *_names("b", 4), "c-0", "d-0", "e-0")
        assert callers.ran == [*_names("a", 18), *_names("b", 4), "c-0", "d-0"]


async def test_one_namespace_does_not_get_all_places() -> None:
    async with _callers(CallLimits(100, 50, 24)) as callers:
        await callers.come(*_names("noisy", 30), "quiet-0", "other-0", "quiet-1")
        assert callers.ran == [*_names("noisy", 22), "quiet-0", "other-0"]


async def test_while_others_are_there_a_namespace_gets_few_places() -> None:
    clock = Clock()
    async with _callers(CallLimits(100, 50, 24, clock)) as callers:
        await callers.come(*_names("noisy", 30), "quiet-0")
        assert callers.ran == [*_names("noisy", 22), "quiet-0"]
        await callers.end(*_names("noisy", 18))
        assert callers.limits.running == 4 + 1
        await callers.end("noisy-18")
        assert callers.ran[-1] == "noisy-22"
        await callers.end("quiet-0")
        # Others are there for a second after their last call; then it is alone and has its share again.
        clock.now += 1.01
        await callers.end("noisy-19")
        assert callers.ran[-8:] == [f"noisy-{number}" for number in range(22, 30)]


async def test_call_that_comes_once_others_are_gone_lets_those_before_it_run_too() -> None:
    clock = Clock()
    async with _callers(CallLimits(100, 50, 4, clock)) as callers:
        await callers.come("a-0", "b-0", "a-1", "a-2")  # while there are several, one place each
        assert callers.ran == ["a-0", "b-0"]
        clock.now += 1.01
        await callers.come("a-3")
        assert set(callers.ran[2:]) == {"a-1", "a-2"}


async def test_namespace_with_too_many_runs_one_at_a_time_while_others_are_there() -> None:
    clock = Clock()
    async with _callers(CallLimits(100, 5, 24, clock)) as callers:
        await callers.come("quiet-0", *_names("noisy", 6))
        assert callers.refusal("noisy-5")
        assert callers.ran == ["quiet-0", *_names("noisy", 4)]
        await callers.end("noisy-0", "noisy-1", "noisy-2")
        await callers.come(*_names("quiet", 4)[1:])
        assert callers.ran[5:] == _names("quiet", 4)[1:], "the others have their share"
        await callers.end("noisy-3")
        assert callers.ran[-1] == "noisy-4"
        clock.now += 0.5
        await callers.come("quiet-4")
        clock.now += 0.6  # the refusal is long ago, and others are still there
        await callers.come("noisy-6", "noisy-7", "noisy-8", "noisy-9")
        assert callers.limits.running == 4 + 4


async def test_share_grows_though_no_call_comes_or_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SHARED_SECONDS", 0.01)
    async with _callers(CallLimits(100, 50, 4)) as callers:
        await callers.come("a-0", "b-0", "a-1", "a-2")  # while there are several, one place each
        async with asyncio.timeout(10):
            await asyncio.gather(callers.tasks["a-1"], callers.tasks["a-2"])
        assert callers.limits.running == 4


async def test_single_place_goes_round() -> None:
    async with _callers(CallLimits(100, 50, 1)) as callers:
        await callers.come("a-0", "a-1", "b-0")
        await callers.end("a-0", "b-0")
        assert callers.ran == ["a-0", "b-0", "a-1"]


async def test_calls_of_one_namespace_run_in_order() -> None:
    async with _callers(CallLimits(100, 50, 1)) as callers:
        await callers.come(*_names("a", 5))
        for name in _names("a", 4):
            await callers.end(name)
        assert callers.ran == _names("a", 5)


async def test_namespaces_that_wait_take_turns() -> None:
    async with _callers(CallLimits(100, 50, 3)) as callers:  # one place each
        await callers.come("a-0", "b-0", "c-0")
        await callers.come("a-1", "a-2", "b-1", "b-2", "d-0", "e-0", "d-1")
        assert callers.ran == ["a-0", "b-0", "c-0"]
        await callers.end("b-0")
        # However many wait in another namespace, the next place is the turn of whoever has waited for one.
        assert callers.ran[3:] == ["d-0"]
        await callers.end("a-0")
        assert callers.ran[4:] == ["e-0"]
        await callers.end("c-0")
        assert callers.ran[5:] == ["b-1"]
        await callers.end("e-0", "d-0", "b-1", "a-1")
        assert callers.ran[6:] == ["a-1", "d-1", "b-2", "a-2"]


async def test_too_many_of_a_namespace_are_refused_and_others_are_not() -> None:
    async with _callers(CallLimits(100, 5, 4)) as callers:
        await callers.come(*_names("a", 6), *_names("b", 5))
        error = callers.refusal("a-5")
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "UNSPECIFIED")
        assert error.metadata == {"limit_calls": "5"}
        assert error.retry_seconds is not None
        assert [name for name, task in callers.tasks.items() if task.done() and name not in callers.ran] == [
            "a-5"
        ]
        await callers.end("a-0")
        await callers.come("a-6")
        assert not callers.tasks["a-6"].done()


async def test_when_all_are_too_many_the_longest_line_gives_way() -> None:
    async with _callers(CallLimits(10, 9, 4)) as callers:
        await callers.come(*_names("a", 9), "b-0")  # 3 of a run, 6 wait; b runs
        await callers.come("b-1", "b-2", "c-0")  # all wait
        assert [name for name, task in callers.tasks.items() if task.done() and name not in callers.ran] == [
            "a-6",
            "a-7",
            "a-8",
        ]
        assert callers.refusal("a-8").code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert callers.limits.inside == 10
        # One more would make b's line as long as a's.
        await callers.come("b-3")
        assert callers.refusal("b-3").metadata == {"limit_calls": "10"}
        assert callers.limits.inside == 10


async def test_when_nobody_waits_the_newest_is_refused() -> None:
    async with _callers(CallLimits(2, 1, 8)) as callers:
        await callers.come("a-0", "b-0", "c-0")
        assert callers.refusal("c-0").code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await callers.end("a-0")
        await callers.come("c-1")
        assert callers.ran == ["a-0", "b-0", "c-1"]


async def test_call_waits_no_longer_than_its_deadline() -> None:
    async with _callers(CallLimits(100, 50, 1)) as callers:
        await callers.come("a-0")
        await callers.come("a-1", seconds=0.01)
        await asyncio.wait([callers.tasks["a-1"]], timeout=10)
        assert callers.refusal("a-1").code is grpc.StatusCode.DEADLINE_EXCEEDED
        await callers.come("a-2")
        await callers.end("a-0")
        assert callers.ran == ["a-0", "a-2"]
        assert (callers.limits.inside, callers.limits.running) == (1, 1)


async def test_caller_who_goes_away_leaves_no_gap() -> None:
    async with _callers(CallLimits(100, 50, 1)) as callers:
        await callers.come("a-0", "a-1", "a-2", "b-0")
        callers.tasks["a-1"].cancel()
        callers.tasks["b-0"].cancel()
        await callers.end("a-0")
        assert callers.ran == ["a-0", "a-2"]
        await callers.end("a-2")
        assert (callers.limits.inside, callers.limits.running) == (0, 0)


async def test_caller_who_goes_away_with_its_place_hands_it_on() -> None:
    async with _callers(CallLimits(100, 50, 1)) as callers:
        await callers.come("a-0", "a-1", "a-2")
        callers.limits.leave("a")  # a-1 has its place now, and has not seen it
        callers.tasks["a-1"].cancel()
        await callers.settle()
        assert callers.ran == ["a-0", "a-2"]
        assert (callers.limits.inside, callers.limits.running) == (1, 1)


async def test_caller_who_has_just_gone_is_not_refused_too() -> None:
    async with _callers(CallLimits(4, 3, 1)) as callers:
        await callers.come("a-0", "a-1", "a-2", "b-0")
        callers.tasks["a-2"].cancel()
        with pytest.raises(ApiError):  # room is made a moment later
            await callers.limits.enter("c", LONG)
        await callers.settle()
        assert callers.limits.inside == 3


async def test_refused_callers_come_back_one_by_one() -> None:
    clock = Clock()
    async with _callers(CallLimits(100, 1, 1, clock)) as callers:
        await callers.come("a-0")

        async def told() -> float:
            with pytest.raises(ApiError) as refusal:
                await callers.limits.enter("a", LONG)
            assert refusal.value.retry_seconds is not None
            return refusal.value.retry_seconds

        assert [await told() for _ in range(3)] == pytest.approx([0.05, 0.06, 0.07])
        clock.now += 0.01
        assert await told() == pytest.approx(0.07)
        for _ in range(2000):
            await told()
        assert await told() == pytest.approx(10)
        clock.now += 30
        assert await told() == pytest.approx(0.05)


async def test_nothing_is_kept_of_namespaces_without_calls() -> None:
    async with _callers(CallLimits(3, 2, 1)) as callers:
        for number in range(100):
            await callers.limits.enter(f"n{number}", LONG)
            callers.limits.leave(f"n{number}")
        await callers.come("a-0", "a-1", "b-0")
        for number in range(100):
            with pytest.raises(ApiError):
                await callers.limits.enter(f"n{number}", LONG)
        assert len(callers.limits._lines) <= 2


@pytest.mark.parametrize("places", [1, 2, 5])
async def test_counts_hold_whatever_happens(places: int) -> None:
    """Many calls of many namespaces, some of which go away, end with nobody inside and all places free."""
    limits = CallLimits(20, 8, places)
    most = 0

    async def call(number: int) -> None:
        nonlocal most
        namespace = f"n{number % 5}"
        try:
            await limits.enter(namespace, 0.0 if number % 7 == 0 else LONG)
        except ApiError:
            return
        most = max(most, limits.running)
        try:
            await asyncio.sleep(0)
        finally:
            limits.leave(namespace)

    tasks = []
    for number in range(600):
        tasks.append(asyncio.create_task(call(number)))
        if number % 17 == 0:
            await asyncio.sleep(0)
        if number % 11 == 0:
            tasks[number // 2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (limits.inside, limits.running, dict(limits._lines)) == (0, 0, {})
    assert most == places
