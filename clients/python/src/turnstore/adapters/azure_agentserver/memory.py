"""What a provider remembers of earlier calls: bounded, for all threads, and nothing that must not be lost."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The values that were used last, by key."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, or None when it was never put or is forgotten."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Key, value: Value) -> None:
        """Remember a value; the one that was not used for the longest time makes room."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Forget a key, if it is known."""
        with self._lock:
            self._values.pop(key, None)


class Origins:
    """Which response gave a list of item ids as its line's history.

    A host fetches such a list at the beginning of a request and hands a copy of it back when it stores the
    turn, so the list is known by what it holds. Two responses can give the same list (one that failed, and
    the one before it). Then the one that this request asked for counts, and where that cannot be told the one
    that was asked for last: their lists are the same.
    """

    SIZE = 10_000
    """Lists remembered, some 100 bytes each: many more than a host has requests under way."""

    def __init__(self) -> None:
        self._parents: Recent[bytes, str] = Recent(self.SIZE)

    def remember(self, user: str | None, item_ids: Sequence[str], response_id: str) -> None:
        """Remember that a response gave this list to a user."""
        digest = _digest(user, item_ids)
        _given_here.set((self, digest, response_id))
        if item_ids:
            # The empty list is that of every first turn too: it says nothing outside of its request.
            self._parents.put(digest, response_id)

    def parent_of(self, user: str | None, item_ids: Sequence[str]) -> str:
        """Return the response that gave this list, or nothing."""
        digest = _digest(user, item_ids)
        given = _given_here.get()
        if given is not None and given[0] is self and given[1] == digest:
            return given[2]
        return self._parents.get(digest) or ""


# Tasks that a request starts inherit it; requests have each their own.
_given_here: ContextVar[tuple[Origins, bytes, str] | None] = ContextVar("turnstore_given_here", default=None)


def _digest(user: str | None, item_ids: Sequence[str]) -> bytes:
    return hashlib.blake2b(json.dumps([user, *item_ids]).encode(), digest_size=16).digest()
