"""What a worker does for the process that started it: it tells its state, and ends when it is told to."""

import asyncio
import signal
import socket

import structlog

from turnstore_service.operations.metrics import Metrics
from turnstore_service.operations.metrics_sum import snapshot
from turnstore_service.operations.stopping import Stopping
from turnstore_service.operations.worker_channel import Channel

_log = structlog.get_logger("turnstore_service.worker")


class Seat:
    """A worker's end of the channel to the first process."""

    def __init__(self, channel: Channel, metrics: Metrics) -> None:
        self.stopping = Stopping()
        self._channel = channel
        self._metrics = metrics
        self._attending = asyncio.create_task(self._attend())

    @classmethod
    async def take(cls, descriptor: int, metrics: Metrics) -> "Seat":
        """Begins to listen to the first process, and no more to signals.

        They may reach every process of the service, by Ctrl-C in a terminal or by the stop of a systemd unit,
        and would count twice.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        return cls(await Channel.open(socket.socket(fileno=descriptor)), metrics)

    def listening(self) -> None:
        """Tells that the worker takes calls."""
        self._channel.send("listening")

    async def leave(self) -> None:
        """Tells the last metrics, which count the calls that ended while it stopped."""
        self._attending.cancel()
        await asyncio.gather(self._attending, return_exceptions=True)
        self._channel.send("last", snapshot(self._metrics.registry))
        await self._channel.close()

    async def _attend(self) -> None:
        while (message := await self._channel.receive()) is not None:
            match message[0]:
                case "stop":
                    self.stopping.stop.set()
                case "hurry":
                    self.stopping.ask_at_once()
                case "ping":
                    self._channel.send("answer")
                case "metrics":
                    # In a thread: it takes some milliseconds, in which calls get on.
                    metrics = await asyncio.to_thread(snapshot, self._metrics.registry)
                    self._channel.send("answer", metrics)
        # With it went the metrics, the embedded database, and whoever could tell this process to end.
        _log.error("the first process of the service is gone")
        self.stopping.ask_at_once()
