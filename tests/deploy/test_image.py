"""The image: built, and run as production runs it, beside a MongoDB in a container."""

import json
import secrets
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import grpc
import pymongo
import pytest
import trustme
from docker.models.containers import Container
from grpc_health.v1 import health_pb2, health_pb2_grpc
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.engine import base_image, mongodb_image, need_engine
from tests.deploy.manifests import settings
from tests.deploy.tools import DEPLOY, ROOT
from tests.processes import wait_until
from turnstore import AccessError, HistoryClient, Response
from turnstore_service.operations.metrics import version

pytestmark = [pytest.mark.container, pytest.mark.timeout(600)]

WAIT_SECONDS = 90.0
PORTS = (27017, 50051, 50052, 9464)
URI = "mongodb://127.0.0.1:27017/?replicaSet=turnstore"

AS_IN_PRODUCTION: dict[str, Any] = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
}
"""As the manifests have it. The user is the image's own."""


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    need_engine()
    client = docker.from_env(timeout=500)
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient) -> Iterator[str]:
    """The name of the image, built for these tests."""
    name = f"turnstore-test-{uuid.uuid4().hex[:12]}"
    engine.images.build(
        path=str(ROOT),
        dockerfile="deploy/Dockerfile",
        buildargs={"BASE_IMAGE": base_image()},
        tag=name,
        rm=True,
        forcerm=True,
    )
    yield name
    engine.images.remove(name, force=True)


@pytest.fixture(scope="module")
def mongod(engine: docker.DockerClient) -> Iterator[Container]:
    """A replica set of one member, whose network the service's containers share."""
    container = engine.containers.run(
        mongodb_image(),
        ["--replSet", "turnstore", "--bind_ip_all", "--quiet"],
        detach=True,
        ports={f"{port}/tcp": ("127.0.0.1", None) for port in PORTS},
    )
    try:
        address = _published(container, 27017)
        with pymongo.MongoClient[dict[str, Any]](
            f"mongodb://{address}/?directConnection=true", serverSelectionTimeoutMS=int(WAIT_SECONDS * 1000)
        ) as client:
            members = [{"_id": 0, "host": "127.0.0.1:27017"}]
            client.admin.command("replSetInitiate", {"_id": "turnstore", "members": members})
            wait_until(
                lambda: bool(client.admin.command("hello").get("isWritablePrimary")),
                WAIT_SECONDS,
                "it is primary",
            )
        yield container
    finally:
        container.remove(force=True, v=True)


def _published(container: Container, port: int) -> str:
    """The address on this machine of a port of the container."""
    container.reload()
    (published,) = container.attrs["NetworkSettings"]["Ports"][f"{port}/tcp"]
    return f"127.0.0.1:{published['HostPort']}"


def _run(engine: docker.DockerClient, image: str, mongod: Container, *command: str) -> Container:
    return engine.containers.run(
        image,
        list(command),
        detach=True,
        network_mode=f"container:{mongod.id}",
        environment={
            "TURNSTORE_MONGODB_URI": URI,
            "TURNSTORE_HEALTH_LISTEN": "0.0.0.0:50052",
            "TURNSTORE_ALLOW_UNAUTHENTICATED": "true",
            "TURNSTORE_LOG_FORMAT": "json",
        },
        **AS_IN_PRODUCTION,
    )


@pytest.fixture(scope="module")
def migrated(engine: docker.DockerClient, image: str, mongod: Container) -> Iterator[Container]:
    """A container that has made the indexes."""
    container = _run(engine, image, mongod, "migrate")
    try:
        container.wait(timeout=WAIT_SECONDS)
        yield container
    finally:
        container.remove(force=True)


@pytest.fixture(scope="module")
def service(
    engine: docker.DockerClient, image: str, mongod: Container, migrated: Container
) -> Iterator[Container]:
    """A container that serves, and is ready."""
    container = _run(engine, image, mongod)
    try:
        _wait_ready(_published(mongod, 50052), container)
        yield container
    finally:
        container.remove(force=True)


def _wait_ready(address: str, container: Container) -> None:
    ends = time.monotonic() + WAIT_SECONDS
    with grpc.insecure_channel(address) as channel:
        # A port that is published takes connections before anybody listens behind it.
        while time.monotonic() < ends:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True
                )
            except grpc.RpcError:
                continue
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
    raise AssertionError(f"it is not ready:\n{container.logs().decode()}")


def _python(container: Container, program: str) -> Any:
    """What a Python program in the container prints, as JSON."""
    done = container.exec_run(["python", "-c", f"import json\n{program}"])
    assert done.exit_code == 0, done.output.decode()
    return json.loads(done.output)


def test_image_says_how_it_is_run(engine: docker.DockerClient, image: str) -> None:
    configuration = engine.images.get(image).attrs["Config"]
    assert configuration["User"] == "65532:65532"
    assert configuration["Entrypoint"] == ["turnstore-service"]
    assert configuration["Cmd"] == ["serve"]
    assert set(configuration["ExposedPorts"]) == {"50051/tcp", "9464/tcp"}


def test_migrate_makes_the_indexes(migrated: Container) -> None:
    assert migrated.wait(timeout=WAIT_SECONDS)["StatusCode"] == 0, migrated.logs().decode()
    assert migrated.logs().decode().splitlines()[-1] == "The indexes stand."


