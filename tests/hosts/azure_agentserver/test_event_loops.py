"""One provider under several event loops: a host calls it from whatever loop serves the request."""

import asyncio
import gc
import logging
import threading
from typing import Any

import httpx
import pytest

from tests.hosts.azure_agentserver.agent_host import ORPHAN, Agent, host_of
from tests.hosts.azure_agentserver.envelopes import answer, envelope, question
from tests.service_process import ServiceProcess
from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider

LOOPS = 5


@pytest.fixture
def store(service: ServiceProcess, namespace: str) -> TurnstoreResponseProvider:
    """A provider that belongs to no event loop yet."""
    return TurnstoreResponseProvider(service.target, namespace=namespace)


def test_a_loop_may_end_after_each_call(store: TurnstoreResponseProvider) -> None:
    history: list[str] = []
    for number in range(LOOPS):
        given = envelope(f"r{number}", "completed", answer(f"a{number}"))
        asyncio.run(store.create_response(given, [question(f"q{number}")], history))
        history = asyncio.run(store.get_history_item_ids(f"r{number}", None, -1))
    assert history == [f"{kind}{number}" for number in range(LOOPS) for kind in "qa"]
    asyncio.run(store.update_response(envelope("r1", "failed")))
    assert "q1" not in asyncio.run(store.get_history_item_ids(f"r{LOOPS - 1}", None, -1))


def test_loops_may_run_at_the_same_time(store: TurnstoreResponseProvider) -> None:
    together = threading.Barrier(LOOPS)
    failures: list[BaseException] = []

    async def turns(number: int) -> None:
        for step in range(20):
            name = f"r{number}-{step}"
            await store.create_response(
                envelope(name, "in_progress", conversation=f"c{number}"), [question(name)], None
            )
            await store.update_response(envelope(name, "completed", conversation=f"c{number}"))
        history = await store.get_history_item_ids(None, f"c{number}", -1)
        assert history == [f"r{number}-{step}" for step in range(20)]

    def loop(number: int) -> None:
        try:
            together.wait()
            asyncio.run(turns(number))
        except BaseException as failure:  # noqa: BLE001 - shown by the test
            failures.append(failure)

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(LOOPS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_loops_that_end_leave_nothing_behind(
    store: TurnstoreResponseProvider, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(LOOPS):
        asyncio.run(store.create_response(envelope(f"r{number}"), None, None))
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_host_may_serve_each_request_in_a_loop_of_its_own(store: TurnstoreResponseProvider) -> None:
    """As the package's own tests have it do."""
    agent = Agent()
    host = host_of(agent, store)

    async def post(given: Any) -> str:
        transport = httpx.ASGITransport(app=host)
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as http:
            reply = await http.post("/responses", json={"model": "m", "input": given, "conversation": "c"})
            return str(reply.json()["status"])

    statuses = [asyncio.run(post(given)) for given in ("one", ORPHAN, "two", "three")]
    assert statuses == ["completed", "failed", "completed", "completed"]
    assert [len(history) for history in agent.histories] == [0, 2, 2, 4]
