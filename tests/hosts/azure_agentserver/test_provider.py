"""The seven methods of the provider, point by point, on a real service."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
from azure.ai.agentserver.responses import ResponseProviderProtocol
from azure.ai.agentserver.responses.store import ResponseAlreadyExistsError
from pymongo.database import Database

from tests.hosts.azure_agentserver.envelopes import answer, envelope, question, user
from tests.service_process import ServiceProcess
from turnstore import MODEL_SAFE, AsyncHistoryClient, NotFoundError, Response, ResponseStatus
from turnstore.adapters.azure_agentserver import TurnstoreResponseProvider

Provider = TurnstoreResponseProvider


def ids(items: list[Any]) -> list[str]:
    return [item["id"] for item in items]


def test_it_is_what_the_host_takes_as_a_store() -> None:
    assert isinstance(TurnstoreResponseProvider("127.0.0.1:1"), ResponseProviderProtocol)


def test_a_user_is_no_argument_of_it() -> None:
    with pytest.raises(TypeError, match="user"):
        TurnstoreResponseProvider("127.0.0.1:1", user="anna")


# Envelopes


ENVELOPES = {
    "plain": envelope("r", "completed", answer("a")),
    "without output": {"id": "r", "status": "in_progress"},
    "output is null": {"id": "r", "status": "in_progress", "output": None},
    "numbers": envelope("r", big=2**80, negative=-1, small=0.1, whole=1.0, nothing=None, yes=True),
    "metadata": envelope(
        "r", metadata={"_internal_metadata": '{"phase":"gather","n":7}', "a.b": "$c", "$d": ""}
    ),
    "text": envelope("r", instructions='ä 🙂 "quoted" \\ \u0000 \u2028 \ud800 end'),
    "nested": envelope(
        "r", tools=[{"type": "function", "parameters": {"properties": {"x": {"enum": [1, "1"]}}}}]
    ),
    "failed": envelope("r", "failed", error={"code": "server_error", "message": "m", "extra": [1]}),
    "status is new": envelope("r", "paused"),
    "item without id": envelope("r", "completed", {"type": "reasoning", "summary": []}),
}


@pytest.mark.parametrize("given", ENVELOPES.values(), ids=ENVELOPES.keys())
async def test_envelopes_come_back_equal(provider: Provider, given: dict[str, Any]) -> None:
    await provider.create_response(given, None, None)
    created = await provider.get_response("r")
    await provider.update_response({**given, "status": "in_progress", "more": 1})
    await provider.update_response(given)
    assert created == given
    assert await provider.get_response("r") == given


async def test_the_order_of_keys_in_items_stays(provider: Provider) -> None:
    item = {"z": 1, "type": "message", "a": {"y": 1, "b": 2}, "id": "i"}
    await provider.create_response(envelope("r", "completed", item), [{**item, "id": "j"}], None)
    (stored,) = (await provider.get_response("r"))["output"]
    found = await provider.get_items(["i", "j"])
    assert [list(each) for each in (stored, *found)] == [["z", "type", "a", "id"]] * 3
    assert list(stored["a"]) == ["y", "b"]


async def test_times_are_written_in_unix_seconds(provider: Provider) -> None:
    time = datetime(2026, 5, 1, 12, 0, 0, 999_999, tzinfo=UTC)
    await provider.create_response(envelope("r", created_at=time), [{**question("q"), "at": time}], None)
    assert (await provider.get_response("r"))["created_at"] == int(time.timestamp())
    (item,) = await provider.get_input_items("r")
    assert item["at"] == int(time.timestamp())


async def test_lists_may_be_any_iterable(provider: Provider) -> None:
    given = {**envelope("r"), "output": (answer(name) for name in ("a1", "a2"))}
    await provider.create_response(given, (question(name) for name in ("q1", "q2")), iter(["h1", "h2"]))
    assert await provider.get_history_item_ids("r", None, -1) == ["h1", "h2", "q1", "q2", "a1", "a2"]


async def test_what_is_changed_after_a_call_changes_nothing_stored(provider: Provider) -> None:
    given = envelope("r", "completed", answer("a"))
    await provider.create_response(given, [question("q")], None)
    given["output"][0]["content"].clear()
    found = await provider.get_response("r")
    found["output"].clear()
    assert (await provider.get_response("r"))["output"] == [answer("a")]


async def test_what_no_json_can_say_is_refused(provider: Provider) -> None:
    with pytest.raises(TypeError, match="object cannot be stored"):
        await provider.create_response(envelope("r", handler=object()), None, None)


async def test_a_response_of_another_client_has_an_envelope_too(
    provider: Provider, client: AsyncHistoryClient
) -> None:
    await client.store_response(Response("r", "incomplete", output_items=[answer("a")]))
    assert await provider.get_response("r") == envelope("r", "incomplete", answer("a"))


# Creating and deleting


async def test_an_id_that_exists_is_refused_until_it_is_deleted(provider: Provider) -> None:
    await provider.create_response(envelope("r"), None, None)
    with pytest.raises(ResponseAlreadyExistsError) as refused:
        await provider.create_response(envelope("r"), None, None)
    assert refused.value.response_id == "r"
    await provider.delete_response("r")
    await provider.create_response(envelope("r", "failed"), None, None)
    assert (await provider.get_response("r"))["status"] == "failed"


async def _deleted(provider: Provider) -> None:
    await provider.create_response(envelope("r"), [question("q")], None)
    await provider.delete_response("r")


async def _never_there(provider: Provider) -> None:
    pass


@pytest.mark.parametrize("before", [_deleted, _never_there])
async def test_what_is_not_there_is_a_key_error(
    provider: Provider, other_provider: Provider, before: Callable[[Provider], Awaitable[None]]
) -> None:
    await before(provider)
    for store in (provider, other_provider):
        for call in (
            store.get_response("r"),
            store.update_response(envelope("r", "failed")),
            store.delete_response("r"),
        ):
            with pytest.raises(KeyError, match="'r' not found"):
                await call


async def test_an_update_never_creates(provider: Provider, client: AsyncHistoryClient) -> None:
    with pytest.raises(KeyError):
        await provider.update_response(envelope("r", "in_progress", conversation="c"))
    assert [turn async for turn in client.list_responses(conversation_id="c")] == []


async def test_input_items_tell_what_was_deleted_from_what_never_was(
    provider: Provider, other_provider: Provider
) -> None:
    await _deleted(provider)
    for store in (provider, other_provider):
        with pytest.raises(ValueError, match="'r' has been deleted"):
            await store.get_input_items("r")
        with pytest.raises(KeyError, match="'never' not found"):
            await store.get_input_items("never")


async def test_the_late_end_of_a_deleted_turn_stores_nothing(provider: Provider) -> None:
    await provider.create_response(envelope("r", "in_progress", conversation="c"), [question("q")], None)
    await provider.delete_response("r")
    with pytest.raises(KeyError):
        await provider.update_response(envelope("r", "completed", answer("a"), conversation="c"))
    assert await provider.get_history_item_ids(None, "c", -1) == []
    assert await provider.get_items(["q", "a"]) == [None, None]


async def test_a_failure_may_be_all_that_is_ever_stored(provider: Provider) -> None:
    given = envelope("r", "failed", error={"code": "server_error", "message": "the host crashed"})
    await provider.create_response(given, [], None)
    assert await provider.get_response("r") == given
    assert await provider.get_history_item_ids("r", None, -1) == []


# Partitions


async def test_each_user_has_a_partition_and_so_has_nobody(provider: Provider) -> None:
    keys = ["anna", "Anna", "", " ", None]
    for key in keys:
        await provider.create_response(
            envelope("r", conversation="c", of=key), [question("q", str(key))], None, context=user(key)
        )
    for key in keys:
        assert (await provider.get_response("r", context=user(key)))["of"] == key
        assert await provider.get_history_item_ids("r", None, -1, context=user(key)) == ["q"]
        assert await provider.get_items(["q"], context=user(key)) == [question("q", str(key))]
    await provider.delete_response("r", context=user(""))
    assert (await provider.get_response("r", context=user(" ")))["of"] == " "


async def test_no_context_is_the_same_as_no_user(provider: Provider) -> None:
    await provider.create_response(envelope("r", conversation="c"), [question("q")], None)
    context = user(None)
    assert await provider.get_response("r", context=context) == envelope("r", conversation="c")
    assert await provider.get_history_item_ids(None, "c", -1, context=context) == ["q"]
    assert await provider.get_input_items("r", context=context) == [question("q")]
    await provider.update_response(envelope("r", "failed", conversation="c"), context=context)
    await provider.delete_response("r", context=context)
    with pytest.raises(KeyError):
        await provider.get_response("r")


async def test_what_is_remembered_of_one_user_is_not_used_for_another(
    provider: Provider, client: AsyncHistoryClient
) -> None:
    for key in ("anna", "ben"):
        await provider.create_response(envelope("first"), [question("q")], None, context=user(key))
    history = await provider.get_history_item_ids("first", None, -1, context=user("anna"))
    await provider.create_response(envelope("second"), [], history, context=user("ben"))
    stored = await client.get_response("second", scope=client.scope.for_user("ben"))
    assert stored.previous_response_id == ""


# History


async def _three_turns(provider: Provider) -> None:
    """Turns r1, r2 and r3 of the conversation c, of which the second fails."""
    for number, status in ((1, "completed"), (2, "failed"), (3, "completed")):
        await provider.create_response(
            envelope(f"r{number}", status, answer(f"a{number}"), conversation={"id": "c"}),
            [question(f"q{number}")],
            None,
        )


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (-1, ["q1", "a1", "q3", "a3"]),
        (4, ["q1", "a1", "q3", "a3"]),
        (3, ["a1", "q3", "a3"]),
        (1, ["a3"]),
        (0, []),
        (-2, []),
        (2**40, ["q1", "a1", "q3", "a3"]),
    ],
)
async def test_the_limit_counts_the_newest_items(provider: Provider, limit: int, expected: list[str]) -> None:
    await _three_turns(provider)
    assert await provider.get_history_item_ids(None, "c", limit) == expected


async def test_a_line_that_is_not_named_or_not_known_is_empty(provider: Provider) -> None:
    await _deleted(provider)
    for previous, conversation in ((None, None), ("", ""), ("r", None), ("never", None), (None, "never")):
        assert await provider.get_history_item_ids(previous, conversation, -1) == []


async def test_with_both_the_parent_s_history_comes_first(provider: Provider) -> None:
    await _three_turns(provider)
    await provider.create_response(envelope("p", "completed", answer("pa")), [question("pq")], None)
    both = await provider.get_history_item_ids("p", "c", -1)
    assert both == ["pq", "pa", "q1", "a1", "q3", "a3"]
    assert await provider.get_history_item_ids("never", "c", 2) == ["q3", "a3"]


async def test_a_conversation_is_named_by_text_or_by_object(provider: Provider) -> None:
    await provider.create_response(envelope("r1", conversation="c"), [question("q1")], None)
    await provider.create_response(envelope("r2", conversation={"id": "c"}), [question("q2")], None)
    await provider.create_response(envelope("r3", conversation={}), [question("q3")], None)
    await provider.create_response(envelope("r4", conversation=None), [question("q4")], None)
    assert await provider.get_history_item_ids(None, "c", -1) == ["q1", "q2"]


async def test_the_status_counts_as_it_is_now(provider: Provider) -> None:
    class Status(str, Enum):  # noqa: UP042 - whose str() is not its value
        FAILED = "failed"

    await provider.create_response(envelope("r", "in_progress", conversation="c"), [question("q")], None)
    assert await provider.get_history_item_ids(None, "c", -1) == ["q"]
    await provider.update_response(envelope("r", Status.FAILED, conversation="c"))
    assert await provider.get_history_item_ids(None, "c", -1) == []
    assert (await provider.get_response("r"))["status"] == "failed"


async def test_a_policy_may_be_chosen(service: ServiceProcess, namespace: str, provider: Provider) -> None:
    call = {"id": "call", "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    await provider.create_response(envelope("r", "cancelled", call, conversation="c"), [question("q")], None)
    safe = TurnstoreResponseProvider(service.target, namespace=namespace, policy=MODEL_SAFE)
    assert await provider.get_history_item_ids(None, "c", -1) == ["q", "call"]
    assert await safe.get_history_item_ids(None, "c", -1) == ["q"]
    await safe.close()


# Parents


async def _answered(
    provider: Provider, response_id: str, history: list[str] | None = None, **more: Any
) -> None:
    await provider.create_response(
        envelope(response_id, "completed", answer(f"{response_id}-a"), **more),
        [question(f"{response_id}-q")],
        history,
    )


async def test_a_list_is_stored_as_the_parent_that_gave_it(
    provider: Provider, client: AsyncHistoryClient
) -> None:
    await _answered(provider, "first")
    history = await provider.get_history_item_ids("first", None, -1)
    await _answered(provider, "second", list(history))
    assert (await client.get_response("second")).previous_response_id == "first"
    await provider.update_response(envelope("first", "failed"))
    assert await provider.get_history_item_ids("second", None, -1) == ["second-q", "second-a"]


async def test_a_list_that_a_limit_cut_stands_for_the_whole_line(provider: Provider) -> None:
    await _answered(provider, "first")
    await _answered(provider, "second", await provider.get_history_item_ids("first", None, 1))
    assert await provider.get_history_item_ids("second", None, -1) == [
        "first-q",
        "first-a",
        "second-q",
        "second-a",
    ]


async def test_a_list_of_two_lines_is_no_parent_s(provider: Provider, client: AsyncHistoryClient) -> None:
    await _answered(provider, "first")
    await _answered(provider, "talk", conversation="c")
    history = await provider.get_history_item_ids("first", "c", -1)
    await _answered(provider, "second", history)
    assert (await client.get_response("second")).previous_response_id == ""
    assert await provider.get_history_item_ids("second", None, -1) == [*history, "second-q", "second-a"]


async def test_an_empty_list_has_a_parent_as_well(provider: Provider, client: AsyncHistoryClient) -> None:
    await provider.create_response(envelope("failed", "failed"), [question("q")], None)
    history = await provider.get_history_item_ids("failed", None, -1)
    await _answered(provider, "second", history)
    assert history == []
    assert (await client.get_response("second")).previous_response_id == "failed"


async def test_of_two_parents_with_one_list_each_request_has_its_own(
    provider: Provider, client: AsyncHistoryClient
) -> None:
    for name in ("a", "b"):
        await provider.create_response(envelope(name, "in_progress"), [], None)
    both_asked = asyncio.Barrier(2)

    async def request(parent: str) -> None:
        history = await provider.get_history_item_ids(parent, None, -1)
        assert history == []
        await both_asked.wait()
        # A host stores the turn in a task that the request starts.
        await asyncio.create_task(_answered(provider, f"after-{parent}", history))

    await asyncio.gather(request("a"), request("b"))
    for name in ("a", "b"):
        assert (await client.get_response(f"after-{name}")).previous_response_id == name


async def test_an_empty_list_of_another_request_says_nothing(
    provider: Provider, client: AsyncHistoryClient
) -> None:
    await provider.create_response(envelope("failed", "failed"), [question("q")], None)
    await asyncio.create_task(provider.get_history_item_ids("failed", None, -1))
    await _answered(provider, "alone", [])
    assert (await client.get_response("alone")).previous_response_id == ""


async def test_the_envelope_may_name_the_parent(provider: Provider, client: AsyncHistoryClient) -> None:
    await _answered(provider, "first")
    await _answered(provider, "second", ["first-q", "first-a"], previous_response_id="first")
    assert (await client.get_response("second")).previous_response_id == "first"
    assert (await provider.get_response("second"))["previous_response_id"] == "first"


async def test_a_list_of_unknown_origin_is_kept_as_it_is(
    provider: Provider, client: AsyncHistoryClient
) -> None:
    await _answered(provider, "first")
    await _answered(provider, "second", ["never-seen", "first-a"])
    assert (await client.get_response("second")).previous_response_id == ""
    assert await provider.get_history_item_ids("second", None, -1) == [
        "never-seen",
        "first-a",
        "second-q",
        "second-a",
    ]
    await provider.delete_response("first")
    assert await provider.get_history_item_ids("second", None, -1) == ["never-seen", "second-q", "second-a"]


async def test_so_is_the_list_of_a_parent_that_is_gone(
    provider: Provider, client: AsyncHistoryClient
) -> None:
    await _answered(provider, "elsewhere")
    await _answered(provider, "first", ["elsewhere-q"])
    history = await provider.get_history_item_ids("first", None, -1)
    await provider.delete_response("first")
    await _answered(provider, "second", history)
    assert (await client.get_response("second")).previous_response_id == ""
    found = await provider.get_items(await provider.get_history_item_ids("second", None, -1))
    assert [item["id"] for item in found if item] == ["elsewhere-q", "second-q", "second-a"]


async def test_in_a_conversation_the_list_comes_along(provider: Provider, client: AsyncHistoryClient) -> None:
    await _answered(provider, "first")
    history = await provider.get_history_item_ids("first", None, -1)
    await _answered(provider, "second", history, conversation="c", previous_response_id="first")
    stored = await client.get_response("second")
    assert (stored.conversation_id, stored.previous_response_id) == ("c", "")
    assert await provider.get_history_item_ids(None, "c", -1) == [
        "first-q",
        "first-a",
        "second-q",
        "second-a",
    ]
    assert ids(await provider.get_input_items("second", ascending=True)) == ["first-q", "first-a", "second-q"]


async def test_an_input_item_that_stands_in_the_line_shows_once(provider: Provider) -> None:
    await _answered(provider, "first", conversation="c")
    await provider.create_response(
        envelope("second", conversation="c"), [question("first-q"), question("q")], None
    )
    assert await provider.get_history_item_ids(None, "c", -1) == ["first-q", "first-a", "q"]


# Input items


async def _chained(provider: Provider) -> None:
    """A turn with the input items q1 to q3 after a turn with the items h1 and h2."""
    await provider.create_response(envelope("before", "completed", answer("h2")), [question("h1")], None)
    history = await provider.get_history_item_ids("before", None, -1)
    await provider.create_response(envelope("r"), [question(f"q{number}") for number in (1, 2, 3)], history)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ["q3", "q2", "q1", "h2", "h1"]),
        ({"ascending": True}, ["h1", "h2", "q1", "q2", "q3"]),
        ({"limit": 2}, ["q3", "q2"]),
        ({"limit": 0}, ["q3"]),
        ({"limit": -5}, ["q3"]),
        ({"limit": 2, "ascending": True, "after": "h2"}, ["q1", "q2"]),
        ({"after": "q2"}, ["q1", "h2", "h1"]),
        ({"before": "q1"}, ["q3", "q2"]),
        ({"after": "q3", "before": "h2"}, ["q2", "q1"]),
        ({"after": "h1"}, []),
        ({"after": "never", "before": "never"}, ["q3", "q2", "q1", "h2", "h1"]),
        ({"after": "", "before": "\n" * 300, "limit": 1}, ["q3"]),
    ],
)
async def test_input_items_are_listed_after_what_was_inherited(
    provider: Provider, arguments: dict[str, Any], expected: list[str]
) -> None:
    await _chained(provider)
    assert ids(await provider.get_input_items("r", **arguments)) == expected


async def test_no_more_than_100_input_items_are_listed(provider: Provider) -> None:
    await provider.create_response(envelope("r"), [question(f"q{n:03}") for n in range(150)], None)
    assert len(await provider.get_input_items("r")) == 20
    listed = await provider.get_input_items("r", limit=1000, ascending=True)
    assert ids(listed) == [f"q{n:03}" for n in range(100)]


async def test_inherited_ids_without_a_body_are_left_out(provider: Provider) -> None:
    await provider.create_response(
        envelope("r", "failed"), [question("q1"), question("q2")], ["never", "gone"]
    )
    assert ids(await provider.get_input_items("r", limit=3, ascending=True)) == ["q1", "q2"]
    assert ids(await provider.get_input_items("r", limit=2, ascending=True)) == ["q1", "q2"]


async def test_a_turn_of_a_conversation_lists_its_own_input(provider: Provider) -> None:
    await _three_turns(provider)
    assert ids(await provider.get_input_items("r2")) == ["q2"]
    assert ids(await provider.get_input_items("r3")) == ["q3"]


# Items


async def test_items_come_one_for_each_id(provider: Provider) -> None:
    await provider.create_response(envelope("r", "failed", answer("a")), [question("q")], None)
    asked = ["a", "never", "q", "a", "", "x" * 257, "line\nbreak", "\ud800"]
    found = await provider.get_items(iter(asked))
    assert found == [answer("a"), None, question("q"), answer("a"), None, None, None, None]
    assert found[0] is not found[3]
    assert await provider.get_items([]) == []


async def test_an_item_may_be_input_and_output_of_a_turn(provider: Provider) -> None:
    item = {**answer("a"), "internal_metadata": {"phase": "gather", "n": 7}}
    given = envelope("r", "completed", item, metadata={"_internal_metadata": {"phases": 3}})
    await provider.create_response(given, [item], None)
    await provider.update_response({**given, "model": "m"})
    assert await provider.get_response("r") == {**given, "model": "m"}
    assert await provider.get_items(["a"]) == [item]
    assert await provider.get_input_items("r") == [item]
    assert await provider.get_history_item_ids("r", None, -1) == ["a"]


async def test_more_items_than_one_call_takes_come_in_order(provider: Provider) -> None:
    names = [f"q{number}" for number in range(2_500)]
    await provider.create_response(envelope("r"), [question(name) for name in names], None)
    found = await provider.get_items(reversed(names))
    assert [item and item["id"] for item in found] == list(reversed(names))


# Updates


async def test_a_turn_is_stored_step_by_step(provider: Provider, client: AsyncHistoryClient) -> None:
    await provider.create_response(envelope("r", "queued"), [question("q")], None)
    await provider.update_response(envelope("r", "in_progress"))
    await provider.update_response(envelope("r", "in_progress", answer("a1")))
    await provider.update_response(envelope("r", "in_progress", answer("a1"), answer("a2")))
    assert await provider.get_history_item_ids("r", None, -1) == ["q", "a1", "a2"]
    await provider.update_response(envelope("r", "cancelled"))
    assert await provider.get_history_item_ids("r", None, -1) == ["q"]
    stored = await client.get_response("r")
    assert (stored.status, stored.revision, stored.output_items) == (ResponseStatus.CANCELLED, 5, ())


async def test_an_end_that_is_known_may_be_replaced(provider: Provider) -> None:
    """A host overwrites completed by cancelled when a client leaves at the last moment."""
    await provider.create_response(envelope("r", "completed", answer("a")), [question("q")], None)
    await provider.update_response(envelope("r", "cancelled"))
    assert await provider.get_response("r") == envelope("r", "cancelled")


async def test_a_host_that_has_read_an_end_may_begin_again(
    provider: Provider, other_provider: Provider
) -> None:
    """A recovered run writes checkpoints over whatever was stored before the crash."""
    await provider.create_response(envelope("r", "completed", answer("a")), None, None)
    await other_provider.get_response("r")
    await other_provider.update_response(envelope("r", "in_progress"))
    assert (await provider.get_response("r"))["status"] == "in_progress"


@pytest.mark.parametrize("late", ["in_progress", "completed", "cancelled"])
async def test_a_host_that_knows_nothing_of_an_end_cannot_replace_it(
    provider: Provider, other_provider: Provider, late: str
) -> None:
    await provider.create_response(envelope("r", "in_progress"), None, None)
    await provider.update_response(envelope("r", "failed"))
    with pytest.raises(Exception, match="FAILED, which is final"):
        await other_provider.update_response(envelope("r", late))
    assert (await provider.get_response("r"))["status"] == "failed"


async def test_a_host_that_knows_nothing_may_change_a_turn_that_runs(
    provider: Provider, other_provider: Provider
) -> None:
    await provider.create_response(envelope("r", "in_progress"), None, None)
    await other_provider.update_response(envelope("r", "completed"))
    assert (await provider.get_response("r"))["status"] == "completed"


async def test_a_late_checkpoint_does_not_replace_what_it_does_not_know(
    provider: Provider, other_provider: Provider
) -> None:
    await provider.create_response(envelope("r", "in_progress"), None, None)
    await other_provider.update_response(envelope("r", "failed"))
    with pytest.raises(Exception, match="revision 2, not 1"):
        await provider.update_response(envelope("r", "in_progress", answer("a")))
    assert (await provider.get_response("r"))["status"] == "failed"


async def test_a_checkpoint_and_the_end_at_once_leave_the_end(provider: Provider) -> None:
    for name in (f"r{number}" for number in range(20)):
        await provider.create_response(envelope(name, "in_progress"), None, None)
        end, _ = await asyncio.gather(
            provider.update_response(envelope(name, "failed")),
            provider.update_response(envelope(name, "in_progress", answer(f"{name}-a"))),
            return_exceptions=True,
        )
        assert end is None
        assert (await provider.get_response(name))["status"] == "failed"


async def test_a_checkpoint_that_is_held_up_does_not_replace_the_end(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a write knows is what its host knew when the call began."""
    await provider.create_response(envelope("r", "in_progress"), None, None)
    release = asyncio.Event()
    store = AsyncHistoryClient.store_response

    async def held_up(self: AsyncHistoryClient, response: Response, **more: Any) -> Response:
        if response.status is ResponseStatus.IN_PROGRESS:
            await release.wait()
        return await store(self, response, **more)

    monkeypatch.setattr(AsyncHistoryClient, "store_response", held_up)
    checkpoint = asyncio.create_task(provider.update_response(envelope("r", "in_progress", answer("a"))))
    await asyncio.sleep(0)
    await provider.update_response(envelope("r", "failed"))
    release.set()
    with pytest.raises(Exception, match="revision 2, not 1"):
        await checkpoint
    assert (await provider.get_response("r"))["status"] == "failed"


