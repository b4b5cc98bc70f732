"""The example of an agent host, run as it is."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.hosts.azure_agentserver.agent_host import ORPHAN, POLL_SECONDS, WAIT_SECONDS, Talk
from tests.service_process import ServiceProcess

EXAMPLE = Path(__file__).parents[3] / "clients" / "python" / "examples" / "azure_agent_host.py"
TRIES = 5


def _start(port: int, target: str, log_path: Path) -> "subprocess.Popen[bytes]":
    with log_path.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(EXAMPLE)],
            env={
                **os.environ,
                "TURNSTORE_TARGET": target,
                "PORT": str(port),
                # The host's telemetry library reports on itself over the internet unless told not to.
                "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL": "true",
            },
            stdout=log,
            stderr=log,
        )


@pytest.fixture
async def talk(service: ServiceProcess, tmp_path: Path) -> AsyncIterator[Talk]:
    """Talks to the example, which runs as a process of its own."""
    log_path = tmp_path / "host.log"
    for _ in range(TRIES):
        # The example takes a number, which another process may take first.
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        process = _start(port, service.target, log_path)
        try:
            url = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS) as http:
                if await _answers(http, process):
                    yield Talk(http)
                    return
        finally:
            process.kill()
            process.wait()
    raise AssertionError(f"the example does not start:\n{log_path.read_text(errors='replace')}")


async def _answers(http: httpx.AsyncClient, process: "subprocess.Popen[bytes]") -> bool:
    """Whether it serves, when it does or has ended."""
    async with asyncio.timeout(WAIT_SECONDS):
        while process.poll() is None:
            try:
                return (await http.get("/readiness")).status_code == 200
            except httpx.ConnectError:
                await asyncio.sleep(POLL_SECONDS)
    return False


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40


async def test_it_goes_on_after_a_turn_that_was_refused(talk: Talk, namespace: str) -> None:
    texts = []
    for given in ("Hello", ORPHAN, "Still there?"):
        response = await talk.turn("synchronous", given, conversation=namespace)
        texts.append(
            response["output"][0]["content"][0]["text"] if response["output"] else response["status"]
        )
    assert texts == ["I remember 0 items.", "failed", "I remember 2 items."]