def test_calls_are_answered(service: Container, mongod: Container) -> None:
    item = {"type": "message", "id": "q1", "role": "user", "content": "A weekend in Oslo?"}
    with HistoryClient(_published(mongod, 50051), user="alice") as client:
        client.store_response(Response("t1", "completed", conversation_id="trip", input_items=[item]))
        history = client.resolve_history(conversation_id="trip", view="full")
    assert [given["id"] for given in history.data()] == ["q1"]


def test_metrics_are_served(service: Container, mongod: Container) -> None:
    host, _, port = _published(mongod, 9464).partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert "\nturnstore_ready 1.0\n" in text
    assert f'version="{version()}"' in text


def test_service_has_no_rights(service: Container) -> None:
    status = _python(
        service,
        "print(json.dumps(dict(line.rstrip().split(':\\t', 1) for line in open('/proc/1/status') if ':\\t' in line)))",
    )
    assert status["Uid"].split() == ["65532"] * 4
    assert status["Gid"].split() == ["65532"] * 4
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_nothing_of_the_root_can_be_written(service: Container) -> None:
    # What is in memory or a device does not count.
    written = _python(
        service,
        "import os\n"
        "found = []\n"
        "for folder, folders, _ in os.walk('/'):\n"
        "    folders[:] = [f for f in folders if os.path.join(folder, f) not in ('/proc', '/sys', '/dev')]\n"
        "    try:\n"
        "        open(os.path.join(folder, 'written'), 'w').close()\n"
        "        found.append(folder)\n"
        "    except OSError:\n"
        "        pass\n"
        "print(json.dumps(found))",
    )
    assert [folder for folder in written if not folder.startswith(("/tmp", "/run", "/var/tmp"))] == []


def test_packages_are_those_of_the_lock_and_no_others(service: Container) -> None:
    lock = (DEPLOY / "requirements.lock").read_text()
    pinned = [Requirement(line.rstrip(" \\")) for line in lock.splitlines() if line[:1].isalnum()]
    wanted = {
        f"{canonicalize_name(pin.name)} {next(iter(pin.specifier)).version}"
        for pin in pinned
        if pin.marker is None or pin.marker.evaluate()
    }
    installed = _python(
        service,
        "from importlib.metadata import distributions\n"
        "import sys\n"
        "paths = [p for p in sys.path if p.startswith('/opt/turnstore')]\n"
        "print(json.dumps([[d.name, d.version] for d in distributions(path=paths)]))",
    )
    found = {f"{canonicalize_name(name)} {number}" for name, number in installed}
    assert found == wanted | {f"turnstore {version()}", f"turnstore-service {version()}"}


def test_health_check_of_compose_passes(service: Container) -> None:
    done = service.exec_run(["turnstore", "ping"])
    assert done.exit_code == 0, done.output.decode()


def test_log_is_json(service: Container) -> None:
    lines = [json.loads(line) for line in service.logs().decode().splitlines()]
    assert {"starting", "listening", "ready"} <= {line["event"] for line in lines}


def test_sigterm_ends_it_in_order(service: Container) -> None:
    """After the others, since it ends the service."""
    service.stop(timeout=30)
    assert service.wait(timeout=WAIT_SECONDS)["StatusCode"] == 0
    assert json.loads(service.logs().decode().splitlines()[-1])["event"] == "stopped"


def test_settings_of_production_serve_over_tls_to_who_has_a_token(
    engine: docker.DockerClient, image: str, mongod: Container, migrated: Container, tmp_path: Path
) -> None:
    """After the others, since it takes the same ports."""
    authority, token = trustme.CA(), secrets.token_hex(32)
    issued = authority.issue_cert("turnstore-headless.turnstore.svc")
    grants = [{"token": token, "namespace": "acme", "rights": ["read", "write"]}]
    for name, content in (
        ("mongodb/uri", f"{URI}\n".encode()),
        ("tokens/tokens.json", json.dumps({"tokens": grants}).encode()),
        ("tls/tls.crt", issued.cert_chain_pems[0].bytes()),
        ("tls/tls.key", issued.private_key_pem.bytes()),
        ("ca.crt", authority.cert_pem.bytes()),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    container = engine.containers.run(
        image,
        detach=True,
        network_mode=f"container:{mongod.id}",
        environment=settings("prod"),
        volumes={
            str(tmp_path / name): {"bind": f"/run/secrets/turnstore/{name}", "mode": "ro"}
            for name in ("mongodb", "tokens", "tls")
        },
        **AS_IN_PRODUCTION,
    )
    try:
        _wait_ready(_published(mongod, 50052), container)
        endpoint: dict[str, Any] = {
            "target": _published(mongod, 50051),
            "tls_ca": tmp_path / "ca.crt",
            "tls_server_name": "turnstore-headless.turnstore.svc",
        }
        with HistoryClient(**endpoint, token=token) as client:
            client.store_response(Response("t1", "completed", conversation_id="trip"))
            assert [turn.id for turn in client.list_responses(conversation_id="trip")] == ["t1"]
        with HistoryClient(**endpoint, token="wrong" * 8) as client, pytest.raises(AccessError):
            client.get_response("t1")
    finally:
        container.remove(force=True)
