"""Both clients against a real service: each call, and what it raises."""

import asyncio
import uuid
from typing import Any

import pytest

from turnstore import (
    MODEL_SAFE,
    DeleteReceipt,
    DuplicateItemError,
    DuplicateItems,
    Exclusion,
    ExclusionReason,
    InvalidArgumentError,
    InvalidFieldError,
    Item,
    LinkChangedError,
    ParentNotFoundError,
    ReplayPolicy,
    Response,
    ResponseExistsError,
    ResponseFailure,
    ResponseFinishedError,
    ResponseNotFoundError,
    ResponseStatus,
    RevisionMismatchError,
    TurnRule,
)


def message(item_id: str, text: str = "hello") -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }


def call(item_id: str, call_id: str) -> dict[str, Any]:
    return {"id": item_id, "type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(item_id: str, call_id: str) -> dict[str, Any]:
    return {"id": item_id, "type": "function_call_output", "call_id": call_id, "output": "1"}


def turn(number: int, status: str = "completed", **more: Any) -> Response:
    fields: dict[str, Any] = {
        "conversation_id": "conv_1",
        "input_items": [message(f"in_{number}")],
        "output_items": [message(f"out_{number}")],
        **more,
    }
    return Response(f"resp_{number}", status, **fields)


async def listed(iterator: Any) -> list[Any]:
    return [value async for value in iterator]


async def test_stored_response_is_returned_with_revision_and_ids(client: Any) -> None:
    stored = await client.store_response(Response("resp_1", input_items=[{"type": "message"}, message("m")]))
    assert (stored.id, stored.status, stored.revision) == ("resp_1", ResponseStatus.COMPLETED, 1)
    given, own = stored.input_items
    assert given.id.startswith("item_")
    assert own == Item("", "m", "message")
    assert stored.create_time == stored.update_time is not None


async def test_response_comes_back_as_it_was_stored(client: Any) -> None:
    stored = Response(
        "resp_1",
        ResponseStatus.FAILED,
        conversation_id="conv_1",
        input_items=[message("in_1")],
        output_items=[message("out_1")],
        payload_json='{ "model":"m" }',
        error=ResponseFailure("server_error", "it broke"),
        exclude_from_replay=True,
    )
    await client.store_response(stored)
    read = await client.get_response("resp_1")
    assert (read.id, read.status, read.conversation_id) == ("resp_1", ResponseStatus.FAILED, "conv_1")
    assert [item.data for item in read.input_items] == [message("in_1")]
    assert [item.data for item in read.output_items] == [message("out_1")]
    assert (read.payload_json, read.payload) == ('{ "model":"m" }', {"model": "m"})
    assert (read.error, read.exclude_from_replay, read.revision) == (stored.error, True, 1)


async def test_text_of_an_item_comes_back_byte_for_byte(client: Any) -> None:
    text = '{ "id":"i", "n":1e400, "big":123456789012345678901234567890, "s":"\\ud800\\u0000", "$a.b":"ü", "n":0}'
    await client.store_response(Response("resp_1", conversation_id="conv_1", input_items=[text]))
    (item,) = (await client.get_response("resp_1")).input_items
    (resolved,) = (await client.resolve_history(conversation_id="conv_1", view="full")).items
    assert item.json == resolved.json == text


async def test_what_was_read_can_be_stored_again(client: Any) -> None:
    await client.store_response(turn(1, input_items=['{"type":"message"}']))
    read = await client.get_response("resp_1")
    assert (await client.store_response(read)).revision == 1


async def test_failed_turn_is_not_in_the_history(client: Any) -> None:
    await client.store_response(turn(1))
    await client.store_response(turn(2, "failed", input_items=[output("orphan", "call_9")]))
    await client.store_response(turn(3))
    history = await client.resolve_history(conversation_id="conv_1", view="full", explain=True)
    assert history.item_ids == ("in_1", "out_1", "in_3", "out_3")
    assert history.data() == [message("in_1"), message("out_1"), message("in_3"), message("out_3")]
    assert history.exclusions == (
        Exclusion("resp_2", ResponseStatus.FAILED, ExclusionReason.FAILED, ("orphan", "out_2")),
    )
    assert (history.ancestor_deleted, history.truncated) == (False, False)


async def test_chain_is_followed_to_its_root(client: Any) -> None:
    await client.store_response(turn(1, conversation_id=""))
    await client.store_response(turn(2, conversation_id="", previous_response_id="resp_1"))
    history = await client.resolve_history(previous_response_id="resp_2")
    assert history.item_ids == ("in_1", "out_1", "in_2", "out_2")


async def test_history_without_full_view_has_no_items(client: Any) -> None:
    await client.store_response(turn(1))
    assert (await client.resolve_history(conversation_id="conv_1")).items == ()


async def test_history_of_a_conversation_that_has_not_begun_is_empty(client: Any) -> None:
    assert (await client.resolve_history(conversation_id="conv_1")).item_ids == ()


@pytest.mark.parametrize(
    ("limit", "unit", "ids", "truncated"),
    [
        (0, "items", (), True),
        (3, "items", ("out_1", "in_2", "out_2"), True),
        (1, "turns", ("in_2", "out_2"), True),
        (4, "items", ("in_1", "out_1", "in_2", "out_2"), False),
        (None, "items", ("in_1", "out_1", "in_2", "out_2"), False),
    ],
)
async def test_limit_counts_items_or_turns(
    client: Any, limit: int | None, unit: str, ids: tuple[str, ...], truncated: bool
) -> None:
    await client.store_response(turn(1))
    await client.store_response(turn(2))
    history = await client.resolve_history(conversation_id="conv_1", limit=limit, limit_unit=unit)
    assert (history.item_ids, history.truncated) == (ids, truncated)


async def test_policy_decides_about_tool_items(client: Any) -> None:
    await client.store_response(turn(1, output_items=[call("call_item", "call_1")]))
    await client.store_response(turn(2))
    kept = await client.resolve_history(conversation_id="conv_1")
    paired = await client.resolve_history(conversation_id="conv_1", policy=MODEL_SAFE)
    answered = await client.resolve_history(
        conversation_id="conv_1", policy=MODEL_SAFE, answered_call_ids=["call_1"]
    )
    assert "call_item" in kept.item_ids
    assert "call_item" not in paired.item_ids
    assert "call_item" in answered.item_ids


async def test_policy_decides_about_cancelled_turns(client: Any) -> None:
    await client.store_response(turn(1, "cancelled"))
    policy = ReplayPolicy(cancelled=TurnRule.INPUT_ONLY)
    assert (await client.resolve_history(conversation_id="conv_1", policy=policy)).item_ids == ("in_1",)


async def test_output_of_a_cancelled_turn_is_partial(client: Any) -> None:
    await client.store_response(turn(1, "cancelled"))
    history = await client.resolve_history(conversation_id="conv_1", view="full")
    assert [item.partial for item in history.items] == [False, True]


async def test_history_before_a_response_is_what_it_was_given(client: Any) -> None:
    await client.store_response(turn(1))
    await client.store_response(turn(2))
    assert (await client.resolve_history(before_response_id="resp_2")).item_ids == ("in_1", "out_1")


async def test_snapshot_stands_before_the_input(client: Any) -> None:
    await client.store_response(turn(1, conversation_id=""))
    await client.store_response(turn(2, conversation_id=""), inherited_item_ids=["in_1", "elsewhere"])
    history = await client.resolve_history(previous_response_id="resp_2", view="full")
    assert history.item_ids == ("in_1", "elsewhere", "in_2", "out_2")
    assert history.items[1] == Item("", "elsewhere")


async def test_history_larger_than_a_reply_is_whole(client: Any) -> None:
    texts = [f'{{"id":"i{number}","s":"{"x" * 2**20}"}}' for number in range(9)]
    await client.store_response(Response("resp_1", conversation_id="conv_1", input_items=texts))
    history = await client.resolve_history(conversation_id="conv_1", view="full")
    response = await client.get_response("resp_1")
    assert [item.json for item in history.items] == texts
    assert [item.json for item in response.input_items] == texts


async def test_unknown_parent_is_told(client: Any) -> None:
    with pytest.raises(ParentNotFoundError) as caught:
        await client.resolve_history(previous_response_id="resp_9")
    assert caught.value.previous_response_id == "resp_9"


async def test_write_under_an_unknown_parent_stores_nothing(client: Any) -> None:
    with pytest.raises(ParentNotFoundError):
        await client.store_response(Response("resp_1", previous_response_id="resp_9"))
    with pytest.raises(ResponseNotFoundError):
        await client.get_response("resp_1")


async def test_history_of_no_line_is_refused(client: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        await client.resolve_history()


async def test_bad_item_is_named(client: Any) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        await client.store_response(Response("resp_1", input_items=["{}", "[]"]))
    assert caught.value.field == "response.input_items[1].json"
    assert caught.value.violations[0].field == caught.value.field
    assert caught.value.request_id


async def test_update_replaces_what_is_stored(client: Any) -> None:
    await client.store_response(turn(1, "in_progress", output_items=[]))
    stored = await client.store_response(turn(1, input_items=[]))
    read = await client.get_response("resp_1")
    assert (stored.revision, read.status) == (2, ResponseStatus.COMPLETED)
    assert [item.id for item in (*read.input_items, *read.output_items)] == ["in_1", "out_1"]


async def test_same_request_id_changes_nothing(client: Any) -> None:
    request_id = str(uuid.uuid4())
    await client.store_response(turn(1, "in_progress"), request_id=request_id)
    assert (await client.store_response(turn(1), request_id=request_id)).revision == 1


async def test_response_that_must_not_exist(client: Any) -> None:
    await client.store_response(turn(1), expected_revision=0)
    with pytest.raises(ResponseExistsError) as caught:
        await client.store_response(turn(1), expected_revision=0)
    assert (caught.value.response_id, caught.value.revision) == ("resp_1", 1)


async def test_response_at_another_revision(client: Any) -> None:
    await client.store_response(turn(1))
    with pytest.raises(RevisionMismatchError) as caught:
        await client.store_response(turn(1, "failed"), expected_revision=5)
    assert (caught.value.expected, caught.value.actual) == (5, 1)


async def test_finished_response_is_final(client: Any) -> None:
    await client.store_response(turn(1, "failed"))
    with pytest.raises(ResponseFinishedError) as caught:
        await client.store_response(turn(1, "in_progress"))
    assert caught.value.stored_status is ResponseStatus.FAILED
    assert caught.value.requested_status is ResponseStatus.IN_PROGRESS


async def test_link_never_changes(client: Any) -> None:
    await client.store_response(turn(1))
    with pytest.raises(LinkChangedError) as caught:
        await client.store_response(turn(1, conversation_id="conv_2"))
    assert (caught.value.response_id, caught.value.field) == ("resp_1", "conversation_id")


async def test_duplicate_item_is_refused_or_kept_once(client: Any) -> None:
    await client.store_response(turn(1))
    again = turn(2, input_items=[message("in_1")])
    with pytest.raises(DuplicateItemError) as caught:
        await client.store_response(again)
    assert (caught.value.item_ids, caught.value.item_count) == (("in_1",), 1)
    assert "Duplicate item found with id in_1" in str(caught.value)
    await client.store_response(again, duplicate_items=DuplicateItems.KEEP_FIRST)
    history = await client.resolve_history(conversation_id="conv_1")
    assert history.item_ids == ("in_1", "out_1", "out_2")


async def test_turn_is_hidden_and_shown_again(client: Any) -> None:
    await client.store_response(turn(1))
    assert await client.set_replay_exclusion("resp_1", True) == 2
    assert (await client.resolve_history(conversation_id="conv_1")).item_ids == ()
    assert await client.set_replay_exclusion("resp_1", False) == 3
    assert (await client.resolve_history(conversation_id="conv_1")).item_ids == ("in_1", "out_1")


async def test_deleted_response_is_gone_and_the_line_goes_on(client: Any) -> None:
    await client.store_response(turn(1))
    await client.store_response(turn(2))
    assert await client.delete_response("resp_1") == DeleteReceipt(1, 2)
    history = await client.resolve_history(conversation_id="conv_1")
    assert (history.item_ids, history.ancestor_deleted) == (("in_2", "out_2"), True)
    with pytest.raises(ResponseNotFoundError) as caught:
        await client.delete_response("resp_1")
    assert caught.value.response_id == "resp_1"


async def test_conversation_is_deleted_and_deleting_is_safe_to_repeat(client: Any) -> None:
    await client.store_response(turn(1))
    await client.store_response(turn(2))
    assert await client.delete_conversation("conv_1") == DeleteReceipt(2, 4)
    assert await client.delete_conversation("conv_1") == DeleteReceipt(0, 0)
    assert await client.delete_conversation("never") == DeleteReceipt(0, 0)


async def test_data_of_one_user_is_deleted_and_no_other(client: Any) -> None:
    anna = client.scope.for_user("anna")
    await client.store_response(turn(1), scope=anna)
    await client.store_response(turn(1))
    assert await client.delete_user_data(scope=anna) == DeleteReceipt(1, 2)
    assert (await client.get_response("resp_1")).revision == 1
    with pytest.raises(ResponseNotFoundError):
        await client.get_response("resp_1", scope=anna)


async def test_users_are_apart(client: Any) -> None:
    users = (None, "", " ", "anna")
    for user in users:
        scope = client.scope.for_user(user)
        await client.store_response(Response("resp_1", payload_json={"user": user}), scope=scope)
    read = [await client.get_response("resp_1", scope=client.scope.for_user(user)) for user in users]
    assert [response.payload["user"] for response in read] == list(users)


async def test_input_items_are_listed_through_all_pages(client: Any) -> None:
    ids = [f"in_{number}" for number in range(7)]
    await client.store_response(Response("resp_1", input_items=[message(item_id) for item_id in ids]))
    newest_first = await listed(client.list_input_items("resp_1", page_size=3))
    oldest_first = await listed(client.list_input_items("resp_1", order="asc", page_size=3))
    assert [item.id for item in newest_first] == ids[::-1]
    assert [item.id for item in oldest_first] == ids
    assert oldest_first[0].data == message("in_0")


async def test_input_items_between_two_others(client: Any) -> None:
    ids = [f"in_{number}" for number in range(5)]
    await client.store_response(Response("resp_1", input_items=[message(item_id) for item_id in ids]))
    items = await listed(client.list_input_items("resp_1", order="asc", after="in_0", before="in_4"))
    assert [item.id for item in items] == ["in_1", "in_2", "in_3"]


async def test_inherited_items_stand_before_the_input(client: Any) -> None:
    await client.store_response(turn(1))
    await client.store_response(turn(2))
    items = await listed(client.list_input_items("resp_2", order="asc", include_inherited=True))
    assert [item.id for item in items] == ["in_1", "out_1", "in_2"]


async def test_input_items_of_an_unknown_response(client: Any) -> None:
    with pytest.raises(ResponseNotFoundError):
        await listed(client.list_input_items("resp_9"))


async def test_items_are_found_by_id_in_the_order_asked(client: Any) -> None:
    await client.store_response(turn(1))
    found = await client.batch_get_items(["out_1", "nowhere", "in_1"])
    assert [item and item.id for item in found] == ["out_1", None, "in_1"]
    assert found[2].data == message("in_1")


async def test_line_decides_which_of_two_items_of_one_id_is_meant(client: Any) -> None:
    for name in ("a", "b"):
        await client.store_response(
            Response(f"resp_{name}", conversation_id=f"conv_{name}", input_items=[message("in", name)])
        )
    (item,) = await client.batch_get_items(["in"], conversation_id="conv_a")
    (chained,) = await client.batch_get_items(["in"], previous_response_id="resp_b")
    assert (item.data, chained.data) == (message("in", "a"), message("in", "b"))


async def test_turns_are_listed_through_all_pages(client: Any) -> None:
    for number in range(1, 6):
        await client.store_response(turn(number, "failed" if number == 2 else "completed"))
    await client.set_replay_exclusion("resp_3", True)
    turns = await listed(client.list_responses(conversation_id="conv_1", page_size=2))
    assert [summary.id for summary in turns] == [f"resp_{number}" for number in range(1, 6)]
    assert [summary.place for summary in turns] == [1, 2, 3, 4, 5]
    assert turns[1].status is ResponseStatus.FAILED
    assert [summary.exclude_from_replay for summary in turns] == [False, False, True, False, False]
    assert (turns[0].input_item_count, turns[0].output_item_count, turns[0].revision) == (1, 1, 1)
    assert (turns[0].conversation_id, turns[0].previous_response_id) == ("conv_1", "")
    assert turns[0].create_time == turns[0].update_time is not None


async def test_turns_of_a_chain_are_listed(client: Any) -> None:
    await client.store_response(turn(1, conversation_id=""))
    await client.store_response(turn(2, conversation_id="", previous_response_id="resp_1"))
    turns = await listed(client.list_responses(previous_response_id="resp_2"))
    assert [(summary.id, summary.previous_response_id) for summary in turns] == [
        ("resp_1", ""),
        ("resp_2", "resp_1"),
    ]


async def test_many_calls_at_one_time(client: Any) -> None:
    await asyncio.gather(*(client.store_response(turn(number)) for number in range(40)))
    history = await client.resolve_history(conversation_id="conv_1")
    assert len(history.item_ids) == 80


async def test_ping(client: Any) -> None:
    assert (await client.ping()).serving
