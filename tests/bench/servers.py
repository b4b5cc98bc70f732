"""The processes that are measured: the service, and beside it the floor."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.bench.histories import SCOPE_MESSAGE
from tests.bench.measuring import TOKEN, Target
from tests.service_process import clean_environment

START_SECONDS = 30.0
_POLL_SECONDS = 0.02


class ServerError(Exception):
    """A server did not start; the message has what it wrote."""


@asynccontextmanager
async def service(
    directory: Path, uri: str, database: str, title: str = "service", module: str = "turnstore_service"
) -> AsyncIterator[Target]:
    """The service as it is run in production, on a database whose indexes stand: it checks a token of each call,
    logs each call and counts it. Otherwise it has its default settings. `module`: what is run.
    """
    tokens = directory / "tokens.json"
    grant = {"token": TOKEN, "namespace": SCOPE_MESSAGE.namespace, "rights": ["read", "write"]}
    tokens.write_text(json.dumps({"tokens": [grant]}))
    ready_file = directory / f"{title}.json"
    ready_file.unlink(missing_ok=True)  # that of an earlier one
    settings = {
        "TURNSTORE_LISTEN": "127.0.0.1:0",
        "TURNSTORE_METRICS_LISTEN": "127.0.0.1:0",
        "TURNSTORE_MONGODB_URI": uri,
        "TURNSTORE_MONGODB_DATABASE": database,
        "TURNSTORE_READY_FILE": str(ready_file),
        "TURNSTORE_AUTH": "tokens",
        "TURNSTORE_TOKENS_FILE": str(tokens),
    }
    async with _process(directory / f"{title}.log", settings, module, "serve") as process:
        while not ready_file.exists():
            if process.poll() is not None:
                raise ServerError((directory / f"{title}.log").read_text())
            await asyncio.sleep(_POLL_SECONDS)
        address = json.loads(ready_file.read_text())["listen"]
        await _wait_serving(address)
        async with _target(title, address, process.pid) as target:
            yield target


@asynccontextmanager
async def floor(directory: Path, uri: str, database: str) -> AsyncIterator[Target]:
    """The floor."""
    async with _process(directory / "floor.log", {}, "tests.bench.floor", uri, database) as process:
        assert process.stdout is not None
        port = (await asyncio.to_thread(process.stdout.readline)).strip()
        if not port:
            raise ServerError((directory / "floor.log").read_text())
        async with _target("floor", f"127.0.0.1:{port}", process.pid) as target:
            yield target


@asynccontextmanager
async def _process(
    log_path: Path, settings: Mapping[str, str], module: str, *arguments: str
) -> AsyncIterator["subprocess.Popen[str]"]:
    with log_path.open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs yet
            [sys.executable, "-m", module, *arguments],
            env=clean_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def _target(title: str, address: str, pid: int) -> AsyncIterator[Target]:
    target = Target(title, address, pid)
    try:
        yield target
    finally:
        await target.close()


async def _wait_serving(address: str) -> None:
    async with asyncio.timeout(START_SECONDS), grpc.aio.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), wait_for_ready=True
        )
        async for reply in watch:
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