async def test_what_was_known_of_a_deleted_response_is_not_known_of_the_next_of_its_id(
    provider: Provider, other_provider: Provider
) -> None:
    await provider.create_response(envelope("r"), None, None)
    await provider.delete_response("r")
    await other_provider.create_response(envelope("r", "failed"), None, None)
    with pytest.raises(Exception, match="FAILED, which is final"):
        await provider.update_response(envelope("r", "completed"))


@pytest.mark.parametrize("end", ["completed", "incomplete", "cancelled", "failed"])
async def test_the_end_of_a_turn_is_written_on_what_is_there_now(
    provider: Provider, client: AsyncHistoryClient, end: str
) -> None:
    await provider.create_response(envelope("r", "in_progress"), None, None)
    await client.set_replay_exclusion("r", True)
    await provider.update_response(envelope("r", end))
    stored = await client.get_response("r")
    assert (stored.status, stored.exclude_from_replay) == (ResponseStatus(end), True)


async def test_the_end_of_a_turn_of_which_nothing_is_left_creates_nothing(
    provider: Provider, client: AsyncHistoryClient, database: Database[dict[str, Any]], namespace: str
) -> None:
    """Some time after a user's data was erased, the service does not know that there ever was a response."""
    await provider.create_response(envelope(namespace, "in_progress"), None, None)
    assert database["responses"].delete_many({"id": namespace}).deleted_count == 1
    with pytest.raises(KeyError):
        await provider.update_response(envelope(namespace, "completed"))
    with pytest.raises(NotFoundError):
        await client.get_response(namespace)


async def test_the_same_update_twice_is_one(provider: Provider, client: AsyncHistoryClient) -> None:
    await provider.create_response(envelope("r", "in_progress"), None, None)
    for _ in range(2):
        await provider.update_response(envelope("r", "completed", answer("a")))
    assert (await client.get_response("r")).revision == 2
