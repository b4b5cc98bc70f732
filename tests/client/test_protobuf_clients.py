"""Both clients under each major version of protobuf that they allow, against a service that runs under its own."""

import json
import subprocess
from typing import Any

import pytest

from tests.client.test_protobuf_versions import CLIENT_SOURCE, ENVIRONMENTS, environment
from tests.service_process import ServiceProcess

# The first test of an environment waits for its installation.
pytestmark = pytest.mark.timeout(600)

# Runs in the environment: stores, reads and fails with each client, and tells what it found.
PROBE = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import google.protobuf
from turnstore import AsyncHistoryClient, HistoryClient, InvalidFieldError, Response

TURN = Response("resp_1", conversation_id="conv_1", input_items=['{ "id":"i", "n":1e400 }'], payload_json={"a": 1})

def plain():
    with HistoryClient(sys.argv[2], namespace=sys.argv[3] + "-plain") as client:
        revision = client.store_response(TURN).revision
        history = client.resolve_history(conversation_id="conv_1", view="full")
        turns = [turn.id for turn in client.list_responses(conversation_id="conv_1")]
        try:
            client.store_response(Response("resp_2", input_items=["[]"]))
        except InvalidFieldError as error:
            field = error.field
        return [client.ping().serving, revision, history.items[0].json, turns, field]

async def asynchronous():
    async with AsyncHistoryClient(sys.argv[2], namespace=sys.argv[3] + "-async") as client:
        revision = (await client.store_response(TURN)).revision
        history = await client.resolve_history(conversation_id="conv_1", view="full")
        turns = [turn.id async for turn in client.list_responses(conversation_id="conv_1")]
        try:
            await client.store_response(Response("resp_2", input_items=["[]"]))
        except InvalidFieldError as error:
            field = error.field
        return [(await client.ping()).serving, revision, history.items[0].json, turns, field]

print(json.dumps([google.protobuf.__version__, plain(), asyncio.run(asynchronous())]))
"""


@pytest.mark.parametrize("name", list(ENVIRONMENTS))
def test_clients_work(name: str, service: ServiceProcess, namespace: str) -> None:
    run = subprocess.run(
        [environment(name), "-I", "-c", PROBE, CLIENT_SOURCE, service.target, namespace],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    version, plain, asynchronous = json.loads(run.stdout)
    expected: list[Any] = [True, 1, '{ "id":"i", "n":1e400 }', ["resp_1"], "response.input_items[0].json"]
    assert name == "protobuf-" + ".".join(version.split(".")[:2])
    assert plain == expected
    assert asynchronous == expected
