"""A real service for the tests of the Azure AI AgentServer adapter, and providers on it."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.database import Database

from tests.database import drop_database
from tests.service_process import ServiceProcess, run_command
from turnstore import AsyncHistoryClient
from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider


@pytest.fixture(scope="session")
def service(mongodb_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service process, shared: each test has a namespace of its own."""
    settings = {
        "TURNSTORE_MONGODB_URI": mongodb_uri,
        "TURNSTORE_MONGODB_DATABASE": f"turnstore_test_{uuid.uuid4().hex}",
    }
    made = run_command("migrate", settings=settings)
    assert made.returncode == 0, made.stderr
    process = ServiceProcess(tmp_path_factory.mktemp("service"), settings)
    yield process.wait_ready()
    process.kill()
    drop_database(mongodb_uri, settings["TURNSTORE_MONGODB_DATABASE"])


@pytest.fixture
def namespace() -> str:
    """The namespace of the test's data."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
async def provider(service: ServiceProcess, namespace: str) -> AsyncIterator[TurnstoreResponseProvider]:
    """A provider on the service."""
    store = TurnstoreResponseProvider(service.target, namespace=namespace)
    yield store
    await store.close()


@pytest.fixture
async def other_provider(service: ServiceProcess, namespace: str) -> AsyncIterator[TurnstoreResponseProvider]:
    """A provider of another host, on the same data."""
    store = TurnstoreResponseProvider(service.target, namespace=namespace)
    yield store
    await store.close()


@pytest.fixture
async def client(service: ServiceProcess, namespace: str) -> AsyncIterator[AsyncHistoryClient]:
    """A client that sees what the providers stored."""
    async with AsyncHistoryClient(service.target, namespace=namespace) as seeing:
        yield seeing


@pytest.fixture(autouse=True)
def state_of_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where hosts keep what is not in their store: never in the home directory of who runs the tests."""
    root = tmp_path / "agentserver"
    monkeypatch.setenv("AGENTSERVER_STATE_ROOT", str(root))
    return root


@pytest.fixture
def database(service: ServiceProcess) -> Iterator[Database[dict[str, Any]]]:
    """The service's database."""
    with pymongo.MongoClient[dict[str, Any]](service.settings["TURNSTORE_MONGODB_URI"]) as mongo:
        yield mongo[service.settings["TURNSTORE_MONGODB_DATABASE"]]
