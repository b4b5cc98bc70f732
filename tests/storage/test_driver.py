"""What the driver's module makes of the failures of a MongoDB, told to fail by its own fail points."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo

import pytest

from tests.faults.replica_set import ReplicaSet, replica_set
from turnstore_service.observing import NoObserver
from turnstore_service.storage.errors import StoreBrokenError, StoreDeadlineError, StoreUnavailableError
from turnstore_service.storage.mongo import driver
from turnstore_service.storage.mongo.driver import (
    Database,
    DocumentTooLargeError,
    DuplicateKeyError,
    deadline,
)

MIB = 1024 * 1024
NOT_NOW = (
    *(6, 7, 13, 18, 24, 43, 46, 50, 63, 64, 89, 91, 100, 112, 133, 134, 150, 175, 189, 237, 246, 262, 365),
    *(9001, 10107, 11600, 11601, 11602, 13435, 13436),
)
Call = Callable[[Database], Awaitable[object]]
CALLS: dict[str, Call] = {
    # Each by the database's command, which stands before the comma.
    "find": lambda database: database.find("turns", {}),
    "find, limited": lambda database: database.find("turns", {}, limit=1),
    "insert": lambda database: database.insert("turns", {}),
    "findAndModify": lambda database: database.find_and_update("turns", {"_id": 1}, {"$set": {"a": 1}}),
    "update": lambda database: database.update_one("turns", {"_id": 1}, {"$set": {"a": 1}}),
    "delete": lambda database: database.delete_many("turns", {"_id": 2}),
}


def _name(call: str) -> str:
    """The database's command of a call."""
    return call.partition(",")[0]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with replica_set(tmp_path_factory.mktemp("driver"), 1, {"enableTestCommands": "1"}) as members:
        yield members


@pytest.fixture
async def database(members: ReplicaSet) -> AsyncIterator[Database]:
    # After some of the failures the driver does nothing until it has heard from the server again.
    database = Database(f"{members.uri}&heartbeatFrequencyMS=500", "driver")
    await database.update_one("turns", {"_id": 1}, {"$set": {"a": 0}}, upsert=True)
    yield database
    database.close()
    deadline.set(None)


@pytest.mark.parametrize("code", NOT_NOW)
async def test_answer_for_not_now_is_unavailable(members: ReplicaSet, database: Database, code: int) -> None:
    for command in ("find", "insert"):
        with (
            members.failing([_name(command)], errorCode=code),
            pytest.raises(StoreUnavailableError) as refusal,
        ):
            await CALLS[command](database)
        assert str(refusal.value) == "the database could not answer", command


@pytest.mark.parametrize("code", [2, 9, 59, 72, 96])
async def test_refusal_for_good_is_a_defect(members: ReplicaSet, database: Database, code: int) -> None:
    for command, call in CALLS.items():
        with members.failing([_name(command)], errorCode=code), pytest.raises(StoreBrokenError):
            await call(database)


@pytest.mark.parametrize("command", CALLS)
async def test_broken_connection_is_tried_again_once_and_then_unavailable(
    members: ReplicaSet, database: Database, command: str
) -> None:
    with members.failing([_name(command)], times=1, closeConnection=True):
        if command == "delete":  # the driver repeats no write to several documents
            with pytest.raises(StoreUnavailableError):
                await CALLS[command](database)
        else:
            await CALLS[command](database)
    with members.failing([_name(command)], closeConnection=True), pytest.raises(StoreUnavailableError):
        await CALLS[command](database)


@pytest.mark.parametrize("code", [64, 91, 100, 11602])
async def test_write_without_a_majority_is_unavailable_though_it_is_there(
    members: ReplicaSet, database: Database, code: int
) -> None:
    failing = members.failing(["insert"], writeConcernError={"code": code, "errmsg": "no majority"})
    with failing, pytest.raises(StoreUnavailableError):
        await database.insert("turns", {"_id": f"without {code}"})
    assert await database.find_one("turns", {"_id": f"without {code}"}) is not None


async def test_duplicate_key_tells_the_fields_of_its_index(database: Database) -> None:
    with pytest.raises(DuplicateKeyError) as refusal:
        await database.insert("turns", {"_id": 1})
    assert refusal.value.fields == {"_id"}


