"""The writes that a provider has under way, so that what is read next has them in it.

A host tells its client how a turn ended before it stores that: it ends the stream, or answers a poll, and
then writes. The client's next request would be given a history in which the turn still runs, with the input
that made it fail.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Writes(Generic[Key]):
    """Writes under way by what they are about, from any number of event loops."""

    def __init__(self) -> None:
        self._under_way: dict[Key, set[Future[None]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def about(self, *keys: Key) -> Iterator[None]:
        """Have a write under way while the block runs."""
        write: Future[None] = Future()
        # A future that runs cannot be cancelled by those who wait for it.
        write.set_running_or_notify_cancel()
        with self._lock:
            for key in keys:
                self._under_way.setdefault(key, set()).add(write)
        try:
            yield
        finally:
            with self._lock:
                for key in keys:
                    self._under_way[key].discard(write)
                    if not self._under_way[key]:
                        del self._under_way[key]
            write.set_result(None)

    async def ended(self, *keys: Key) -> None:
        """Return when the writes about any of these that are under way now have ended, well or not."""
        with self._lock:
            pending = {write for key in keys for write in self._under_way.get(key, ())}
        await asyncio.gather(*(asyncio.wrap_future(write) for write in pending))
