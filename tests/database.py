"""Where the tests' MongoDB comes from.

In this order: the one at TURNSTORE_TEST_MONGODB_URI; a container, when an engine answers within 2 seconds and
has the image TURNSTORE_TEST_MONGODB_IMAGE already; the embedded one. TURNSTORE_TEST_MONGODB=uri, container or
embedded forces one, and fails where it cannot be had.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pymongo
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import APIError, DockerException, ImageNotFound
from requests.exceptions import RequestException
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from turnstore_service.embedded.binary import find_mongod
from turnstore_service.embedded.errors import EmbeddedMongodError
from turnstore_service.embedded.mongod import EmbeddedMongod

KIND = "TURNSTORE_TEST_MONGODB"
URI = "TURNSTORE_TEST_MONGODB_URI"
IMAGE = "TURNSTORE_TEST_MONGODB_IMAGE"
DEFAULT_IMAGE = "mongo:7.0.14"

ENGINE_SECONDS = 2
"""How long a container engine may take to answer; where there is none, the tests must not wait for it."""
START_SECONDS = 60.0
POLL_SECONDS = 0.05


class NoDatabaseError(Exception):
    """The database that was asked for cannot be had; the message says why."""


@dataclass(frozen=True)
class Choice:
    """Which kind of database the tests use, and why."""

    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.why})"


def choose(environment: Mapping[str, str]) -> Choice:
    """Looks at what there is. Raises NoDatabaseError when the kind that is forced cannot be had."""
    forced = environment.get(KIND)
    looks = {"uri": _look_for_uri, "container": _look_for_container, "embedded": _look_for_embedded}
    if forced is not None:
        if forced not in looks:
            raise NoDatabaseError(f"{KIND}={forced}: must be one of {', '.join(looks)}")
        found, why = looks[forced](environment)
        if not found:
            raise NoDatabaseError(f"{KIND}={forced}, but {why}")
        return Choice(forced, why)
    reasons = []
    for kind, look in looks.items():
        found, why = look(environment)
        if found:
            return Choice(kind, "; ".join([*reasons, why]))
        reasons.append(why)
    raise NoDatabaseError(f"no MongoDB for the tests: {'; '.join(reasons)}")


def _look_for_uri(environment: Mapping[str, str]) -> tuple[bool, str]:
    return (True, f"{URI} is set") if environment.get(URI) else (False, f"no {URI}")


def _look_for_container(environment: Mapping[str, str]) -> tuple[bool, str]:
    image = environment.get(IMAGE, DEFAULT_IMAGE)
    if not _engine_answers():
        return False, "no container engine answers"
    engine = docker.from_env()
    try:
        engine.images.get(image)
    except ImageNotFound:
        return False, f"the container engine has no image {image}"
    finally:
        engine.close()
    return True, f"image {image}"


def _engine_answers() -> bool:
    try:
        # With a version given, none is asked for: some engines need seconds to tell theirs.
        engine = docker.from_env(version=DEFAULT_DOCKER_API_VERSION, timeout=ENGINE_SECONDS)
        try:
            engine.ping()
        except APIError:  # of another version, but there
            return True
        finally:
            engine.close()
    except (DockerException, RequestException):
        return False
    return True


def _look_for_embedded(_environment: Mapping[str, str]) -> tuple[bool, str]:
    try:
        return True, str(find_mongod(None))
    except EmbeddedMongodError as error:
        return False, str(error)


class RunningDatabase:
    """The MongoDB of one test run."""

    def __init__(self, choice: Choice, environment: Mapping[str, str]) -> None:
        self._stack = ExitStack()
        starts: dict[str, Callable[[], str]] = {
            "uri": lambda: environment[URI],
            "container": lambda: self._start_container(environment.get(IMAGE, DEFAULT_IMAGE)),
            "embedded": self._start_embedded,
        }
        try:
            self.uri = starts[choice.kind]()
        except BaseException:
            self._stack.close()
            raise

    def stop(self) -> None:
        """Ends what was started."""
        self._stack.close()

    def _start_embedded(self) -> str:
        directory = Path(tempfile.mkdtemp(prefix="turnstore-tests-"))
        self._stack.callback(shutil.rmtree, directory, ignore_errors=True)
        mongod = EmbeddedMongod(directory, find_mongod(None))
        mongod.start()
        self._stack.callback(mongod.stop)
        return mongod.uri

    def _start_container(self, image: str) -> str:
        # Ryuk, which would remove what a killed test run leaves, is an image of its own that may not be
        # there.
        testcontainers_config.ryuk_disabled = True
        container = DockerContainer(image).with_command("--replSet turnstore --bind_ip_all --quiet")
        container.with_exposed_ports(27017)
        container.start()
        self._stack.callback(container.stop)
        host, port = container.get_container_host_ip(), container.get_exposed_port(27017)
        # The member knows itself by its address inside the container, so clients must not look for others.
        uri = f"mongodb://{host}:{port}/?directConnection=true"
        with pymongo.MongoClient[dict[str, Any]](
            uri, serverSelectionTimeoutMS=int(START_SECONDS * 1000)
        ) as client:
            client.admin.command(
                "replSetInitiate", {"_id": "turnstore", "members": [{"_id": 0, "host": "127.0.0.1:27017"}]}
            )
            ends = time.monotonic() + START_SECONDS
            while not client.admin.command("hello").get("isWritablePrimary"):
                if time.monotonic() > ends:
                    raise NoDatabaseError(f"the mongod in {image} did not become primary")
                time.sleep(POLL_SECONDS)
        return uri


def drop_database(uri: str, name: str) -> None:
    """Removes a test's database."""
    with pymongo.MongoClient[dict[str, Any]](uri) as client:
        client.drop_database(name)


def forget_settings() -> None:
    """Takes the settings that a developer's shell has for the service out of the tests' environment."""
    for name in [name for name in os.environ if name.upper().startswith("TURNSTORE_")]:
        if not name.startswith("TURNSTORE_TEST_"):
            del os.environ[name]
