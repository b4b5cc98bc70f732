"""Locks on a data directory, so that no two processes use it at one time."""

import fcntl
import os
import time
from pathlib import Path

_POLL_SECONDS = 0.02
"""How often a wait for a lock looks again: the kernel offers no wait with a time limit."""


class DirectoryLock:
    """A lock file that is held while a process has it open; the kernel releases it with the last such
    process.

    A lock of this kind (flock) belongs to the open file, so children that inherit the descriptor hold it too.
    The file stays when the lock is released: removing it could take away another process's lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The open file, to be passed on to a child. Only while held."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} is not held")
        return self._descriptor

    def acquire(self, wait_seconds: float = 0.0) -> bool:
        """Takes the lock, waiting at most so long for another to release it; False if that did not happen."""
        ends = time.monotonic() + wait_seconds
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= ends:
                    os.close(descriptor)
                    return False
                time.sleep(_POLL_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            else:
                self._descriptor = descriptor
                return True

    def write(self, text: str) -> None:
        """Leaves a note in the file for whoever finds it locked."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode(), 0)

    def read(self) -> str:
        """The note of whoever holds the lock, or held it last; empty if there is none."""
        try:
            return self.path.read_text().strip()
        except OSError:
            return ""

    def release(self) -> None:
        """Closes the file: released unless a child has it open too. May be called again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