async def test_document_above_the_limit_is_too_large_whoever_finds_out(database: Database) -> None:
    text = "x" * (17 * MIB)
    with pytest.raises(DocumentTooLargeError):
        await database.insert("turns", {"text": text})
    with pytest.raises(DocumentTooLargeError):
        await database.find_and_update("turns", {"_id": 1}, {"$set": {"text": text}})
    with pytest.raises(DocumentTooLargeError):
        await database.update_one("turns", {"_id": 1}, {"$set": {"text": text}})
    # Each of these commands is small enough to be sent; the server meets the limit.
    await database.find_and_update("turns", {"_id": 1}, {"$set": {"text": text[: 9 * MIB]}})
    with pytest.raises(DocumentTooLargeError):
        await database.find_and_update("turns", {"_id": 1}, {"$set": {"more": text[: 9 * MIB]}})
    await database.update_one("turns", {"_id": 1}, {"$unset": {"text": ""}})


async def test_write_with_more_index_entries_than_the_cache_takes_is_too_large(
    members: ReplicaSet, database: Database
) -> None:
    with members.failing(["insert"], errorCode=388), pytest.raises(DocumentTooLargeError):
        await database.insert("turns", {})


async def test_few_documents_that_do_not_fit_into_one_reply_are_all_read(
    members: ReplicaSet, database: Database
) -> None:
    for number in range(20):
        await database.insert("large", {"_id": number, "text": "x" * MIB})
    found = await database.find("large", {}, {"text": 1}, [("_id", -1)], limit=20)
    assert [document["_id"] for document in found] == list(range(19, -1, -1))
    with members.primary().client() as client:
        assert client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"] == 0


async def test_what_cannot_be_encoded_is_a_defect(database: Database) -> None:
    with pytest.raises(StoreBrokenError):
        await database.insert("turns", {"number": object()})


@pytest.mark.parametrize("command", CALLS)
async def test_deadline_ends_a_call_that_the_database_does_not_answer(
    members: ReplicaSet, database: Database, command: str
) -> None:
    with members.failing([_name(command)], blockConnection=True, blockTimeMS=1000):
        deadline.set(time.monotonic() + 0.2)
        with pytest.raises(StoreDeadlineError):
            await CALLS[command](database)


async def test_call_whose_deadline_passes_in_the_queue_does_not_ask(members: ReplicaSet) -> None:
    told: list[tuple[str, str]] = []

    class Listener(NoObserver):
        def database_call(self, operation: str, outcome: str, seconds: float, waited: float) -> None:
            told.append((operation, outcome))

    database = Database(members.uri, "driver", 1, Listener())
    try:
        await database.command("ping")
        with members.failing(["find"], blockConnection=True, blockTimeMS=300):
            first = asyncio.create_task(database.find("turns", {}, limit=1))
            await asyncio.sleep(0)  # the first call takes the only place in the queue
            deadline.set(time.monotonic() + 0.05)
            with pytest.raises(StoreDeadlineError):
                await database.insert("turns", {"_id": "never sent"})
            deadline.set(None)
            await first
        assert told == [("command", "ok"), ("insert", "deadline"), ("find", "ok")]
        assert await database.find_one("turns", {"_id": "never sent"}) is None
    finally:
        database.close()
        deadline.set(None)


async def test_call_gives_up_on_a_primary_long_before_a_late_deadline(
    members: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_SELECTION_SECONDS", 0.3)
    database = Database(members.uri, "driver")
    deadline.set(time.monotonic() + 60)
    with members.members[0].client() as client:
        client.admin.command("replSetStepDown", 60, force=True)
        try:
            for call in CALLS.values():
                with pytest.raises(StoreUnavailableError):
                    await call(database)
        finally:
            client.admin.command("replSetFreeze", 0)
            await asyncio.to_thread(members.wait_healthy)
            deadline.set(None)
    await database.find("turns", {})
    database.close()


async def test_time_is_that_of_the_database(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of a replica that goes an hour slow, running turns would count as abandoned at once."""
    right = datetime.now(UTC)

    class SlowClock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) - timedelta(hours=1)

    monkeypatch.setattr(driver, "datetime", SlowClock)
    assert right - database.utc_now() > timedelta(minutes=59)
    await database.now()
    assert abs(database.utc_now() - right) < timedelta(minutes=1)
