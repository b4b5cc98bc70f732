"""Cancelling, deleting, leaving, and two hosts on one service: over HTTP, with real hosts."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.hosts.azure_agentserver.agent_host import (
    MODES,
    ORPHAN,
    POLL_SECONDS,
    WAIT_SECONDS,
    Agent,
    Line,
    Talk,
    host_of,
    running,
)
from turnstore import AsyncHistoryClient, NotFoundError, ResponseStatus
from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider

BACKGROUND = [mode for mode, flags in MODES.items() if flags.get("background")]


async def begun(talk: Talk, agent: Agent, mode: str, **body: Any) -> tuple[str, asyncio.Task[Any]]:
    """Posts a turn that waits at the gate; its id, and the task that reads what the host answers."""
    agent.gate = asyncio.Event()
    body = {"model": "m", "input": "Take your time.", **MODES[mode], **body}
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def post() -> None:
        if body.get("stream"):
            async for event in talk.events(body):
                if not first.done():
                    first.set_result(event["response"]["id"])
        else:
            first.set_result((await talk.http.post("/responses", json=body)).json()["id"])

    posting = asyncio.create_task(post())
    async with asyncio.timeout(WAIT_SECONDS):
        response_id = await first
        await agent.waiting.wait()
    return response_id, posting


@pytest.mark.parametrize("mode", BACKGROUND)
async def test_a_cancelled_turn_has_no_output_and_the_next_one_works(
    provider: TurnstoreResponseProvider, client: AsyncHistoryClient, mode: str
) -> None:
    agent = Agent()
    async with running(host_of(agent, provider)) as talk:
        response_id, posting = await begun(talk, agent, mode, conversation="c")
        cancelled = await talk.http.post(f"/responses/{response_id}/cancel")
        await posting
        agent.gate = None
        after = await talk.turn(mode, "Never mind.", conversation="c")
        found = await talk.http.get(f"/responses/{response_id}")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert (found.json()["status"], found.json()["output"]) == ("cancelled", [])
    assert (await client.get_response(response_id)).status is ResponseStatus.CANCELLED
    assert after["status"] == "completed"
    assert [item["role"] for item in agent.histories[1]] == ["user"]


async def test_a_client_that_leaves_cancels_its_turn(
    provider: TurnstoreResponseProvider, client: AsyncHistoryClient
) -> None:
    agent = Agent()
    agent.gate = asyncio.Event()
    async with running(host_of(agent, provider)) as talk:
        body = {"model": "m", "input": "Take your time.", "conversation": "c"}
        posting = asyncio.create_task(talk.http.post("/responses", json=body))
        async with asyncio.timeout(WAIT_SECONDS):
            await agent.waiting.wait()
            posting.cancel()
            while True:
                turns = [turn async for turn in client.list_responses(conversation_id="c")]
                if [turn.status for turn in turns] == [ResponseStatus.CANCELLED]:
                    break
                await asyncio.sleep(POLL_SECONDS)
        agent.gate = None
        assert (await talk.turn("synchronous", "Back again.", conversation="c"))["status"] == "completed"


@pytest.mark.parametrize("mode", MODES)
async def test_a_deleted_turn_is_gone_and_the_next_one_works(
    provider: TurnstoreResponseProvider, mode: str
) -> None:
    agent = Agent()
    async with running(host_of(agent, provider)) as talk:
        turns = [await talk.turn(mode, text, conversation="c") for text in ("one", "two")]
        path = f"/responses/{turns[0]['id']}"
        deleted = await talk.http.delete(path)
        assert (deleted.status_code, deleted.json()["deleted"]) == (200, True)
        for gone in (talk.http.get(path), talk.http.get(f"{path}/input_items"), talk.http.delete(path)):
            assert (await gone).status_code == 404
        assert (await talk.turn(mode, "three", conversation="c"))["status"] == "completed"
    assert [item["content"][0]["text"] for item in agent.histories[2]] == ["two", "answer to 3 items"]


async def test_a_chain_goes_on_over_a_deleted_turn(provider: TurnstoreResponseProvider) -> None:
    agent = Agent()
    line = Line("previous_response_id")
    async with running(host_of(agent, provider)) as talk:
        turns = []
        for text in ("one", "two", "three"):
            turns.append(await talk.turn("synchronous", text, **line.next()))
            line.follow(turns[-1])
        await talk.http.delete(f"/responses/{turns[1]['id']}")
        await talk.turn("synchronous", "four", **line.next())
    assert [item["content"][0]["text"] for item in agent.histories[3]] == [
        "one",
        "answer to 1 items",
        "three",
        "answer to 5 items",
    ]


@pytest.mark.parametrize("mode", BACKGROUND)
async def test_a_host_does_not_delete_a_turn_that_it_runs(
    provider: TurnstoreResponseProvider, client: AsyncHistoryClient, mode: str
) -> None:
    agent = Agent()
    async with running(host_of(agent, provider)) as talk:
        response_id, posting = await begun(talk, agent, mode)
        assert (await talk.http.delete(f"/responses/{response_id}")).status_code == 400
        assert agent.gate is not None
        agent.gate.set()
        assert (await talk.ended(response_id))["status"] == "completed"
        await posting
        assert (await talk.http.delete(f"/responses/{response_id}")).status_code == 200
    with pytest.raises(NotFoundError):
        await client.get_response(response_id)


@pytest.mark.parametrize("mode", BACKGROUND)
async def test_a_turn_deleted_through_another_host_while_it_runs_stays_deleted(
    provider: TurnstoreResponseProvider,
    other_provider: TurnstoreResponseProvider,
    client: AsyncHistoryClient,
    mode: str,
) -> None:
    agent = Agent()
    async with (
        running(host_of(agent, provider)) as talk,
        running(host_of(Agent(), other_provider)) as elsewhere,
    ):
        response_id, posting = await begun(talk, agent, mode, conversation="c")
        await other_provider.delete_response(response_id)
        assert agent.gate is not None
        agent.gate.set()
        await posting
        await talk.ended(response_id)
        after = await elsewhere.turn(mode, "And now?", conversation="c")
        assert (await elsewhere.http.get(f"/responses/{response_id}")).status_code == 404
    assert after["status"] == "completed"
    assert [turn.id async for turn in client.list_responses(conversation_id="c")] == [after["id"]]


@pytest.mark.parametrize("kind", ["conversation", "previous_response_id"])
@pytest.mark.parametrize("mode", ["synchronous", "background"])
async def test_two_hosts_serve_one_line(
    provider: TurnstoreResponseProvider, other_provider: TurnstoreResponseProvider, mode: str, kind: str
) -> None:
    here, there = Agent(), Agent()
    line = Line(kind)
    async with running(host_of(here, provider)) as one, running(host_of(there, other_provider)) as other:
        for talk, given in ((one, "one"), (other, ORPHAN), (one, "two"), (other, "three")):
            response = await talk.turn(mode, given, **line.next())
            await _stored(talk, (one, other), response["id"])
            line.follow(response)
        read_elsewhere = await one.http.get(f"/responses/{response['id']}")
    assert read_elsewhere.json()["output"] == response["output"]
    assert [len(history) for history in (here.histories[1], there.histories[1])] == [2, 4]
    assert all(item["type"] == "message" for item in there.histories[1])


async def _stored(talk: Talk, talks: tuple[Talk, Talk], response_id: str) -> None:
    """Waits until the other host sees the end: a host tells its own clients before it stores it."""
    (other,) = (each for each in talks if each is not talk)
    await other.ended(response_id)


async def test_a_line_may_be_forked(provider: TurnstoreResponseProvider) -> None:
    agent = Agent()
    async with running(host_of(agent, provider)) as talk:
        root = await talk.turn("synchronous", "root")
        for text in ("left", "right"):
            await talk.turn("synchronous", text, previous_response_id=root["id"])
    assert [len(history) for history in agent.histories] == [0, 2, 2]


async def test_items_may_be_referred_to(provider: TurnstoreResponseProvider) -> None:
    agent = Agent()
    async with running(host_of(agent, provider)) as talk:
        first = await talk.turn("synchronous", "first", conversation="c")
        (item,) = await talk.input_items(first["id"])
        references = [{"type": "item_reference", "id": item_id} for item_id in (item["id"], "msg_never")]
        second = await talk.turn("synchronous", references, conversation="other")
        listed = await talk.input_items(second["id"])
    assert [each["content"] for each in listed] == [item["content"]]


async def test_a_host_that_stores_nothing_leaves_nothing(
    provider: TurnstoreResponseProvider, client: AsyncHistoryClient
) -> None:
    async with running(host_of(Agent(), provider)) as talk:
        response = await talk.turn("synchronous", "hello", conversation="c", store=False)
        found: httpx.Response = await talk.http.get(f"/responses/{response['id']}")
    assert found.status_code == 404
    assert [turn async for turn in client.list_responses(conversation_id="c")] == []
