"""What a host is told when the store fails."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from azure.ai.agentserver.core.platform_headers import PLATFORM_ERROR_TAG
from azure.ai.agentserver.responses import FoundryApiError, FoundryBadRequestError

from tests.hosts.azure_agentserver.agent_host import Agent, Talk, host_of, running
from tests.hosts.azure_agentserver.envelopes import envelope, question, user
from turnstore import AsyncHistoryClient, Response, ServiceUnreachableError
from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider

RESPONSE_ID = "caresp_d8ba17eeb7b21cf300QpYtlQJDlvVEdpVZKVFtAEh9fQCsn8Em"
"""An id of the form that hosts take."""

CALLS: dict[str, Callable[[TurnstoreResponseProvider], Awaitable[Any]]] = {
    "create": lambda store: store.create_response(envelope("r"), [question("q")], None),
    "get": lambda store: store.get_response("r"),
    "update": lambda store: store.update_response(envelope("r")),
    "delete": lambda store: store.delete_response("r"),
    "input items": lambda store: store.get_input_items("r"),
    "items": lambda store: store.get_items(["q"]),
    "history": lambda store: store.get_history_item_ids("r", None, -1),
}


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody else can begin to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*bound.getsockname())


@pytest.fixture
def absent(nobody: str) -> TurnstoreResponseProvider:
    """A provider whose service is away."""
    return TurnstoreResponseProvider(nobody, wait_for_ready=False)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_service_that_is_away_is_the_platform_s_failure(
    absent: TurnstoreResponseProvider,
    nobody: str,
    call: Callable[[TurnstoreResponseProvider], Awaitable[Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(FoundryApiError) as failure:
        await call(absent)
    assert getattr(failure.value, PLATFORM_ERROR_TAG) is True
    assert isinstance(failure.value.__cause__, ServiceUnreachableError)
    # What clients are shown names no address; the log does.
    assert str(failure.value) == "turnstore did not answer (UNAVAILABLE)"
    logged = [record for record in caplog.records if record.name == "turnstore.adapters.azure_agentserver"]
    assert [record.levelno for record in logged] == [logging.ERROR]
    assert nobody in logged[0].getMessage()
    await absent.close()


async def test_a_request_that_cannot_be_taken_is_told_in_a_line_of_ascii(
    provider: TurnstoreResponseProvider,
) -> None:
    with pytest.raises(FoundryBadRequestError) as failure:
        await provider.get_history_item_ids(None, "ä\n" * 300, -1)
    assert getattr(failure.value, PLATFORM_ERROR_TAG) is True
    message = str(failure.value)
    assert "conversation_id" in message
    assert message.isascii()
    assert message.isprintable()


async def test_a_lost_race_is_told_in_the_service_s_words(
    provider: TurnstoreResponseProvider, client: AsyncHistoryClient
) -> None:
    await provider.create_response(envelope("r", "in_progress"), None, None)
    await client.store_response(Response("r", "completed"))
    with pytest.raises(FoundryApiError, match="response r is at revision 2, not 1") as failure:
        await provider.update_response(envelope("r", "in_progress", step=1))
    assert getattr(failure.value, PLATFORM_ERROR_TAG) is True


async def _refused(talk: Talk, method: str, path: str, **request: Any) -> tuple[int, str | None]:
    reply = await talk.http.request(method, path, **request)
    assert "error" in reply.json()
    return reply.status_code, reply.headers.get("x-platform-error-source")


async def test_over_http_an_absent_service_is_never_a_missing_response(
    absent: TurnstoreResponseProvider,
) -> None:
    path = f"/responses/{RESPONSE_ID}"
    body = {"model": "m", "input": "hello", "conversation": "c"}
    async with running(host_of(Agent(), absent)) as talk:
        assert await _refused(talk, "POST", "/responses", json=body) == (500, "platform")
        assert await _refused(talk, "GET", path) == (500, "platform")
        assert await _refused(talk, "GET", f"{path}/input_items") == (500, "platform")
        assert await _refused(talk, "POST", f"{path}/cancel") == (500, "platform")
        assert await _refused(talk, "DELETE", path) == (500, "platform")
    await absent.close()


async def test_over_http_a_missing_response_is_not_found(provider: TurnstoreResponseProvider) -> None:
    path = f"/responses/{RESPONSE_ID}"
    async with running(host_of(Agent(), provider)) as talk:
        assert await _refused(talk, "GET", path) == (404, "user")
        assert await _refused(talk, "GET", f"{path}/input_items") == (404, "user")
        assert await _refused(talk, "POST", f"{path}/cancel") == (404, "user")
        assert await _refused(talk, "DELETE", path) == (404, "user")


async def test_over_http_a_conversation_that_cannot_be_is_the_client_s_failure(
    provider: TurnstoreResponseProvider,
) -> None:
    body = {"model": "m", "input": "hello", "conversation": "ö" * 300}
    async with running(host_of(Agent(), provider)) as talk:
        assert await _refused(talk, "POST", "/responses", json=body) == (400, "user")


async def test_a_user_is_kept_apart_over_http(provider: TurnstoreResponseProvider) -> None:
    anna, ben = {"x-agent-user-id": "anna"}, {"x-agent-user-id": "ben"}
    agent = Agent()
    async with running(host_of(agent, provider)) as talk:
        for headers in (anna, ben, {}):
            talk.http.headers.pop("x-agent-user-id", None)
            talk.http.headers.update(headers)
            response = await talk.turn("synchronous", "hello", conversation="c")
        talk.http.headers.update(anna)
        path = f"/responses/{response['id']}"
        assert await _refused(talk, "GET", path) == (404, "user")
        assert await _refused(talk, "GET", f"{path}/input_items") == (404, "user")
        assert await _refused(talk, "DELETE", path) == (404, "user")
    assert agent.histories == [[], [], []]
    assert (await provider.get_response(response["id"], context=user(None)))["status"] == "completed"


async def test_a_cancelled_call_leaves_the_provider_as_it_was(provider: TurnstoreResponseProvider) -> None:
    await provider.create_response(envelope("r", "in_progress", conversation="c"), [question("q")], None)
    cancelled = asyncio.create_task(provider.update_response(envelope("r", "failed", conversation="c")))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await provider.update_response(envelope("r", "completed", conversation="c"))
    assert await provider.get_history_item_ids(None, "c", -1) == ["q"]
