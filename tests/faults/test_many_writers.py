"""Many client processes write through two service processes on one database, at the same places."""

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import pymongo
import pytest

from tests.database import drop_database
from tests.faults.writing_client import Task
from tests.service_process import ServiceProcess, run_command
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2
from turnstore_service.storage.values import Scope

QUICK = (4, 25)
DEEP = pytest.param(8, 200, marks=[pytest.mark.deep, pytest.mark.timeout(900)])
SECONDS = 60

ALONE = """
import contextlib, os, pathlib
from turnstore_service.storage.mongo.writing import Writing

@contextlib.asynccontextmanager
async def no_queue(self, scope, conversation_id):
    yield

Writing._turn_at = no_queue
Writing._remember = lambda self, scope, spot: None
pathlib.Path(os.environ["TURNSTORE_TEST_PATCHED"], str(os.getpid())).touch()
"""
"""Run by Python before the service: takes away what writers of one process share, so that nothing but the database
decides between them."""


@pytest.fixture(
    scope="module",
    params=["without what writers of a process share", pytest.param("as it is", marks=pytest.mark.deep)],
)
def services(
    request: pytest.FixtureRequest, mongodb_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[ServiceProcess]]:
    """Two services on one database."""
    directory = tmp_path_factory.mktemp("writers")
    database = f"turnstore_test_{uuid.uuid4().hex}"
    settings = {"TURNSTORE_MONGODB_URI": mongodb_uri, "TURNSTORE_MONGODB_DATABASE": database}
    patched = directory / "patched"
    if request.param != "as it is":
        patched.mkdir()
        (directory / "site").mkdir()
        (directory / "site" / "sitecustomize.py").write_text(ALONE)
        settings["PYTHONPATH"] = ":".join([str(directory / "site"), *_python_path()])
        settings["TURNSTORE_TEST_PATCHED"] = str(patched)
    assert run_command("migrate", settings=settings).returncode == 0
    services = [ServiceProcess(directory / f"service-{number}", settings) for number in range(2)]
    try:
        for service in services:
            service.wait_ready()
            assert not patched.exists() or (patched / str(service.process.pid)).exists()
        yield services
    finally:
        for service in services:
            service.kill()
        drop_database(mongodb_uri, database)


def _python_path() -> list[str]:
    """What the test's own environment adds to the path, so that a patched service is the one under test."""
    inherited = os.environ.get("PYTHONPATH")
    return [inherited] if inherited else []


class Client:
    """Reads a namespace from one service."""

    def __init__(self, channel: grpc.Channel, namespace: str) -> None:
        self._scope = response_pb2.Scope(namespace=namespace)
        self._stub = history_service_pb2_grpc.HistoryServiceStub(channel)

    def store(self, response_id: str, item_id: str) -> None:
        self._stub.StoreResponse(
            rpc.StoreResponseRequest(
                scope=self._scope,
                response=response_pb2.Response(
                    id=response_id, input_items=[response_pb2.Item(json=json.dumps({"id": item_id}))]
                ),
            ),
            timeout=SECONDS,
        )

    def resolve(self, **line: str) -> list[str]:
        """Item ids."""
        request = rpc.ResolveHistoryRequest(scope=self._scope, **line)
        ids: list[str] = []
        while True:
            reply = self._stub.ResolveHistory(request, timeout=SECONDS)
            ids.extend(reply.item_ids)
            if not reply.next_page_token:
                return ids
            request.page_token = reply.next_page_token

    def turns(self, **line: str) -> list[tuple[int, str]]:
        """Place and id of each turn."""
        request = rpc.ListResponsesRequest(scope=self._scope, page_size=100, **line)
        turns: list[tuple[int, str]] = []
        while True:
            reply = self._stub.ListResponses(request, timeout=SECONDS)
            turns.extend((turn.place, turn.id) for turn in reply.responses)
            if not reply.next_page_token:
                return turns
            request.page_token = reply.next_page_token


@contextmanager
def clients(services: Sequence[ServiceProcess], namespace: str) -> Iterator[list[Client]]:
    channels = [grpc.insecure_channel(service.target) for service in services]
    try:
        yield [Client(channel, namespace) for channel in channels]
    finally:
        for channel in channels:
            channel.close()


