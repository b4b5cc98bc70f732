"""A resilient background response outlives the host that runs it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from tests.hosts.azure_agentserver.agent_host import MODES, POLL_SECONDS, WAIT_SECONDS, Talk
from tests.service_process import ServiceProcess
from turnstore import AsyncHistoryClient, Response, ResponseStatus

SCRIPT = Path(__file__).with_name("resilient_host.py")

StartHost = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """The socket that hosts serve one after the other: it stays when a host dies."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def start_host(
    listening: socket.socket, service: ServiceProcess, namespace: str, state_of_hosts: Path, tmp_path: Path
) -> Iterator[StartHost]:
    """Starts a host process; all have the state that the one before left."""
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        descriptor = listening.fileno()
        with (tmp_path / f"host-{len(processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(descriptor), service.target, namespace],
                env={**os.environ, "AGENTSERVER_STATE_ROOT": str(state_of_hosts)},
                pass_fds=[descriptor],
                stdout=log,
                stderr=log,
            )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
async def talk(listening: socket.socket) -> AsyncIterator[Talk]:
    """Talks to whatever host serves the socket."""
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS) as http:
        yield Talk(http)


async def _stored(
    client: AsyncHistoryClient, response_id: str, looked_for: Callable[[Response], bool]
) -> Response:
    """What is stored of a response, when it is as looked for."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            stored = await client.get_response(response_id)
            if looked_for(stored):
                return stored
            await asyncio.sleep(POLL_SECONDS)


async def _begun(talk: Talk, mode: str) -> str:
    """Posts a turn and leaves; its id."""
    body = {"model": "m", "input": "Write.", "conversation": "c", **MODES[mode]}
    if not body.get("stream"):
        return str((await talk.http.post("/responses", json=body)).json()["id"])
    async with aclosing(talk.events(body)) as events:
        return str((await anext(events))["response"]["id"])


@pytest.mark.parametrize("mode", ["background", "background-streaming"])
async def test_a_killed_host_s_turn_is_ended_by_the_next_host(
    start_host: StartHost, talk: Talk, client: AsyncHistoryClient, mode: str
) -> None:
    first = start_host()
    response_id = await _begun(talk, mode)
    await _stored(client, response_id, lambda found: bool(found.output_items))
    first.kill()
    first.wait()
    crashed = await client.get_response(response_id)
    history = await client.resolve_history(conversation_id="c", view="full")
    assert crashed.status is ResponseStatus.IN_PROGRESS
    assert [item["content"][0]["text"] for item in history.data()] == ["Write.", "line 0 in the first life"]

    start_host()
    ended = await talk.ended(response_id)
    lines = ["line 0 in the first life", "line 1 in the second life", "line 2 in the second life"]
    assert ended["status"] == "completed"
    assert [item["content"][0]["text"] for item in ended["output"]] == lines
    # A host tells its clients of an end before it stores it.
    stored = await _stored(client, response_id, lambda found: found.status is ResponseStatus.COMPLETED)
    assert [item.data["content"][0]["text"] for item in stored.output_items] == lines
    history = await client.resolve_history(conversation_id="c", view="full")
    assert [item["content"][0]["text"] for item in history.data()] == ["Write.", *lines]
