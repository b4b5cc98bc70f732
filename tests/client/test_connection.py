"""How the clients hold on to services: over event loops, over several instances, over TLS."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.client.both_clients import KINDS, client_of
from tests.client.scripted_service import ScriptedService
from turnstore import AsyncHistoryClient, HistoryClient, ServiceUnreachableError
from turnstore.v1 import history_service_pb2 as pb

BOTH = pytest.mark.parametrize("kind", KINDS)

ANSWER = pb.GetResponseResponse()


def ipv4(*services: ScriptedService) -> str:
    return "ipv4:" + ",".join(service.target.replace("localhost", "127.0.0.1") for service in services)


def test_one_client_serves_several_event_loops() -> None:
    with ScriptedService(ANSWER) as service:
        client = AsyncHistoryClient(service.target)
        all_running = threading.Barrier(3)

        async def call() -> None:
            await client.get_response("r")
            # Each loop is alive while the others make their calls.
            await asyncio.to_thread(all_running.wait, 30)
            await client.get_response("r")

        threads = [threading.Thread(target=asyncio.run, args=(call(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asyncio.run(client.close())
    assert len(service.received) == 6


def test_channel_of_a_loop_that_has_ended_is_let_go() -> None:
    with ScriptedService(ANSWER) as service:
        client = AsyncHistoryClient(service.target)
        loops = []

        async def call() -> None:
            loops.append(asyncio.get_running_loop())
            await client.get_response("r")

        for _ in range(3):
            asyncio.run(call())
        assert [loop for loop in loops if loop in client._connection._channels] == loops[-1:]
        asyncio.run(client.close())


async def test_closing_ends_the_channels_of_other_loops() -> None:
    with ScriptedService(ANSWER) as service:
        client = AsyncHistoryClient(service.target)
        called, closed = threading.Event(), threading.Event()
        channels: list[grpc.aio.Channel] = []

        async def elsewhere() -> None:
            await client.get_response("r")
            channels.extend(client._connection._channels.values())
            called.set()
            await asyncio.to_thread(closed.wait, 30)
            while channels[0].get_state() is not grpc.ChannelConnectivity.SHUTDOWN:  # noqa: ASYNC110
                # A channel that is closed from another loop tells nobody of it.
                await asyncio.sleep(0)

        thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
        thread.start()
        await asyncio.to_thread(called.wait, 30)
        await client.close()
        closed.set()
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()


def test_plain_client_serves_many_threads() -> None:
    with ScriptedService(ANSWER) as service, HistoryClient(service.target) as client:
        threads = [threading.Thread(target=client.get_response, args=("r",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(service.received) == 8


def test_client_that_was_never_used_is_closed() -> None:
    with HistoryClient() as client:
        pass
    client.close()


@BOTH
async def test_calls_go_round_all_instances(kind: str) -> None:
    with ScriptedService(ANSWER) as first, ScriptedService(ANSWER) as second:
        async with client_of(kind, ipv4(first, second)) as client:
            # The first calls may come before both connections stand.
            while not (first.received and second.received):
                await client.get_response("r")


@BOTH
async def test_instance_that_cannot_serve_is_passed_over(kind: str) -> None:
    with ScriptedService(ANSWER) as first, ScriptedService(ANSWER) as second:
        first.set_serving(False)
        async with client_of(kind, ipv4(first, second)) as client:
            for _ in range(20):
                await client.get_response("r")
    assert (len(first.received), len(second.received)) == (0, 20)


@BOTH
async def test_instance_that_ends_is_not_missed(kind: str) -> None:
    with ScriptedService(ANSWER) as first, ScriptedService(ANSWER) as second:
        async with client_of(kind, ipv4(first, second)) as client:
            while not (first.received and second.received):
                await client.get_response("r")
            second.end()
            for _ in range(20):
                await client.get_response("r")


@asynccontextmanager
async def slow_network(target: str, seconds: float) -> AsyncIterator[str]:
    """An address from which everything comes to the target, and only after a time."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        host, _, port = target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"127.0.0.1:{port}"


