"""How many calls are taken at one time, and whose turn it is.

A call that is let in either runs or waits for a place to run in. Places are few (calls that run side by side
share a processor, so more of them only make each slower) and go round the namespaces that wait, one call of
each in turn. A namespace never gets all of them, and only a few while others are there: if it floods the
service, its calls wait for one another, and those of others are let through. What is too much is refused with
the time at which it may come back.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from fractions import Fraction

from turnstore_service.rpc.errors import too_many_calls, waited_too_long

SHARE_OF_ONE = Fraction(11, 12)
"""The part of the places that a namespace may take while it is the only one: nearly all, since the database makes
writes durable together, and the more of them there are, the less each costs. The rest is free for others, also
while its calls are slow."""
SHARE_OF_SEVERAL = Fraction(1, 6)
"""The part that it may take while others are there. Calls of all share one processor, and each takes the longer
the more of them run: so few leave the others about as fast as they are alone, and get most of its speed."""
SHARE_OF_OVERFLOWING = Fraction(1, 24)
"""The part that it may take while others are there and it has more calls than its limit: one place of the default
number. What it sends fills the event loop, in which the calls of others wait before they are seen here, and the
fewer of them run, the shorter is that wait."""
SHARED_SECONDS = 1.0
"""How long others count as being there after a call of theirs, and a namespace as having too many after a refusal."""

_OF_ONE = "of this namespace (TURNSTORE_MAX_CALLS_PER_NAMESPACE)"
_OF_ALL = "of all namespaces (TURNSTORE_MAX_CALLS)"

RETURN_SPACING_SECONDS = 0.01
"""Between the times that refused calls of a namespace are told to come back at. Refusing takes a fraction of a
millisecond, so however many callers there are, their returning costs a few percent of a processor."""
SHORTEST_RETURN_SECONDS = 0.05
LONGEST_RETURN_SECONDS = 10.0
"""A caller who is told longer would rather give up: the deadlines of most are shorter."""


class _Line:
    """The calls of one namespace. It lasts as long as there are any, so callers cannot make memory grow."""

    __slots__ = ("in_turns", "inside", "next_return", "overflowing_until", "running", "waiting")

    def __init__(self) -> None:
        self.inside = 0
        self.running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.in_turns = False
        self.next_return = 0.0
        self.overflowing_until = float("-inf")


class CallLimits:
    """Lets calls in, in one event loop."""

    def __init__(
        self,
        most: int,
        most_of_one: int,
        places: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nobody is in yet.

        Args:
            most: Calls in all, running and waiting.
            most_of_one: Calls of one namespace.
            places: Calls that run at one time.
            clock: Tells seconds.
        """
        self._most = most
        self._most_of_one = most_of_one
        self._places = min(places, most)
        self._share_of_one = max(1, int(self._places * SHARE_OF_ONE))
        self._share_of_several = max(1, int(self._places * SHARE_OF_SEVERAL))
        self._share_of_overflowing = max(1, int(self._places * SHARE_OF_OVERFLOWING))
        self._clock = clock
        self._lines: dict[str, _Line] = {}
        # While calls of different namespaces alternate, the service is shared.
        self._last: str | None = None
        self._shared_until = float("-inf")
        # Namespaces that wait and may run one more, in the order of their turns.
        self._turns: deque[_Line] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.inside = 0
        """Calls that were let in and are not done."""
        self.running = 0
        """Calls that run."""

    async def enter(self, namespace: str, seconds: float | None) -> None:
        """Returns when the call may run; `leave` has to follow.

        Args:
            namespace: Whose call it is.
            seconds: How long it may wait. None: until its task is cancelled, as it is at the caller's deadline.

        Raises:
            ApiError: RESOURCE_EXHAUSTED when there are too many calls; DEADLINE_EXCEEDED after `seconds`.
        """
        line = self._lines.get(namespace)
        if line is None:
            line = _Line()
        if line.inside >= self._most_of_one:
            line.overflowing_until = self._clock() + SHARED_SECONDS
            raise too_many_calls(self._return_seconds(line), self._most_of_one, _OF_ONE)
        if self.inside >= self._most:
            self._make_room(line)
        if not line.inside:
            self._lines[namespace] = line
        line.inside += 1
        self.inside += 1
        if namespace != self._last:
            if self._last is not None:
                self._shared_until = self._clock() + SHARED_SECONDS
            self._last = namespace
        if not line.waiting and self.running < self._places and line.running < self._share(line):
            line.running += 1
            self.running += 1
            return
        await self._wait(namespace, line, seconds)

    def leave(self, namespace: str) -> None:
        """The call is done: its place goes to the next."""
        line = self._lines[namespace]
        line.running -= 1
        self.running -= 1
        self._count_out(namespace, line)
        self._queue(line)
        self._give_places()

    async def _wait(self, namespace: str, line: _Line, seconds: float | None) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(place)
        self._queue(line)
        self._give_places()
        self._look_again_later()
        try:
            async with asyncio.timeout(seconds):
                await place
        except (asyncio.CancelledError, TimeoutError) as error:
            if place in line.waiting:
                line.waiting.remove(place)
            if place.cancelled():
                self._count_out(namespace, line)
            elif place.exception() is None:  # the place came at the last moment
                self.leave(namespace)
            if isinstance(error, TimeoutError):
                raise waited_too_long() from None
            raise

    def _queue(self, line: _Line) -> None:
        if line.waiting and not line.in_turns and line.running < self._share(line):
            line.in_turns = True
            self._turns.append(line)

    def _share(self, line: _Line) -> int:
        now = self._clock()
        if now >= self._shared_until:
            return self._share_of_one
        return self._share_of_overflowing if now < line.overflowing_until else self._share_of_several

    def _give_places(self) -> None:
        while self._turns and self.running < self._places:
            line = self._turns.popleft()
            line.in_turns = False
            while line.waiting and line.running < self._share(line):
                place = line.waiting.popleft()
                if not place.done():  # else its caller has just gone away
                    place.set_result(None)
                    line.running += 1
                    self.running += 1
                    break
            self._queue(line)

    def _look_again_later(self) -> None:
        """Shares grow as time passes, also while no call comes or ends."""
        if self._timer is None and any(line.waiting for line in self._lines.values()):
            self._timer = asyncio.get_running_loop().call_later(SHARED_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        for line in self._lines.values():
            self._queue(line)
        self._give_places()
        self._look_again_later()

    def _make_room(self, line: _Line) -> None:
        """Refuses the newest call of the namespace with the most waiting ones, or else the one that comes."""
        longest = max(self._lines.values(), key=lambda other: len(other.waiting))
        if len(longest.waiting) <= len(line.waiting) + 1:
            raise too_many_calls(self._return_seconds(line), self._most, _OF_ALL)
        place = longest.waiting.pop()
        if place.done():  # its caller has just gone away, and it will count itself out
            raise too_many_calls(self._return_seconds(line), self._most, _OF_ALL)
        longest.overflowing_until = self._clock() + SHARED_SECONDS
        longest.inside -= 1  # not its last: others wait
        self.inside -= 1
        place.set_exception(too_many_calls(self._return_seconds(longest), self._most, _OF_ALL))

    def _count_out(self, namespace: str, line: _Line) -> None:
        line.inside -= 1
        self.inside -= 1
        if not line.inside:
            del self._lines[namespace]

    def _return_seconds(self, line: _Line) -> float:
        """When a refused call may come back. Each is given a time of its own, so they do not all come at once."""
        now = self._clock()
        earliest = max(line.next_return + RETURN_SPACING_SECONDS, now + SHORTEST_RETURN_SECONDS)
        line.next_return = min(earliest, now + LONGEST_RETURN_SECONDS)
        return line.next_return - now
