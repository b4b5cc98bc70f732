"""Files that are read again when they have changed, as mounted secrets and certificates do while in use."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

Value = TypeVar("Value")

LOOK_SECONDS = 0.25
"""How long `recent` takes what was read to stand."""
_TRIES = 5
"""At the start, how often files are read that are just being exchanged."""

_log = structlog.get_logger("turnstore_service.files")


class FileError(Exception):
    """A file cannot be used. The message names it and is for the operator: none of its contents."""


class LiveFiles(Generic[Value]):
    """What some files say together.

    A new state that cannot be used leaves the old one in effect, and is logged. May be asked by any thread.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], Value]) -> None:
        """Reads at once.

        Args:
            what: What the files are, for the log.
            paths: The files that are watched.
            read: Reads them and says what they mean; raises FileError or OSError if that cannot be used.

        Raises:
            FileError: They cannot be used.
        """
        self._what = what
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()
        self._seen: object = None
        self._looked = float("-inf")
        for _ in range(_TRIES):
            before = self._state()
            try:
                self._value = read()
            except OSError as error:
                raise FileError(_told(error)) from error
            if self._state() == before:
                self._seen = before
                return
        raise FileError(f"{', '.join(map(str, paths))}: changing all the time")

    def current(self) -> Value:
        """What they say now."""
        with self._lock:
            self._looked = time.monotonic()
            state = self._state()
            if state != self._seen:
                self._take(state)
            return self._value

    def recent(self) -> Value:
        """What they say, or said less than `LOOK_SECONDS` ago: looking takes a system call for each."""
        return self._value if time.monotonic() < self._looked + LOOK_SECONDS else self.current()

    def _take(self, state: object) -> None:
        try:
            value = self._read()
        except (FileError, OSError) as error:
            self._seen = state
            _log.error(
                f"{self._what} changed and cannot be used; what was read before stays", cause=_told(error)
            )
            return
        # Otherwise it is just being exchanged, and what was read may be of both states: the next call looks
        # again.
        if self._state() == state:
            self._value = value
            self._seen = state
            _log.info(f"{self._what} changed and was read again")

    def _state(self) -> object:
        state: list[tuple[int, ...] | None] = []
        for path in self._paths:
            try:
                found = path.stat()  # of what links lead to: that is how mounted secrets are exchanged
            except OSError:
                state.append(None)
            else:
                state.append(
                    (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
                )
        return state


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be read: {error.strerror}"
    return str(error)