@BOTH
async def test_connection_that_takes_its_time_is_not_given_up(kind: str) -> None:
    with ScriptedService(ANSWER) as service:
        async with (
            slow_network(service.target, seconds=0.5) as target,
            client_of(kind, target, wait_for_ready=False) as client,
        ):
            await client.get_response("r")
    assert len(service.received) == 1


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_credentials(authority: trustme.CA, name: str = "localhost", **more: Any) -> grpc.ServerCredentials:
    certificate = authority.issue_cert(name)
    pair = (certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes())
    return grpc.ssl_server_credentials([pair], **more)


def written(path: Path, *contents: trustme.Blob) -> Path:
    path.write_bytes(b"".join(content.bytes() for content in contents))
    return path


@BOTH
async def test_tls_with_an_authority_of_one_s_own(kind: str, authority: trustme.CA, tmp_path: Path) -> None:
    ca = written(tmp_path / "ca.pem", authority.cert_pem)
    with ScriptedService(ANSWER, credentials=server_credentials(authority)) as service:
        async with client_of(kind, service.target, tls_ca=ca, token="t") as client:
            await client.get_response("r")
            assert (await client.ping()).serving
    assert service.received[0].metadata["authorization"] == "Bearer t"


@BOTH
async def test_service_with_a_certificate_of_another_authority_gets_no_call(
    kind: str, authority: trustme.CA, tmp_path: Path
) -> None:
    ca = written(tmp_path / "ca.pem", trustme.CA().cert_pem)
    with ScriptedService(ANSWER, credentials=server_credentials(authority)) as service:
        async with client_of(kind, service.target, tls_ca=ca, wait_for_ready=False) as client:
            with pytest.raises(
                ServiceUnreachableError, match=r"TLS could not be agreed on: check the authority"
            ):
                await client.get_response("r")
    assert service.received == []


@BOTH
async def test_certificate_for_another_name(kind: str, authority: trustme.CA, tmp_path: Path) -> None:
    ca = written(tmp_path / "ca.pem", authority.cert_pem)
    with ScriptedService(ANSWER, credentials=server_credentials(authority, "turnstore.test")) as service:
        async with client_of(kind, service.target, tls_ca=ca, wait_for_ready=False) as client:
            with pytest.raises(ServiceUnreachableError):
                await client.get_response("r")
        async with client_of(kind, service.target, tls_ca=ca, tls_server_name="turnstore.test") as client:
            await client.get_response("r")


@BOTH
async def test_service_that_wants_tls_is_told_apart_from_none(kind: str, authority: trustme.CA) -> None:
    with ScriptedService(ANSWER, credentials=server_credentials(authority)) as service:
        async with client_of(kind, service.target, wait_for_ready=False) as client:
            with pytest.raises(ServiceUnreachableError, match=r"closes the connection: .* it wants TLS"):
                await client.get_response("r")


@BOTH
async def test_mutual_tls(kind: str, authority: trustme.CA, tmp_path: Path) -> None:
    ca = written(tmp_path / "ca.pem", authority.cert_pem)
    own = authority.issue_cert("host-1")
    files = {
        "tls_ca": ca,
        "tls_cert": written(tmp_path / "cert.pem", *own.cert_chain_pems),
        "tls_key": written(tmp_path / "key.pem", own.private_key_pem),
    }
    credentials = server_credentials(
        authority, root_certificates=authority.cert_pem.bytes(), require_client_auth=True
    )
    with ScriptedService(ANSWER, credentials=credentials) as service:
        async with client_of(kind, service.target, **files) as client:
            await client.get_response("r")
        async with client_of(kind, service.target, tls_ca=ca, wait_for_ready=False) as client:
            with pytest.raises(ServiceUnreachableError):
                await client.get_response("r")
    assert len(service.received) == 1


@BOTH
async def test_certificate_file_that_is_not_there_is_named(kind: str, tmp_path: Path) -> None:
    async with client_of(kind, tls_ca=tmp_path / "none.pem") as client:
        with pytest.raises(ValueError, match=r"tls_ca .*none.pem cannot be read: No such file"):
            await client.get_response("r")
