"""What the parts of the service tell whoever counts: a Protocol, so that none of them knows of metrics."""

from collections.abc import Mapping
from typing import Protocol

from turnstore_service.replay.values import Reason, Status


class Observer(Protocol):
    """Is told what happens. Its methods are called often and must be quick; they raise nothing."""

    def database_call_began(self) -> None:
        """A call to the database has its turn."""

    def database_call(self, operation: str, outcome: str, seconds: float, waited: float) -> None:
        """A call to the database ended: ok, conflict, unavailable, deadline, cancelled or error.

        `seconds`: what it took; `waited`: before that, in the queue.
        """

    def append_retried(self) -> None:
        """A write lost its place to another writer and tries again."""

    def turn_stored(self, status: Status) -> None:
        """A response was created, or a write changed it or found it as it is."""

    def history_resolved(self, items: int, left_out: Mapping[Reason, int]) -> None:
        """A history was given, and so many of the items that were looked at were left out for a reason."""

    def refused(self, reason: str) -> None:
        """A call was answered with an error of this reason (ErrorReason without its prefix)."""


class NoObserver:
    """Counts nothing."""

    def database_call_began(self) -> None:
        """See Observer."""

    def database_call(self, operation: str, outcome: str, seconds: float, waited: float) -> None:
        """See Observer."""

    def append_retried(self) -> None:
        """See Observer."""

    def turn_stored(self, status: Status) -> None:
        """See Observer."""

    def history_resolved(self, items: int, left_out: Mapping[Reason, int]) -> None:
        """See Observer."""

    def refused(self, reason: str) -> None:
        """See Observer."""
