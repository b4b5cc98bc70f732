"""The generated code under each major version of protobuf that the client allows.

Agent hosts pin protobuf 5 or 6, the service's own packages want 7. So each version gets an environment of
its own, with nothing else in it but what the client depends on. They are kept inside the environment that
runs the tests, so that only the first run has to install them.
"""

import fcntl
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from turnstore.v1 import history_service_pb2, lease_pb2, response_pb2

CLIENT_SOURCE = Path(__file__).parents[2] / "clients" / "python" / "src"

# The first test of an environment waits for its installation.
pytestmark = pytest.mark.timeout(600)

# The first is the oldest that clients/python/pyproject.toml allows of everything.
ENVIRONMENTS = {
    "protobuf-5.29": ["protobuf==5.29.0", "grpcio==1.71.2", "googleapis-common-protos==1.63.1"],
    "protobuf-6.33": ["protobuf==6.33.6", "grpcio==1.85.3", "googleapis-common-protos==1.76.0"],
    "protobuf-7.36": ["protobuf==7.36.2", "grpcio==1.85.3", "googleapis-common-protos==1.76.0"],
}

# Runs in the environment: imports every generated module below the folder in argv[1], reads the message that
# stands on the standard input, and tells what it found.
PROBE = """
import importlib, json, pathlib, sys
source = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(source))
names = sorted(path.stem for path in (source / "turnstore" / "v1").glob("*_pb2*.py"))
for name in names:
    importlib.import_module(f"turnstore.v1.{name}")
import google.protobuf
from turnstore.v1 import history_service_pb2
message = history_service_pb2.ClaimResponsesResponse.FromString(bytes.fromhex(sys.stdin.read()))
print(json.dumps({
    "protobuf": google.protobuf.__version__,
    "modules": names,
    "text": message.responses[0].response.input_items[0].json,
    "bytes": message.SerializeToString(deterministic=True).hex(),
}))
"""


def environment(name: str) -> Path:
    """The Python of the named environment, which is made if it is not there or holds other versions."""
    folder = Path(sys.prefix) / f"compat-{name}"
    stamp = folder / "installed.json"
    wanted = json.dumps(ENVIRONMENTS[name])
    # Another test process may be making it just now.
    with (Path(sys.prefix) / f"compat-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            install = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", "--only-binary", ":all:"]
            subprocess.run([folder / "bin" / "python", *install, *ENVIRONMENTS[name]], check=True)
            stamp.write_text(wanted)
    return folder / "bin" / "python"


def message_of_many_kinds() -> history_service_pb2.ClaimResponsesResponse:
    """A message with every kind of field that the contract has: presence, lists, maps, enums, times, text."""
    response = response_pb2.Response(
        id="resp_1",
        status=response_pb2.RESPONSE_STATUS_IN_PROGRESS,
        conversation_id="conv_1",
        input_items=[response_pb2.Item(id="item_1", type="message", json='{"text":"\\u0000 Grüße"}')],
        payload_json="{}",
        error=response_pb2.ResponseError(code="server_error"),
        exclude_from_replay=False,
        revision=2**40,
    )
    response.create_time.FromJsonString("2026-01-02T03:04:05.678Z")
    lease = lease_pb2.TurnLease(owner="host-1", recoverable=True, attempt=2)
    lease.ttl.FromMilliseconds(1500)
    claimed = history_service_pb2.ClaimedResponse(
        scope=response_pb2.Scope(namespace="default", user=""),
        response=response,
        lease=lease,
        metadata={"mail": "sent", "step": "3"},
    )
    return history_service_pb2.ClaimResponsesResponse(responses=[claimed])


@pytest.fixture(scope="module", params=list(ENVIRONMENTS))
def probed(request: pytest.FixtureRequest) -> dict[str, object]:
    """What the probe told in one of the environments, and which one that was."""
    name = request.param
    # -I: neither this folder nor the settings of this process reach the environment.
    run = subprocess.run(
        [environment(name), "-I", "-c", PROBE, CLIENT_SOURCE],
        input=message_of_many_kinds().SerializeToString(deterministic=True).hex(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return {"environment": name, **json.loads(run.stdout)}


def test_runs_under_the_version_it_is_named_after(probed: dict[str, object]) -> None:
    version = str(probed["protobuf"])
    assert probed["environment"] == "protobuf-" + ".".join(version.split(".")[:2])


def test_every_generated_module_is_imported(probed: dict[str, object]) -> None:
    assert probed["modules"] == [
        "errors_pb2",
        "history_service_pb2",
        "history_service_pb2_grpc",
        "lease_pb2",
        "replay_pb2",
        "response_pb2",
    ]


def test_a_message_is_read_alike(probed: dict[str, object]) -> None:
    assert probed["text"] == message_of_many_kinds().responses[0].response.input_items[0].json


def test_a_message_goes_round_unchanged(probed: dict[str, object]) -> None:
    assert probed["bytes"] == message_of_many_kinds().SerializeToString(deterministic=True).hex()
