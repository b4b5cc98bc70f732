"""Two instances behind a client that balances between them: neither a restart nor a kill fails a call."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from tests.conftest import StartService
from tests.service_process import ServiceProcess
from turnstore import AsyncHistoryClient, Response

WRITERS = 4
TIMEOUT_SECONDS = 60.0
"""Of a call, its retries included: long, so that a slow machine does not look like a failure."""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class _Load:
    """Callers that store and resolve turns one after the other until they are told to stop."""

    def __init__(self, client: AsyncHistoryClient) -> None:
        self._client = client
        self._stopped = False
        self.calls = 0
        self._progress = asyncio.Condition()

    async def run(self, writer: int) -> None:
        turn = 0
        while not self._stopped:
            turn += 1
            name = f"w{writer}-{turn}"
            item = {"type": "message", "id": f"u-{name}", "role": "user", "content": "hi"}
            await self._client.store_response(
                Response(name, "completed", conversation_id=f"c{writer}", input_items=[item])
            )
            history = await self._client.resolve_history(conversation_id=f"c{writer}", limit=1)
            assert history.item_ids == (f"u-{name}",)
            async with self._progress:
                self.calls += 2
                self._progress.notify_all()

    async def more_calls(self, count: int) -> None:
        """Waits until that many further calls were answered."""
        async with self._progress:
            wanted = self.calls + count
            await self._progress.wait_for(lambda: self.calls >= wanted)

    def stop(self) -> None:
        self._stopped = True


async def _under_load(
    start_service: StartService, end: Callable[[ServiceProcess], object], restarts: int
) -> int:
    """Restarts two instances in turn under load; how many calls were answered. A failed call fails the test."""
    ports = [_free_port(), _free_port()]

    def start(number: int, *, migrate: bool) -> ServiceProcess:
        settings = {
            "TURNSTORE_LISTEN": f"127.0.0.1:{ports[number]}",
            "TURNSTORE_SHUTDOWN_PAUSE": "500ms",
        }
        return start_service(settings, migrate=migrate)

    services = [start(0, migrate=True), start(1, migrate=False)]
    for service in services:
        await asyncio.to_thread(service.wait_ready)
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    async with AsyncHistoryClient(target, timeout=TIMEOUT_SECONDS) as client, asyncio.TaskGroup() as group:
        load = _Load(client)
        for writer in range(WRITERS):
            group.create_task(load.run(writer))
        await load.more_calls(20)
        for _ in range(restarts):
            for number in (0, 1):
                await asyncio.to_thread(end, services[number])
                services[number] = start(number, migrate=False)
                await asyncio.to_thread(services[number].wait_ready)
                await load.more_calls(20)
        load.stop()
    return load.calls


@pytest.mark.timeout(240)
async def test_a_restart_by_sigterm_fails_no_call(start_service: StartService) -> None:
    assert await _under_load(start_service, ServiceProcess.terminate, 1) > 0


@pytest.mark.timeout(240)
async def test_a_kill_fails_no_call_of_a_client_that_retries(start_service: StartService) -> None:
    assert await _under_load(start_service, ServiceProcess.kill, 1) > 0


@pytest.mark.deep
@pytest.mark.timeout(1200)
async def test_ten_restarts_of_each_by_sigterm_fail_no_call(start_service: StartService) -> None:
    assert await _under_load(start_service, ServiceProcess.terminate, 10) > 0
