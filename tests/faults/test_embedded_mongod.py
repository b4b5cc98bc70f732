"""The embedded MongoDB by itself: start, stop, again, and what may be in its way."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.write_concern import WriteConcern

from tests.processes import mongods_on, wait_until
from turnstore_service.embedded.binary import find_mongod
from turnstore_service.embedded.directory_lock import DirectoryLock
from turnstore_service.embedded.errors import EmbeddedMongodError
from turnstore_service.embedded.mongod import LOG_BYTES, EmbeddedMongod


@pytest.fixture
def mongod(tmp_path: Path) -> Iterator[EmbeddedMongod]:
    embedded = EmbeddedMongod(tmp_path / "deep" / "data", find_mongod(None))
    yield embedded
    embedded.stop()


def _client(mongod: EmbeddedMongod) -> "pymongo.MongoClient[dict[str, Any]]":
    return pymongo.MongoClient(mongod.uri, serverSelectionTimeoutMS=5000)


def test_it_is_a_replica_set_that_takes_majority_writes_and_transactions(mongod: EmbeddedMongod) -> None:
    mongod.start()
    with _client(mongod) as client:
        turns = client["test"].get_collection("turns", write_concern=WriteConcern("majority", j=True))
        turns.insert_one({"_id": 1})
        with client.start_session() as session, session.start_transaction():
            turns.insert_one({"_id": 2}, session=session)
        assert turns.count_documents({}) == 2


def test_it_listens_on_loopback_alone(mongod: EmbeddedMongod) -> None:
    mongod.start()
    with _client(mongod) as client:
        assert client.admin.command("getCmdLineOpts")["parsed"]["net"]["bindIp"] == "127.0.0.1"


def test_data_is_for_its_owner_alone(mongod: EmbeddedMongod) -> None:
    mongod.start()
    assert mongod.data_dir.stat().st_mode & 0o077 == 0


def test_data_outlives_a_stop_and_another_port(mongod: EmbeddedMongod) -> None:
    addresses = set()
    for start in range(3):
        mongod.start()
        addresses.add(mongod.uri)
        with _client(mongod) as client:
            client["test"]["turns"].insert_one({"_id": start})
            config = client.admin.command("replSetGetConfig")["config"]
            assert config["members"][0]["host"] in mongod.uri
        mongod.stop()
        assert mongod.exit_status == 0
        assert mongods_on(mongod.data_dir) == []
    mongod.start()
    with _client(mongod) as client:
        assert [turn["_id"] for turn in client["test"]["turns"].find(sort=[("_id", 1)])] == [0, 1, 2]
    assert len(addresses) > 1


def test_stop_without_start_and_twice_is_let_be(mongod: EmbeddedMongod) -> None:
    mongod.stop()
    mongod.start()
    mongod.stop()
    mongod.stop()


def test_directory_in_use_is_refused_with_the_process_that_uses_it(mongod: EmbeddedMongod) -> None:
    mongod.start()
    second = EmbeddedMongod(mongod.data_dir, find_mongod(None))
    with pytest.raises(
        EmbeddedMongodError, match=r"in use by another service \(process \d+\).*TURNSTORE_DATA_DIR"
    ):
        second.start()
    assert len(mongods_on(mongod.data_dir)) == 1
    with _client(mongod) as client:
        client["test"]["turns"].insert_one({})


def test_mongod_of_a_killed_service_is_waited_for(mongod: EmbeddedMongod) -> None:
    mongod.data_dir.mkdir(parents=True)
    predecessor = DirectoryLock(mongod.data_dir / "mongod.lock")
    assert predecessor.acquire()
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(mongod.start)
        service_lock = mongod.data_dir / "service.lock"
        wait_until(lambda: service_lock.exists() and service_lock.read_text() != "", 10, "the start waits")
        assert mongods_on(mongod.data_dir) == []
        predecessor.release()
        start.result()
    assert len(mongods_on(mongod.data_dir)) == 1


def test_data_of_another_replica_set_is_left_alone(mongod: EmbeddedMongod) -> None:
    mongod.start()
    with _client(mongod) as client:
        config = client.admin.command("replSetGetConfig")["config"]
        second = {"_id": 1, "host": "127.0.0.1:1", "priority": 0, "votes": 0}
        config["members"].append(second)
        client.admin.command("replSetReconfig", config, force=True)
    mongod.stop()
    with pytest.raises(EmbeddedMongodError, match="belongs to another replica set"):
        mongod.start()
    assert mongods_on(mongod.data_dir) == []


def test_its_end_is_noticed(mongod: EmbeddedMongod) -> None:
    mongod.start()
    assert mongod.exit_status is None
    (pid,) = mongods_on(mongod.data_dir)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: mongod.exit_status is not None, 10, "the end is noticed")
    assert mongod.exit_status == 128 + signal.SIGKILL


def test_large_log_is_put_aside(mongod: EmbeddedMongod) -> None:
    mongod.data_dir.mkdir(parents=True)
    with mongod.log_path.open("wb") as log:
        log.truncate(LOG_BYTES + 1)
    mongod.start()
    assert mongod.log_path.stat().st_size < LOG_BYTES
    assert (mongod.data_dir / "mongod.log.1").stat().st_size == LOG_BYTES + 1
