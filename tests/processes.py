"""Looking at processes, and waiting for what is to happen to them."""

import time
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.02


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Returns as soon as the condition holds; fails when it does not in time."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"not within {seconds:g} s: {what}"
        time.sleep(POLL_SECONDS)


def processes_with(argument: str) -> dict[int, str]:
    """The living processes that have this argument on their command line: process id and program name."""
    found = {}
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            arguments = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
            state = (directory / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has just ended
            continue
        if argument in arguments and state != "Z":
            found[int(directory.name)] = Path(arguments[0]).name
    return found


def mongods_on(data_dir: Path) -> list[int]:
    """The process ids of every mongod whose data is in this directory of an embedded store."""
    return [pid for pid, name in processes_with(str(data_dir / "db")).items() if name == "mongod"]
