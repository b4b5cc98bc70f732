"""Several processes that take the calls of one service, and the one that has started them.

The first process takes no calls. It holds the port, runs the embedded database if there is one, adds up the
metrics, tells the workers to end, and watches them. A worker that ends by itself or hangs ends the service:
the others drain, and the exit status says that something is wrong. Whoever runs the service (a kubelet,
systemd, compose) starts it again, waits longer each time, and shows that it happened; a worker that was quietly
replaced would be seen by nobody.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from turnstore_service.operations.addresses import Address
from turnstore_service.operations.metrics import Metrics
from turnstore_service.operations.metrics_sum import Snapshot, add_up, snapshot
from turnstore_service.operations.worker_channel import Channel

PING_SECONDS = 5.0
"""Between two signs of life that a worker is asked for."""
HANG_SECONDS = 30.0
"""A worker that gives none for so long hangs. A liveness probe would need longer: each of its connections meets
another worker."""
END_SECONDS = 10.0
"""How long a worker may take to end beyond the time for its calls. Closing everything takes about a second."""
ANSWER_SECONDS = 2.0
"""How long the metrics of a busy worker are waited for; then those of last time are told."""

_log = structlog.get_logger("turnstore_service.workers")


class WorkerError(Exception):
    """A worker ended by itself, or hung. The message is for the operator."""


class Worker:
    """One worker, as the first process sees it."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.number = number
        self.process = process
        self.listening = asyncio.Event()
        """Set when it takes calls."""
        self.last_metrics: Snapshot = []
        """What its metrics said when it was last asked, or at its end."""
        self._channel = channel
        self._awaited: deque[asyncio.Future[Any]] = deque()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, number: int, command: Sequence[str]) -> "Worker":
        """Starts a process. It is given its end of the channel as `--channel DESCRIPTOR`."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(*command, "--channel", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C in a terminal is for the first process, also before the worker can look away from it.
                start_new_session=True,
            )
        return cls(number, process, await Channel.open(ours))

    def tell(self, order: str) -> None:
        """Gives an order that has no answer: stop, hurry."""
        self._channel.send(order)

    async def ask(self, question: str) -> Any:
        """The answer to a question: ping, metrics.

        Raises:
            ConnectionError: The worker is gone.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._reading.done():
            raise ConnectionError
        self._awaited.append(answer)  # answers come in the order of the questions
        self._channel.send(question)
        return await answer

    async def metrics(self) -> Snapshot:
        """Its metrics now; those of last time when it does not answer."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self.last_metrics = await self.ask("metrics")
        except (TimeoutError, ConnectionError):
            pass
        return self.last_metrics

    async def watch(self, ping_seconds: float, hang_seconds: float) -> None:
        """Returns never.

        Raises:
            WorkerError: It has ended, or hung and was killed.
        """
        ended = asyncio.create_task(self.process.wait())
        try:
            while True:
                await asyncio.wait((ended,), timeout=ping_seconds)
                if ended.done():
                    raise WorkerError(f"{self} {self._how_it_ended()}")
                if not self.listening.is_set():  # how long a start takes depends on the machine
                    continue
                try:
                    async with asyncio.timeout(hang_seconds):
                        await self.ask("ping")
                except TimeoutError:
                    with contextlib.suppress(ProcessLookupError):
                        self.process.kill()
                    raise WorkerError(
                        f"{self} gave no sign of life for {hang_seconds:g} s and was killed"
                    ) from None
                except ConnectionError:  # it is just ending
                    continue
        finally:
            ended.cancel()

    async def ended(self) -> None:
        """Returns when it has ended and everything that it told is read."""
        await self.process.wait()
        await self._reading

    def problem(self) -> str | None:
        """Once it has ended: what was wrong about its end."""
        return None if self.process.returncode == 0 else f"{self} {self._how_it_ended()}"

    def __str__(self) -> str:
        return f"Worker {self.number} (process {self.process.pid})"

    def _how_it_ended(self) -> str:
        status = self.process.returncode
        if status is not None and status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    async def _read(self) -> None:
        while (message := await self._channel.receive()) is not None:
            match message:
                case "listening", _:
                    self.listening.set()
                case "answer", body:
                    answer = self._awaited.popleft()
                    if not answer.done():  # else it was not waited for any longer
                        answer.set_result(body)
                case "last", body:
                    self.last_metrics = body
        for answer in self._awaited:
            if not answer.done():
                answer.set_exception(ConnectionError())
        await self._channel.close()


class Workers:
    """All workers of a service."""

    def __init__(
        self, metrics: Metrics, ping_seconds: float = PING_SECONDS, hang_seconds: float = HANG_SECONDS
    ) -> None:
        """Starts nothing yet.

        Args:
            metrics: Those of the first process. They give every label set from the start.
            ping_seconds: See PING_SECONDS.
            hang_seconds: See HANG_SECONDS.
        """
        self.registry = CollectorRegistry()
        """The metrics of the first process and all workers, added up. For other threads than the event loop's."""
        self.registry.register(_Sum(self, metrics, asyncio.get_running_loop()))
        self._ping_seconds = ping_seconds
        self._hang_seconds = hang_seconds
        self._workers: list[Worker] = []

    @property
    def processes(self) -> list[int]:
        """The process ids of those that were started, in order."""
        return [worker.process.pid for worker in self._workers]

    async def run(self, commands: Iterable[Sequence[str]], on_listening: Callable[[], None]) -> None:
        """Starts a worker with each command, calls `on_listening` when all take calls, and watches them.

        Raises:
            WorkerError: One has ended, or hung and was killed.
        """
        for number, command in enumerate(commands):
            self._workers.append(await Worker.start(number, command))
        tasks = [
            asyncio.create_task(worker.watch(self._ping_seconds, self._hang_seconds))
            for worker in self._workers
        ]
        tasks.append(asyncio.create_task(self._tell(on_listening)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self, seconds: float, hurry: asyncio.Event) -> list[str]:
        """Tells all to end, and returns when they have: what was wrong about their ends.

        Args:
            seconds: How long they may take; then they are told to hurry.
            hurry: When set, they are told so at once.
        """
        self._tell_all("stop")
        ended = asyncio.create_task(self._all_ended())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((ended, hurried), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ended.done():
            self._tell_all("hurry")
            await asyncio.wait((ended,), timeout=END_SECONDS)
        self.kill()
        await ended
        return [problem for worker in self._workers if (problem := worker.problem())]

    def kill(self) -> None:
        """Kills those that still run."""
        for worker in self._workers:
            if worker.process.returncode is None:
                _log.error("worker killed", number=worker.number, pid=worker.process.pid)
                worker.process.kill()

    async def metrics(self) -> list[Snapshot]:
        """The metrics of each worker."""
        return list(await asyncio.gather(*(worker.metrics() for worker in self._workers)))

    async def _tell(self, on_listening: Callable[[], None]) -> None:
        for worker in self._workers:
            await worker.listening.wait()
        on_listening()

    async def _all_ended(self) -> None:
        await asyncio.gather(*(worker.ended() for worker in self._workers))

    def _tell_all(self, order: str) -> None:
        for worker in self._workers:
            worker.tell(order)


class _Sum(Collector):
    """Collects the metrics of all processes for a registry, in whichever thread it is asked."""

    def __init__(self, workers: Workers, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._workers = workers
        self._metrics = metrics
        self._loop = loop

    def collect(self) -> list[Metric]:
        asked = asyncio.run_coroutine_threadsafe(self._workers.metrics(), self._loop)
        try:
            of_workers = asked.result()
        except CancelledError:  # the event loop is just ending
            of_workers = []
        return add_up([snapshot(self._metrics.registry), *of_workers])


def worker_command(number: int, listen: Address, mongodb_uri: str | None) -> list[str]:
    """The command line of a worker.

    Args:
        number: Which one; the first is 0.
        listen: Where it takes calls.
        mongodb_uri: The address of the embedded database; None: the settings have one.
    """
    # -P: a file in the directory where the service happens to be started must not stand in for a module.
    arguments = [sys.executable, "-P", "-m", "turnstore_service", "worker", str(number), str(listen)]
    return arguments if mongodb_uri is None else [*arguments, "--mongodb-uri", mongodb_uri]
