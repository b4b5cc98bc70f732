import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnstore_service.embedded.directory_lock import DirectoryLock


def test_second_holder_is_refused_and_can_read_the_note(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    assert first.acquire()
    first.write("4711")
    assert not second.acquire()
    assert second.read() == "4711"
    first.release()


def test_a_shorter_note_replaces_a_longer_one(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "lock")
    lock.acquire()
    lock.write("471100")
    lock.write("1")
    assert lock.read() == "1"
    lock.release()


def test_released_lock_can_be_taken(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    first.acquire()
    first.release()
    first.release()
    assert second.acquire()
    second.release()


def test_lock_is_held_by_a_child_that_inherited_it(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    first.acquire()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=(first.descriptor,),
    )
    first.release()
    try:
        assert not second.acquire()
        child.communicate()
        assert second.acquire(wait_seconds=10)
    finally:
        child.kill()
        child.wait()
        second.release()


def test_lock_of_a_killed_process_is_waited_for(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "lock")
    takes_it = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True);"
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", takes_it, str(lock.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.kill()
    assert lock.acquire(wait_seconds=10)
    holder.communicate()
    lock.release()


def test_wait_for_a_lock_ends(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    first.acquire()
    began = time.monotonic()
    assert not second.acquire(wait_seconds=0.1)
    assert time.monotonic() - began >= 0.1
    first.release()


def test_lock_is_not_inherited_by_accident(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "lock")
    lock.acquire()
    assert not os.get_inheritable(lock.descriptor)
    lock.release()
    with pytest.raises(ValueError, match="is not held"):
        _ = lock.descriptor
