"""Certificates and tokens that are exchanged while calls are made, without one that fails."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.conftest import StartService
from tests.credentials import Certificates, replace, secure_channel, tokens_json, until
from tests.service_process import ServiceProcess
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2

CALLS_AFTER = 25
"""Calls of each caller that have to go well after a change."""
ALL = ("read", "write", "erase")


class Caller:
    """Calls again and again until it is told to stop."""

    def __init__(self, call: Callable[[], Awaitable[None]]) -> None:
        self.calls = 0
        self.failures: list[str] = []
        self._call = call
        self._stopping = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._call()
            except grpc.aio.AioRpcError as error:
                self.failures.append(f"{error.code().name}: {error.details()}")
            self.calls += 1

    async def stop(self) -> None:
        self._stopping = True
        await self._task


class Load:
    """Several callers at one time."""

    def __init__(self, *calls: Callable[[], Awaitable[None]]) -> None:
        self._callers = [Caller(call) for call in calls]

    async def goes_on(self) -> None:
        """Returns when each has made some more calls; fails if one of them has failed."""
        goals = [caller.calls + CALLS_AFTER for caller in self._callers]
        await until(
            lambda: all(caller.calls >= goal for caller, goal in zip(self._callers, goals, strict=True)),
            "every caller gets on",
            60,
        )
        assert [caller.failures for caller in self._callers if caller.failures] == []

    async def stop(self) -> None:
        await asyncio.gather(*(caller.stop() for caller in self._callers))
        assert [caller.failures for caller in self._callers if caller.failures] == []


@asynccontextmanager
async def _load(*calls: Callable[[], Awaitable[None]]) -> AsyncIterator[Load]:
    load = Load(*calls)
    try:
        await load.goes_on()
        yield load
    finally:
        await load.stop()


async def _call(channel: grpc.aio.Channel, token: str | None = None) -> None:
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    await history_service_pb2_grpc.HistoryServiceStub(channel).ListResponses(
        rpc.ListResponsesRequest(scope=response_pb2.Scope(namespace="acme"), conversation_id="c"),
        metadata=metadata,
        timeout=30,
    )


async def _code(channel: grpc.aio.Channel, token: str | None = None) -> str:
    try:
        await _call(channel, token)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@pytest.fixture
def old(tmp_path: Path) -> Certificates:
    """The certificates in use at first, as files."""
    certificates = Certificates()
    key, chain = certificates.server()
    replace(tmp_path / "tls.key", key)
    replace(tmp_path / "tls.crt", chain)
    replace(tmp_path / "ca.crt", certificates.ca)
    return certificates


@pytest.fixture
def new() -> Certificates:
    return Certificates()


def _files(directory: Path, *names: str) -> Mapping[str, str | None]:
    variables = {
        "tls.key": "TURNSTORE_SERVER_TLS_KEY",
        "tls.crt": "TURNSTORE_SERVER_TLS_CERT",
        "ca.crt": "TURNSTORE_SERVER_TLS_CLIENT_CA",
    }
    return {variables[name]: str(directory / name) for name in names}


async def _presented(service: ServiceProcess) -> str:
    """The certificate that the service presents to a new connection, as PEM."""

    def fetch() -> str:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        host, _, port = service.target.rpartition(":")
        with (
            socket.create_connection((host, int(port)), 10) as plain,
            context.wrap_socket(plain) as secure,
        ):
            return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"")

    return await asyncio.to_thread(fetch)


async def _presents(service: ServiceProcess, chain: bytes) -> bool:
    return "".join((await _presented(service)).split()) in "".join(chain.decode().split())


def _new_connections(
    service: ServiceProcess, ca: bytes, client: tuple[bytes, bytes] = (b"", b"")
) -> Callable[[], Awaitable[None]]:
    """Calls with a connection of its own each."""

    async def call() -> None:
        async with secure_channel(service.target, ca, client) as channel:
            await _call(channel)

    return call


async def test_certificate_is_exchanged_without_a_failed_call(
    start_service: StartService, tmp_path: Path, old: Certificates, new: Certificates
) -> None:
    service = start_service(_files(tmp_path, "tls.key", "tls.crt"))
    target = await asyncio.to_thread(lambda: service.target)
    key, chain = new.server()
    both = old.ca + new.ca
    async with (
        secure_channel(target, both) as lasting,
        secure_channel(target, new.ca) as trusts_new,
        _load(lambda: _call(lasting), _new_connections(service, both)) as load,
    ):
        assert await _code(trusts_new) == "UNAVAILABLE"
        replace(tmp_path / "tls.key", key)
        # For a moment key and certificate do not belong together.
        await load.goes_on()
        assert not await _presents(service, chain)
        replace(tmp_path / "tls.crt", chain)
        await until(lambda: _presents(service, chain), "new connections see the new certificate")
        await load.goes_on()
    async with secure_channel(target, new.ca) as trusts_new, secure_channel(target, old.ca) as trusts_old:
        assert await _code(trusts_new) == "OK"
        assert await _code(trusts_old) == "UNAVAILABLE"
    events = [line["event"] for line in service.log_lines() if "TLS" in line["event"]]
    assert events == [
        "a file of TLS changed and cannot be used; what was read before stays",
        "a file of TLS changed and was read again",
    ]


async def test_authority_of_callers_is_exchanged_without_a_failed_call(
    start_service: StartService, tmp_path: Path, old: Certificates, new: Certificates
) -> None:
    service = start_service(_files(tmp_path, "tls.key", "tls.crt", "ca.crt"))
    target = await asyncio.to_thread(lambda: service.target)
    old_client, new_client = old.client("host.example"), new.client("host.example")

    async def code(client: tuple[bytes, bytes]) -> str:
        async with secure_channel(target, old.ca, client) as channel:
            return await _code(channel)

    async with (
        secure_channel(target, old.ca, old_client) as lasting,
        _load(lambda: _call(lasting), _new_connections(service, old.ca, old_client)) as load,
    ):
        assert await code(new_client) == "UNAVAILABLE"
        replace(tmp_path / "ca.crt", old.ca + new.ca)
        assert await code(new_client) == "OK"
        await load.goes_on()
    async with _load(_new_connections(service, old.ca, new_client)) as load:
        replace(tmp_path / "ca.crt", new.ca)
        assert await code(old_client) == "UNAVAILABLE"
        await load.goes_on()


async def test_tokens_are_exchanged_without_a_failed_call(
    start_service: StartService, tmp_path: Path
) -> None:
    first, second = "the-first-token-of-acme", "the-second-token-of-acme"
    file = tmp_path / "tokens.json"
    replace(file, tokens_json((first, "acme", ALL)))
    service = start_service({"TURNSTORE_AUTH": "tokens", "TURNSTORE_TOKENS_FILE": str(file)})
    target = await asyncio.to_thread(lambda: service.target)
    used = first
    async with grpc.aio.insecure_channel(target) as channel, _load(lambda: _call(channel, used)) as load:
        assert await _code(channel, second) == "UNAUTHENTICATED"
        replace(file, tokens_json((first, "acme", ALL), (second, "acme", ALL)))
        await load.goes_on()
        assert await _code(channel, second) == "OK"
        replace(file, json.dumps({"tokens": "broken"}))
        await load.goes_on()
        used = second
        await load.goes_on()
        replace(file, tokens_json((second, "acme", ALL)))
        await load.goes_on()

        async def is_refused() -> bool:
            return await _code(channel, first) == "UNAUTHENTICATED"

        await until(is_refused, "the token that was taken away is refused")
    assert first not in service.log_text()
    assert second not in service.log_text()


@pytest.mark.parametrize("file", ["tls.crt", "tokens.json"])
def test_start_with_a_file_that_cannot_be_used_ends_with_a_message(
    start_service: StartService, tmp_path: Path, old: Certificates, file: str
) -> None:
    replace(tmp_path / "tokens.json", tokens_json())
    (tmp_path / file).write_text("broken")
    settings = {"TURNSTORE_AUTH": "tokens", "TURNSTORE_TOKENS_FILE": str(tmp_path / "tokens.json")}
    service = start_service({**settings, **_files(tmp_path, "tls.key", "tls.crt")}, migrate=False)
    assert service.wait_ended() == 1
    assert str(tmp_path / file) in service.log_text()
    assert "Traceback" not in service.log_text()