class Prefixes:
    """What readers have seen: each must be a beginning of whatever any of them sees later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._longest: list[Any] = []
        self.seen = 0

    def see(self, found: list[Any], before: int) -> int:
        """Takes in what a reader has read; `before` is the length of what it read before. Gives the new one."""
        with self._lock:
            shared = min(len(found), len(self._longest))
            assert found[:shared] == self._longest[:shared], "two readers see different orders"
            assert len(found) >= before, "a reader sees less than before"
            if len(found) > len(self._longest):
                self._longest = found
            self.seen += 1
        return len(found)


class Reader(threading.Thread):
    """Reads again and again until it is told to stop."""

    def __init__(self, read: Callable[[], list[Any]], prefixes: Prefixes) -> None:
        super().__init__(daemon=True)
        self._read = read
        self._prefixes = prefixes
        self._ended = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        length = 0
        try:
            while not self._ended.is_set():
                length = self._prefixes.see(self._read(), length)
        except (AssertionError, grpc.RpcError) as failure:
            self.failure = failure

    def end(self) -> None:
        self._ended.set()
        self.join()
        if self.failure is not None:
            raise self.failure


def write_all(tasks: Sequence[Task]) -> list[list[str]]:
    """Runs a client process for each task, all at once; the ids that each was answered, in order."""
    processes = [
        subprocess.Popen(task.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for task in tasks
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.close()
        answered = []
        for process in processes:
            assert process.stdout is not None
            answered.append([json.loads(line) for line in process.stdout])
            assert process.wait() == 0
        return answered
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize(("writers", "turns"), [QUICK, DEEP])
def test_writers_of_one_conversation_get_dense_places_and_readers_see_prefixes(
    services: Sequence[ServiceProcess], mongodb_uri: str, writers: int, turns: int
) -> None:
    namespace = f"one-conversation-{writers}"
    tasks = [
        Task(services[number % 2].target, namespace, f"w{number}", turns, conversation="c")
        for number in range(writers)
    ]
    line = {"conversation_id": "c"}
    items, places = Prefixes(), Prefixes()
    with clients(services, namespace) as found:
        readers = [
            *(Reader(lambda c=client: c.resolve(**line), items) for client in found),
            *(Reader(lambda c=client: c.turns(**line), places) for client in found),
        ]
        for reader in readers:
            reader.start()
        try:
            answered = write_all(tasks)
        finally:
            for reader in readers:
                reader.end()
        final = [client.turns(**line) for client in found]
        histories = [client.resolve(**line) for client in found]
    assert [len(ids) for ids in answered] == [turns] * writers
    with pymongo.MongoClient[dict[str, Any]](mongodb_uri) as client:
        database = client[services[0].settings["TURNSTORE_MONGODB_DATABASE"]]
        documents = list(database["responses"].find({"scope": Scope(namespace).key}).sort("place", 1))
    assert [document["place"] for document in documents] == list(range(1, writers * turns + 1))
    order = [(document["place"], document["id"]) for document in documents]
    assert final == [order, order]
    by_id = {task.response_id(number): task.item_ids(number) for task in tasks for number in range(turns)}
    assert histories == [[item for _, name in order for item in by_id[name]]] * 2
    for task in tasks:  # each waited for its answer before it wrote the next
        mine = [name for _, name in order if name.startswith(f"{task.name}-")]
        assert mine == [task.response_id(number) for number in range(turns)]
    places.see(order, 0)
    items.see(histories[0], 0)
    assert min(items.seen, places.seen) > 2


@pytest.mark.parametrize(("writers", "turns"), [QUICK, DEEP])
def test_writers_that_fork_off_one_parent_each_have_a_line_of_their_own(
    services: Sequence[ServiceProcess], writers: int, turns: int
) -> None:
    namespace = f"forks-{writers}"
    with clients(services, namespace) as found:
        found[0].store("root", "root-item")
        tasks = [
            Task(services[number % 2].target, namespace, f"w{number}", turns, parent="root")
            for number in range(writers)
        ]
        answered = write_all(tasks)
        assert [len(ids) for ids in answered] == [turns] * writers
        for number, task in enumerate(tasks):
            leaf = {"previous_response_id": task.response_id(turns - 1)}
            own = [item for turn in range(turns) for item in task.item_ids(turn)]
            client = found[(number + 1) % 2]  # the one that did not take its writes
            assert client.resolve(**leaf) == ["root-item", *own]
            chain = ["root", *(task.response_id(turn) for turn in range(turns))]
            assert client.turns(**leaf) == list(enumerate(chain, 1))
