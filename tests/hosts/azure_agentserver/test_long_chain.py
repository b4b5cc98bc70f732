"""A host hands over a list of all earlier items with each turn: what is stored must not grow with it."""

from typing import Any

import pytest
from pymongo.database import Database

from tests.hosts.azure_agentserver.agent_host import Agent, host_of, running
from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider

TURNS = 1_000


def stored_bytes(database: Database[dict[str, Any]]) -> dict[str, int]:
    """The bytes of all documents, by collection."""
    found: dict[str, int] = {}
    for name in database.list_collection_names():
        sizes = [{"$group": {"_id": None, "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}}}]
        found[name] = sum(group["bytes"] for group in database[name].aggregate(sizes))
    return found


async def chain(
    store: TurnstoreResponseProvider, turns: int, database: Database[dict[str, Any]]
) -> list[int]:
    """Runs turns after each other through a host; the bytes that each quarter of them added."""
    added: list[int] = []
    last: dict[str, Any] = {}
    before = sum(stored_bytes(database).values())
    async with running(host_of(Agent(reads_history=False), store)) as talk:
        for number in range(turns):
            link = {"previous_response_id": last["id"]} if last else {}
            last = await talk.turn("synchronous", f"turn {number:06}", **link)
            assert last["status"] == "completed"
            # The envelope does not say it.
            assert "previous_response_id" not in last
            if (number + 1) % (turns // 4) == 0:
                now = sum(stored_bytes(database).values())
                added.append(now - before)
                before = now
    assert len(await store.get_history_item_ids(last["id"], None, -1)) == 2 * turns
    return added


@pytest.mark.timeout(600)
async def test_a_thousand_turns_take_a_thousand_times_the_room_of_one(
    provider: TurnstoreResponseProvider, database: Database[dict[str, Any]]
) -> None:
    first, *_, last = await chain(provider, TURNS, database)
    assert last <= first * 1.02, f"{first} bytes for the first {TURNS // 4} turns, {last} for the last"


async def test_without_remembering_parents_they_would_take_more_and_more(
    provider: TurnstoreResponseProvider,
    database: Database[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the test above can fail."""
    monkeypatch.setattr(provider._origins, "parent_of", lambda user, item_ids: "")
    first, *_, last = await chain(provider, 40, database)
    assert last > first * 1.5
