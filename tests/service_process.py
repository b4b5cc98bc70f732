"""Services for tests: as a process of its own, and inside the test."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from turnstore_service.operations.credentials.opening import open_access
from turnstore_service.operations.health import HealthServicer
from turnstore_service.operations.metrics import Metrics
from turnstore_service.operations.settings import Settings
from turnstore_service.operations.spans import Spans
from turnstore_service.operations.tls import server_credentials
from turnstore_service.storage.mongo.store import MongoStore

WAIT_SECONDS = 30.0
POLL_SECONDS = 0.02


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service that has these settings and no others."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTORE_")}
    return {**inherited, **settings}


def run_command(*arguments: str, settings: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Runs `turnstore-service` with these arguments to its end."""
    return subprocess.run(
        [sys.executable, "-m", "turnstore_service", *arguments],
        env=clean_environment(settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class ServiceProcess:
    """`turnstore-service serve` as a process of its own, on free ports of loopback, started at once."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        """Starts it.

        Args:
            directory: For its log and its ready file; made when it is not there.
            settings: TURNSTORE_* variables; ports and log format have defaults fit for tests.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._ready_file = directory / "ready.json"
        self._log_path = directory / "service.log"
        self._ready: dict[str, Any] | None = None
        self.settings = {
            "TURNSTORE_LISTEN": "127.0.0.1:0",
            "TURNSTORE_METRICS_LISTEN": "127.0.0.1:0",
            "TURNSTORE_LOG_FORMAT": "json",
            **settings,
            "TURNSTORE_READY_FILE": str(self._ready_file),
        }
        self._ready_file.unlink(missing_ok=True)
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "turnstore_service", "serve"],
                env=clean_environment(self.settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def ready(self) -> dict[str, Any]:
        """What its ready file says; waits for it."""
        if self._ready is None:
            ends = time.monotonic() + WAIT_SECONDS
            while not self._ready_file.exists():
                assert self.process.poll() is None, f"the service ended by itself:\n{self.log_text()}"
                assert time.monotonic() < ends, f"the service does not listen:\n{self.log_text()}"
                time.sleep(POLL_SECONDS)
            self._ready = json.loads(self._ready_file.read_text())
        return self._ready

    @property
    def target(self) -> str:
        """Its gRPC address; waits until it listens."""
        return str(self.ready["listen"])

    @property
    def metrics_url(self) -> str:
        """The address of its metrics; waits until it listens."""
        return f"http://{self.ready['metrics_listen']}/metrics"

    def wait_ready(self, seconds: float = WAIT_SECONDS) -> "ServiceProcess":
        """Returns when its health says SERVING."""
        with grpc.insecure_channel(self.target) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), timeout=seconds, wait_for_ready=True
            )
            for reply in watch:
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return self
        raise AssertionError(f"the service ended its health stream:\n{self.log_text()}")

    def health(self, name: str = "") -> str:
        """What its health says about a name just now."""
        with grpc.insecure_channel(self.target) as channel:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=name), timeout=WAIT_SECONDS, wait_for_ready=True
            )
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))

    def wait_ended(self, seconds: float = WAIT_SECONDS) -> int:
        """Its exit status, when it has ended by itself."""
        return self.process.wait(seconds)

    def terminate(self) -> int:
        """Ends it by SIGTERM; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_ended()

    def kill(self) -> None:
        """Ends it by SIGKILL. May be called again."""
        self.process.kill()
        self.process.wait()

    def log_text(self) -> str:
        """All that it wrote."""
        return self._log_path.read_text(errors="replace")

    def log_lines(self) -> list[dict[str, Any]]:
        """Its log, a dictionary for each line."""
        return [json.loads(line) for line in self.log_text().splitlines() if line.startswith("{")]


@dataclass(frozen=True)
class RunningService:
    """A service in the test's own process and event loop."""

    channel: grpc.aio.Channel
    target: str
    store: MongoStore
    health: HealthServicer
    metrics: Metrics


@asynccontextmanager
async def service_in_process(spans: Spans | None = None, **settings: Any) -> AsyncIterator[RunningService]:
    """A service on a free port, with its indexes made. `settings` are arguments of Settings."""
    from turnstore_service import server

    chosen = Settings(**{"listen": "127.0.0.1:0", **settings})
    metrics = Metrics(server.SERVED)
    observer = metrics if spans is None else spans.observer(metrics)
    grpc_server = server.make_server(chosen, metrics, spans)
    address = server.bind(grpc_server, chosen.listen, server_credentials(chosen))
    assert chosen.mongodb_uri is not None
    store = await server.open_store(chosen.mongodb_uri, chosen, observer)
    try:
        await store.migrate()
        health = server.add_services(grpc_server, store, chosen, open_access(chosen), observer)
        await grpc_server.start()
        try:
            async with grpc.aio.insecure_channel(
                str(address), options=[("grpc.max_receive_message_length", -1)]
            ) as channel:
                yield RunningService(channel, str(address), store, health, metrics)
        finally:
            await grpc_server.stop(None)
    finally:
        await store.close()
