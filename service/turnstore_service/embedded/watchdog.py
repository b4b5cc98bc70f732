"""Runs mongod and ends it as soon as the service is gone, however that came about.

It is started as a script, `python watchdog.py LOCK_DESCRIPTOR COMMAND...`, and imports nothing of the
service.

Why a process of its own: a service that is killed by SIGKILL cannot end its child. A parent-death signal
alone would not do, since it is tied to the *thread* that started the child and leaves no time for a clean
end. The watchdog's standard input is a pipe whose other end only the service holds; the kernel closes that
end with the service, and the watchdog reads the end of the file. Its own death in turn, by SIGKILL too, is
seen by mongod through a parent-death signal, which is safe here because this process has one thread. So no
order of deaths leaves a mongod behind, and a wanted end (the service closes the pipe) takes the same way as
an unwanted one.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from types import FrameType

END_SECONDS = 3.0
"""How long mongod may take to end by itself (it takes 1 s) before it is killed. Its journal makes killing it
safe, and the service promises that it is gone within 5 s."""

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal that a process gets when its parent dies."""

CANNOT_EXECUTE = 126
"""Exit status of shells, and of the watchdog, for a program that cannot be executed."""


def _dies_with(parent: int) -> Callable[[], None] | None:
    """What a child runs before it becomes mongod, so that it is killed with `parent`; None where that is
    unknown.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(
        None, use_errno=True
    ).prctl  # loaded before the fork: after it, only plain calls are safe

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return before_exec


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler, not SIG_IGN: mongod would inherit that."""


def main(lock: int, command: list[str]) -> int:
    """Runs the command until it ends or standard input does; returns its exit status, shells' way (128 +
    signal).
    """
    # Ctrl-C in a terminal, or a stop of a systemd unit, reaches every process: the service alone decides when
    # the database ends, after its last call.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)
    wakened, waker = os.pipe()
    os.set_blocking(wakened, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    try:
        mongod = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(lock,),
            preexec_fn=_dies_with(os.getpid()),  # noqa: PLW1509  # one thread, so nothing can be locked
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_EXECUTE
    while mongod.poll() is None:
        readable, _, _ = select.select([0, wakened], [], [])
        if wakened in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakened, 512)
        if 0 in readable:  # nothing is ever written to it: this is its end
            break
    if mongod.poll() is None:
        mongod.terminate()
        try:
            mongod.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            mongod.kill()
    status = mongod.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
