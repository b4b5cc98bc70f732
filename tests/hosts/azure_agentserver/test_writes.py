"""Reads that come after the writes under way."""

import asyncio
import threading
from typing import Any

import pytest

from tests.hosts.azure_agentserver.envelopes import envelope, question
from turnstore import AsyncHistoryClient
from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider
from turnstore.adapters.azure_agentserver.writes import Writes


async def _steps() -> None:
    """Lets everything go on that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_read_comes_after_the_writes_that_began_before_it() -> None:
    writes: Writes[str] = Writes()
    with writes.about("a", "b"):
        read = asyncio.create_task(writes.ended("b"))
        await _steps()
        assert not read.done()
    with writes.about("b"):
        await read


async def test_a_read_does_not_wait_for_writes_about_something_else() -> None:
    writes: Writes[str] = Writes()
    with writes.about("a"):
        await writes.ended("b", "c")


async def test_a_write_that_fails_has_ended_too() -> None:
    writes: Writes[str] = Writes()
    failing = asyncio.Event()

    async def fail() -> None:
        with writes.about("a"):
            await failing.wait()
            raise ConnectionError

    write = asyncio.create_task(fail())
    await _steps()
    read = asyncio.create_task(writes.ended("a"))
    failing.set()
    with pytest.raises(ConnectionError):
        await write
    await read


async def test_a_read_may_be_cancelled_while_it_waits() -> None:
    writes: Writes[str] = Writes()
    with writes.about("a"):
        read = asyncio.create_task(writes.ended("a"))
        await _steps()
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
    await writes.ended("a")


async def test_a_read_waits_for_a_write_in_another_event_loop() -> None:
    writes: Writes[str] = Writes()
    begun, release = threading.Event(), threading.Event()

    def write() -> None:
        with writes.about("a"):
            begun.set()
            release.wait()

    other = asyncio.create_task(asyncio.to_thread(write))
    await asyncio.to_thread(begun.wait)
    read = asyncio.create_task(writes.ended("a"))
    await _steps()
    assert not read.done()
    release.set()
    await read
    await other


@pytest.mark.parametrize(
    ("previous", "conversation", "fields"), [("r", None, {}), (None, "c", {"conversation": "c"})]
)
async def test_the_end_of_a_turn_counts_as_soon_as_the_host_writes_it(
    provider: TurnstoreResponseProvider,
    monkeypatch: pytest.MonkeyPatch,
    previous: str | None,
    conversation: str | None,
    fields: dict[str, Any],
) -> None:
    """A host ends the stream of a failed turn before it stores the failure."""
    await provider.create_response(envelope("r", "in_progress", **fields), [question("q")], None)
    release = asyncio.Event()
    store, resolve = AsyncHistoryClient.store_response, AsyncHistoryClient.resolve_history
    asked: list[str] = []

    async def slow_store(*args: Any, **kwargs: Any) -> Any:
        await release.wait()
        return await store(*args, **kwargs)

    async def counted_resolve(*args: Any, **kwargs: Any) -> Any:
        asked.append("history")
        return await resolve(*args, **kwargs)

    monkeypatch.setattr(AsyncHistoryClient, "store_response", slow_store)
    monkeypatch.setattr(AsyncHistoryClient, "resolve_history", counted_resolve)
    write = asyncio.create_task(provider.update_response(envelope("r", "failed", **fields)))
    await _steps()
    read = asyncio.create_task(provider.get_history_item_ids(previous, conversation, -1))
    await _steps()
    assert asked == []
    release.set()
    assert await read == []
    await write
