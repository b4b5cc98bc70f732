"""The watchdog, with small programs in the place of mongod."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import processes_with, wait_until
from turnstore_service.embedded import watchdog

Watchdog = subprocess.Popen[bytes]

WAITS = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"


class Started:
    """A watchdog over a Python program that is given a mark on its command line, and that writes it as a
    file.
    """

    def __init__(self, directory: Path, program: str) -> None:
        self.mark = str(directory / "child-runs")
        lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR)
        self.process: Watchdog = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                watchdog.__file__,
                str(lock),
                sys.executable,
                "-c",
                program,
                self.mark,
            ],
            stdin=subprocess.PIPE,
            pass_fds=(lock,),
        )
        os.close(lock)

    def wait_for_child(self) -> "Started":
        wait_until(Path(self.mark).exists, 10, "the child runs")
        return self

    def children(self) -> list[int]:
        return [pid for pid in processes_with(self.mark) if pid != self.process.pid]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def started(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Started]:
    running = Started(tmp_path, request.param)
    yield running
    running.end()
    wait_until(lambda: not running.children(), 10, "the child is gone")


@pytest.mark.parametrize("started", [WAITS], indirect=True)
def test_child_is_ended_with_the_pipe(started: Started) -> None:
    started.wait_for_child().process.communicate()
    assert started.children() == []
    assert started.process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("started", [STUBBORN], indirect=True)
def test_child_that_does_not_end_is_killed(started: Started) -> None:
    started.wait_for_child().process.communicate(timeout=watchdog.END_SECONDS + 2)
    assert started.children() == []
    assert started.process.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("started", [STUBBORN], indirect=True)
def test_child_dies_with_a_killed_watchdog(started: Started) -> None:
    started.wait_for_child().process.kill()
    wait_until(lambda: not started.children(), 10, "the child is gone")


@pytest.mark.parametrize("started", [WAITS], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_watchdog_end_nothing(started: Started, number: signal.Signals) -> None:
    started.wait_for_child().process.send_signal(number)
    # The signals of a process are taken in the order of their numbers, so a stop that is seen proves the
    # first taken.
    started.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: _state(started.process.pid) == "T", 10, "the watchdog has stopped")
    started.process.send_signal(signal.SIGCONT)
    wait_until(lambda: _state(started.process.pid) == "S", 10, "the watchdog waits again")
    assert len(started.children()) == 1
    assert started.process.poll() is None


@pytest.mark.parametrize("started", ["import sys; sys.exit(48)"], indirect=True)
def test_exit_status_of_the_child_is_passed_on(started: Started) -> None:
    assert started.process.wait(10) == 48


def test_program_that_cannot_be_executed_is_told(tmp_path: Path) -> None:
    (tmp_path / "mongod").write_text("no program")
    (tmp_path / "mongod").chmod(0o755)
    with (tmp_path / "lock").open("w") as lock:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", watchdog.__file__, str(lock.fileno()), str(tmp_path / "mongod")],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(lock.fileno(),),
            check=False,
        )
    assert ended.returncode == watchdog.CANNOT_EXECUTE
    assert b"Exec format error" in ended.stderr


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
