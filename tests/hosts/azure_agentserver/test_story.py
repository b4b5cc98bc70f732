"""The bug that this project is about, through a real host: one refused turn spoils the conversation."""

from typing import Any

import pytest
from azure.ai.agentserver.responses import InMemoryResponseProvider

from tests.hosts.azure_agentserver.agent_host import MODES, ORPHAN, Agent, Line, Talk, host_of, running
from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider

LINES = ("conversation", "previous_response_id")


async def story(talk: Talk, mode: str, line: Line) -> list[dict[str, Any]]:
    """A good turn, a turn that the model refuses, and two more good ones, each after the one before."""
    responses = []
    for given in ("What is the weather?", ORPHAN, "Sorry, again please.", "Thank you."):
        response = await talk.turn(mode, given, **line.next())
        line.follow(response)
        responses.append(response)
    return responses


def kinds(items: list[dict[str, Any]]) -> list[str]:
    return [item.get("role") or item["type"] for item in items]


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("mode", MODES)
async def test_a_refused_turn_does_not_spoil_the_turns_after_it(
    provider: TurnstoreResponseProvider, mode: str, kind: str
) -> None:
    agent = Agent()
    async with running(host_of(agent, provider)) as talk:
        responses = await story(talk, mode, Line(kind))
    assert [response["status"] for response in responses] == ["completed", "failed", "completed", "completed"]
    assert [kinds(history) for history in agent.histories] == [
        [],
        ["user", "assistant"],
        ["user", "assistant"],
        ["user", "assistant", "user", "assistant"],
    ]


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("mode", MODES)
async def test_with_the_package_s_own_store_it_does(mode: str, kind: str) -> None:
    agent = Agent()
    async with running(host_of(agent, InMemoryResponseProvider())) as talk:
        responses = await story(talk, mode, Line(kind))
    assert [response["status"] for response in responses] == ["completed", "failed", "failed", "failed"]
    assert "function_call_output" in kinds(agent.histories[2])


@pytest.mark.parametrize("kind", LINES)
async def test_the_agent_may_report_the_failure_itself(
    provider: TurnstoreResponseProvider, kind: str
) -> None:
    async with running(host_of(Agent(reports_failure=True), provider)) as talk:
        responses = await story(talk, "synchronous", Line(kind))
    assert [response["status"] for response in responses] == ["completed", "failed", "completed", "completed"]
    assert responses[1]["error"]["code"] == "invalid_request"


@pytest.mark.parametrize("kind", LINES)
async def test_a_first_turn_that_fails_leaves_an_empty_history(
    provider: TurnstoreResponseProvider, kind: str
) -> None:
    agent = Agent()
    line = Line(kind)
    async with running(host_of(agent, provider)) as talk:
        line.follow(await talk.turn("synchronous", ORPHAN, **line.next()))
        response = await talk.turn("synchronous", "Hello", **line.next())
    assert response["status"] == "completed"
    assert agent.histories == [[], []]


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("mode", MODES)
async def test_the_failed_response_and_its_input_stay_readable(
    provider: TurnstoreResponseProvider, mode: str, kind: str
) -> None:
    async with running(host_of(Agent(), provider)) as talk:
        failed = (await story(talk, mode, Line(kind)))[1]
        found = await talk.http.get(f"/responses/{failed['id']}")
        items = await talk.input_items(failed["id"])
    assert found.status_code == 200
    assert (found.json()["status"], found.json()["error"]["code"]) == ("failed", "server_error")
    inherited = ["user", "assistant"] if kind == "previous_response_id" else []
    assert kinds(items) == [*inherited, "function_call_output"]
    assert items[-1]["call_id"] == ORPHAN[0]["call_id"]


async def test_the_input_of_a_late_turn_of_a_long_conversation_stays_readable(
    provider: TurnstoreResponseProvider,
) -> None:
    """A host asks for 100 items at most, and for the oldest of them."""
    line = Line("conversation")
    many = [{"role": "user", "content": f"message {number}"} for number in range(120)]
    async with running(host_of(Agent(), provider)) as talk:
        await talk.turn("synchronous", many, **line.next())
        failed = await talk.turn("synchronous", ORPHAN, **line.next())
        items = await talk.input_items(failed["id"], limit=100)
    assert kinds(items) == ["function_call_output"]
