"""When a call is made again, and how long a call may take. No I/O: the calls ask, and wait by themselves."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import grpc

from turnstore.errors import (
    ConversationLockedError,
    HistoryChangedError,
    LeaseLostError,
    RevisionMismatchError,
    ServiceUnreachableError,
    TurnstoreError,
)

FIRST_DELAY = 0.05
"""Seconds before the second try: about what a failover within a process takes."""

LONGEST_DELAY = 1.0
"""Seconds that a wait between tries grows to. A service that is back is found within about this time."""

MAX_RESTARTS = 5
"""How often paging begins again because the history changed. One that changes more often than that within
one call is written to faster than it can be read; the caller has to know."""

_NOT_REPEATED = (RevisionMismatchError, HistoryChangedError, ConversationLockedError, LeaseLostError)
"""Answers that the same request cannot mend: the caller has to decide anew, or paging to begin again."""


def delay_before_retry(
    error: TurnstoreError, attempt: int, jitter: float, *, wait_for_ready: bool
) -> float | None:
    """Return after how many seconds the call may be made again, or None if it must not be.

    Repeating is safe for every call of the service: reads change nothing, StoreResponse carries a
    `request_id`, and the others end in the same state however often they are made.

    Args:
        error: what the try ended in.
        attempt: how many tries were made, 1 after the first.
        jitter: a random number from 0 to 1, so that callers that failed together do not return together.
        wait_for_ready: whether a service that cannot be reached is waited for.
    """
    if isinstance(error, _NOT_REPEATED):
        return None
    if isinstance(error, ServiceUnreachableError):
        if not wait_for_ready:
            return None
    elif error.code is grpc.StatusCode.UNAVAILABLE:
        pass
    elif error.code in {grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED}:
        # These two are worth repeating only where the service says when.
        if error.retry_delay is None:
            return None
    else:
        return None
    delay = backoff(attempt, jitter)
    if error.retry_delay is None:
        return delay
    # Never before the time that the service named, and not all callers at that very moment.
    return max(delay, error.retry_delay * (1 + jitter / 4))


def backoff(attempt: int, jitter: float) -> float:
    """Return the seconds between this try and the next: they double up to `LONGEST_DELAY`, and jitter (0 to
    1) takes away up to half of them.
    """
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(attempt - 1, 10)) * (1 - jitter / 2)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment by which a call, with all its tries and pages, is over."""

    timeout: float
    """Seconds that the whole call may take."""

    end: float
    """The moment, on the monotonic clock."""

    @classmethod
    def after(cls, timeout: float) -> Deadline:
        """Return the deadline that is `timeout` seconds away.

        Raises:
            ValueError: the time is not above zero.
        """
        if not timeout > 0:
            raise ValueError(f"a timeout is a number of seconds above zero, not {timeout!r}")
        return cls(timeout, time.monotonic() + timeout)

    def remaining(self) -> float:
        """Return the seconds that are left, at least a millisecond: gRPC takes 0 for "no deadline"."""
        return max(0.001, self.end - time.monotonic())

    def elapsed(self) -> float:
        """Return the seconds that have passed since the call began."""
        return time.monotonic() - (self.end - self.timeout)

    def for_try(self) -> float:
        """Return the seconds that a try may take: a little is kept to find out why nothing answered."""
        return max(0.001, self.remaining() - min(0.2, self.timeout / 10))


def jitter() -> float:
    """Return a random number from 0 to 1."""
    return random.random()  # noqa: S311 - it spreads load and protects nothing
