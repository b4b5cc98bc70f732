"""TLS and mutual TLS at a real service; the namespaces of certificates are among the tests of access."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.credentials import Certificates, secure_channel
from tests.service_process import RunningService, service_in_process
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2


async def _code(channel: grpc.aio.Channel) -> str:
    try:
        await history_service_pb2_grpc.HistoryServiceStub(channel).DeleteUserData(
            rpc.DeleteUserDataRequest(scope=response_pb2.Scope(namespace="acme")), timeout=20
        )
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates()
    key, chain = made.server()
    for name, content in (("tls.key", key), ("tls.crt", chain), ("ca.crt", made.ca)):
        (tmp_path / name).write_bytes(content)
    return made


@pytest.fixture(params=["tls", "mutual"])
async def service(
    request: pytest.FixtureRequest,
    certificates: Certificates,
    mongodb_uri: str,
    database_name: str,
    tmp_path: Path,
) -> AsyncIterator[RunningService]:
    settings = {"server_tls_key": tmp_path / "tls.key", "server_tls_cert": tmp_path / "tls.crt"}
    if request.param == "mutual":
        settings["server_tls_client_ca"] = tmp_path / "ca.crt"
    async with service_in_process(
        mongodb_uri=mongodb_uri, mongodb_database=database_name, **settings
    ) as running:
        yield running


async def test_caller_with_a_certificate_gets_in(service: RunningService, certificates: Certificates) -> None:
    async with secure_channel(service.target, certificates.ca, certificates.client("a.example")) as channel:
        assert await _code(channel) == "OK"


@pytest.mark.parametrize(
    ("service", "code"), [("tls", "OK"), ("mutual", "UNAVAILABLE")], indirect=["service"]
)
async def test_only_mutual_tls_needs_a_certificate(
    service: RunningService, certificates: Certificates, code: str
) -> None:
    async with secure_channel(service.target, certificates.ca) as channel:
        assert await _code(channel) == code


@pytest.mark.parametrize("service", ["mutual"], indirect=True)
async def test_certificate_of_another_authority_is_refused(
    service: RunningService, certificates: Certificates
) -> None:
    stranger = Certificates().client("a.example")
    async with secure_channel(service.target, certificates.ca, stranger) as channel:
        assert await _code(channel) == "UNAVAILABLE"


async def test_plain_text_is_refused(service: RunningService) -> None:
    assert await _code(service.channel) == "UNAVAILABLE"


async def test_caller_sees_that_the_service_is_another(service: RunningService) -> None:
    others = Certificates()
    async with secure_channel(service.target, others.ca, others.client("a.example")) as channel:
        assert await _code(channel) == "UNAVAILABLE"
