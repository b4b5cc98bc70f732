"""Readiness and liveness, over the standard gRPC health protocol.

The names `""` and `turnstore.v1.HistoryService` tell readiness: SERVING while the database answers and its
indexes stand. The name `liveness` is SERVING as long as the process runs: a database that is away is no
reason to restart.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

READINESS_NAMES = ("", "turnstore.v1.HistoryService")
LIVENESS_NAME = "liveness"

FAILURES_TO_TURN = 3
"""Checks that fail in a row before readiness is lost: one slow answer must not take every replica out at
once."""
SUCCESSES_TO_RETURN = 2
"""Checks that succeed in a row before readiness comes back. The first time, one is enough."""

CHECK_SECONDS = 3.0
"""How long the database may take to answer a check."""
LONGEST_WAIT_SECONDS = 5.0
"""Between two checks while the database is away."""
INDEX_SECONDS = 60.0
"""How often the indexes are looked at again once they stand: somebody may drop one."""
REMINDER_SECONDS = 30.0
"""How often a problem that lasts is logged again."""

_log = structlog.get_logger("turnstore_service.health")


class CheckedStore(Protocol):
    """What of a store is checked."""

    async def ping(self) -> None:
        """Returns when the database answers, raises when it does not."""

    async def problems(self) -> list[str]:
        """A sentence for each thing that is wrong about the database."""


class Readiness:
    """Turns a row of checks into readiness, with hysteresis."""

    def __init__(self) -> None:
        self.ready = False
        self._ever = False
        self._successes = 0
        self._failures = 0

    def observe(self, good: bool) -> bool:
        """Takes the outcome of a check; whether readiness changed by it."""
        if good:
            self._successes, self._failures = self._successes + 1, 0
        else:
            self._successes, self._failures = 0, self._failures + 1
        before = self.ready
        if self.ready:
            self.ready = self._failures < FAILURES_TO_TURN
        else:
            self.ready = self._successes >= (SUCCESSES_TO_RETURN if self._ever else 1)
        self._ever = self._ever or self.ready
        return self.ready != before


class HealthServicer(health_pb2_grpc.HealthServicer):
    """The health service; not ready until told so.

    The library's own would not do: its open watches cannot be ended without breaking into a reply that is
    just being written, and keep the server's stop waiting for its whole grace.
    """

    def __init__(self) -> None:
        self._ready = False
        self._closing = False
        self._changed = asyncio.Event()

    def set_ready(self, ready: bool) -> None:
        """Tells everybody who asks or watches."""
        self._ready = ready
        self._wake()

    def end_watches(self) -> None:
        """Ends all open watches, and those to come, once each has told the last change."""
        self._closing = True
        self._wake()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  # the protocol's name
        """The status of a name; NOT_FOUND for one that is not known."""
        status = self._status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802  # the protocol's name
        """Streams the status of a name, and each change, until the caller or the server ends it."""
        told = None
        while True:
            changed = self._changed  # taken before the look, so that no change after it is missed
            status = self._status(request.service) or health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            elif self._closing:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
            else:
                await changed.wait()

    def _status(self, name: str) -> Any:
        if name == LIVENESS_NAME or (name in READINESS_NAMES and self._ready):
            return health_pb2.HealthCheckResponse.SERVING
        return health_pb2.HealthCheckResponse.NOT_SERVING if name in READINESS_NAMES else None

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class HealthMonitor:
    """Checks the store again and again, and lets readiness follow."""

    def __init__(
        self,
        store: CheckedStore,
        servicer: HealthServicer,
        interval_seconds: float,
        on_change: Callable[[bool], None],
    ) -> None:
        """Checks nothing yet.

        Args:
            store: What is checked.
            servicer: What is told.
            interval_seconds: Between two checks while all is well.
            on_change: Called with the readiness when it has changed.
        """
        self._store = store
        self._servicer = servicer
        self._interval = interval_seconds
        self._on_change = on_change
        self._readiness = Readiness()
        self._indexes_hold_until = 0.0
        self._problems: list[str] = []
        self._logged = 0.0

    async def run(self) -> None:
        """Checks until cancelled."""
        failures = 0
        while True:
            problems = await self._check()
            failures = failures + 1 if problems else 0
            self._log_problems(problems)
            if self._readiness.observe(not problems):
                self._servicer.set_ready(self._readiness.ready)
                self._on_change(self._readiness.ready)
                if self._readiness.ready:
                    _log.info("ready")
                else:
                    _log.error("not ready any more", problems=problems)
            await asyncio.sleep(self._wait_after(failures))

    def _wait_after(self, failures: int) -> float:
        beyond = max(0, min(failures - FAILURES_TO_TURN, 10))
        return max(self._interval, min(self._interval * 2.0**beyond, LONGEST_WAIT_SECONDS))

    async def _check(self) -> list[str]:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._store.ping()
                if time.monotonic() < self._indexes_hold_until:
                    return []
                problems = await self._store.problems()
        except TimeoutError:
            return [f"the database did not answer within {CHECK_SECONDS:g} s"]
        except Exception as error:  # noqa: BLE001  # whatever it is, the service is not ready, and goes on checking
            cause = "" if error.__cause__ is None else f" ({error.__cause__})"
            return [f"{error}{cause}"]
        if not problems:
            self._indexes_hold_until = time.monotonic() + INDEX_SECONDS
        return problems

    def _log_problems(self, problems: list[str]) -> None:
        now = time.monotonic()
        if problems and (not self._problems or now - self._logged >= REMINDER_SECONDS):
            _log.warning("waiting for the database", problems=problems)
            self._logged = now
        self._problems = problems
