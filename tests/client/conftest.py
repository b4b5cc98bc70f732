"""What the tests of the clients share: a service of their own, and scopes in it."""

import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.client.both_clients import KINDS, client_of
from tests.database import drop_database
from tests.service_process import ServiceProcess, run_command


@pytest.fixture(scope="session")
def service(mongodb_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service that the tests of the run share, each in a namespace of its own."""
    name = f"turnstore_test_{uuid.uuid4().hex}"
    settings = {"TURNSTORE_MONGODB_URI": mongodb_uri, "TURNSTORE_MONGODB_DATABASE": name}
    made = run_command("migrate", settings=settings)
    assert made.returncode == 0, made.stderr
    started = ServiceProcess(tmp_path_factory.mktemp("service"), settings)
    try:
        yield started.wait_ready()
    finally:
        started.kill()
        drop_database(mongodb_uri, name)


@pytest.fixture
def namespace() -> str:
    """A namespace that nothing else uses."""
    return uuid.uuid4().hex


@pytest.fixture(params=KINDS)
async def client(
    request: pytest.FixtureRequest, service: ServiceProcess, namespace: str
) -> AsyncIterator[Any]:
    """A client of either kind, in a namespace of its own."""
    async with client_of(request.param, service.target, namespace=namespace) as connected:
        yield connected


@pytest.fixture
def unused_target() -> Iterator[str]:
    """An address that refuses connections for as long as the test runs."""
    # Bound and not listened on, the port is refused and given to nobody else.
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"
