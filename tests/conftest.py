"""What all tests share: a MongoDB, databases of their own in it, and services."""

import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.database import Choice, NoDatabaseError, RunningDatabase, choose, drop_database, forget_settings
from tests.service_process import ServiceProcess, run_command, service_in_process

_CHOICE = pytest.StashKey[Choice]()
_DATABASE = pytest.StashKey[RunningDatabase]()

StartService = Callable[..., ServiceProcess]


def pytest_configure(config: pytest.Config) -> None:
    forget_settings()
    if not _is_worker(config):
        try:
            config.stash[_CHOICE] = choose(os.environ)
        except NoDatabaseError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str | None:
    return None if _is_worker(config) else f"MongoDB of the tests: {config.stash[_CHOICE]}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Test processes share one MongoDB, which the process that started them runs."""
    node.workerinput["mongodb_uri"] = _started(node.config).uri


def pytest_unconfigure(config: pytest.Config) -> None:
    if _DATABASE in config.stash:
        config.stash[_DATABASE].stop()
        del config.stash[_DATABASE]


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _started(config: pytest.Config) -> RunningDatabase:
    if _DATABASE not in config.stash:
        config.stash[_DATABASE] = RunningDatabase(config.stash[_CHOICE], os.environ)
    return config.stash[_DATABASE]


@pytest.fixture(scope="session")
def mongodb_uri(pytestconfig: pytest.Config) -> str:
    """A MongoDB replica set, shared by all tests of the run."""
    if _is_worker(pytestconfig):
        return str(pytestconfig.workerinput["mongodb_uri"])  # type: ignore[attr-defined]
    return _started(pytestconfig).uri


@pytest.fixture
def database_name(mongodb_uri: str) -> Iterator[str]:
    """The name of a database of the test's own, dropped after it."""
    name = f"turnstore_test_{uuid.uuid4().hex}"
    yield name
    drop_database(mongodb_uri, name)


@pytest.fixture
async def history_channel(mongodb_uri: str, database_name: str) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a service in the test's process, on a database of its own."""
    async with service_in_process(mongodb_uri=mongodb_uri, mongodb_database=database_name) as service:
        yield service.channel


@pytest.fixture
def start_service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartService]:
    """Starts services as processes of their own, and ends those that a test leaves.

    `start_service(settings, migrate=True)`: on the tests' MongoDB and the test's database, whose indexes are
    made before unless told otherwise. `settings` are further TURNSTORE_* variables; TURNSTORE_MONGODB_URI as
    None starts it on an embedded MongoDB in the test's directory.
    """
    services: list[ServiceProcess] = []

    def start(settings: Mapping[str, str | None] | None = None, *, migrate: bool = True) -> ServiceProcess:
        settings = dict(settings or {})
        embedded = "TURNSTORE_MONGODB_URI" in settings and settings["TURNSTORE_MONGODB_URI"] is None
        if embedded:
            settings.setdefault("TURNSTORE_DATA_DIR", str(tmp_path / "data"))
        else:
            settings.setdefault("TURNSTORE_MONGODB_URI", request.getfixturevalue("mongodb_uri"))
            if "TURNSTORE_MONGODB_DATABASE" not in settings:
                settings["TURNSTORE_MONGODB_DATABASE"] = request.getfixturevalue("database_name")
        given = {name: value for name, value in settings.items() if value is not None}
        if migrate and not embedded:
            made = run_command("migrate", settings=given)
            assert made.returncode == 0, made.stderr
        service = ServiceProcess(tmp_path / f"service-{len(services)}", given)
        services.append(service)
        return service

    yield start
    for service in services:
        service.kill()
