"""Between this package's values and the messages of the wire contract."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest

from turnstore import (
    AS_STORED,
    MODEL_SAFE,
    DuplicateItems,
    Exclusion,
    ExclusionReason,
    HistoryView,
    Item,
    LimitCut,
    LimitUnit,
    ListOrder,
    ReplayPolicy,
    Response,
    ResponseFailure,
    ResponseStatus,
    Scope,
    ToolItems,
    TurnRule,
)
from turnstore.messages import (
    enum_name,
    exclusion_value,
    joined_history,
    joined_response,
    policy_message,
    response_message,
    response_value,
    scope_message,
)
from turnstore.rpcs import Rpc
from turnstore.v1 import history_service_pb2 as pb
from turnstore.v1 import replay_pb2, response_pb2

ENUMS: list[tuple[type[StrEnum], Any]] = [
    (ResponseStatus, response_pb2.ResponseStatus),
    (TurnRule, replay_pb2.TurnRule),
    (ToolItems, replay_pb2.ToolItems),
    (LimitCut, replay_pb2.LimitCut),
    (ExclusionReason, replay_pb2.ExclusionReason),
    (DuplicateItems, replay_pb2.DuplicateItems),
    (LimitUnit, replay_pb2.LimitUnit),
    (HistoryView, replay_pb2.HistoryView),
    (ListOrder, replay_pb2.ListOrder),
]


@pytest.mark.parametrize(("kind", "wire"), ENUMS, ids=[kind.__name__ for kind, _ in ENUMS])
def test_each_value_of_the_wire_has_its_member(kind: type[StrEnum], wire: Any) -> None:
    known = {enum_name(kind, member) for member in kind}
    unset = wire.Name(0)
    assert known | {unset} == set(wire.keys())


def test_word_that_is_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'all' is none of 'item_ids', 'full'"):
        enum_name(HistoryView, "all")


@pytest.mark.parametrize("user", [None, "", " ", "anna"])
def test_absent_user_is_another_scope_than_an_empty_one(user: str | None) -> None:
    message = scope_message(Scope("ns", user))
    assert (message.HasField("user"), message.user) == (user is not None, user or "")


def test_write_carries_all_that_a_caller_decides_and_nothing_else() -> None:
    response = Response(
        "resp_1",
        ResponseStatus.FAILED,
        conversation_id="conv_1",
        previous_response_id="resp_0",
        input_items=[Item('{"a":1}', "item_1", "message", partial=True)],
        output_items=[{"b": 2}],
        payload_json={"model": "m"},
        error=ResponseFailure("server_error", "it broke"),
        exclude_from_replay=False,
        revision=7,
        create_time=datetime.now(UTC),
    )
    assert response_message(response) == response_pb2.Response(
        id="resp_1",
        status=response_pb2.RESPONSE_STATUS_FAILED,
        conversation_id="conv_1",
        previous_response_id="resp_0",
        input_items=[response_pb2.Item(json='{"a":1}')],
        output_items=[response_pb2.Item(json='{"b":2}')],
        payload_json='{"model":"m"}',
        error=response_pb2.ResponseError(code="server_error", message="it broke"),
        exclude_from_replay=False,
    )


def test_what_is_not_given_is_not_sent() -> None:
    message = response_message(Response("resp_1"))
    assert not message.HasField("exclude_from_replay")
    assert not message.HasField("error")


def test_response_is_read_with_every_field() -> None:
    message = response_pb2.Response(
        id="resp_1",
        status=response_pb2.RESPONSE_STATUS_CANCELLED,
        conversation_id="conv_1",
        previous_response_id="resp_0",
        input_items=[response_pb2.Item(id="i", type="message", json='{"a": 1}')],
        output_items=[response_pb2.Item(id="o", type="message", json="{}", partial=True)],
        payload_json="{}",
        error=response_pb2.ResponseError(code="c", message="m"),
        exclude_from_replay=True,
        revision=3,
    )
    message.create_time.FromJsonString("2026-01-02T03:04:05.678901Z")
    message.update_time.FromJsonString("2026-01-02T03:04:06Z")
    assert response_value(message) == Response(
        "resp_1",
        ResponseStatus.CANCELLED,
        conversation_id="conv_1",
        previous_response_id="resp_0",
        input_items=[Item('{"a": 1}', "i", "message")],
        output_items=[Item("{}", "o", "message", partial=True)],
        payload_json="{}",
        error=ResponseFailure("c", "m"),
        exclude_from_replay=True,
        revision=3,
        create_time=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        update_time=datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC),
    )


def test_status_of_a_newer_service_is_unknown() -> None:
    message = response_pb2.Response(id="resp_1")
    message.status = 77  # type: ignore[assignment]
    assert response_value(message).status is ResponseStatus.UNSPECIFIED


def test_reason_of_a_newer_service_is_unknown() -> None:
    message = replay_pb2.Exclusion(response_id="r", item_ids=["a"])
    message.reason = 77  # type: ignore[assignment]
    assert exclusion_value(message) == Exclusion(
        "r", ResponseStatus.UNSPECIFIED, ExclusionReason.UNSPECIFIED, ("a",)
    )


def test_unset_field_of_a_policy_stays_unset() -> None:
    message = policy_message(ReplayPolicy(cancelled=TurnRule.EXCLUDE))
    assert message == replay_pb2.ReplayPolicy(cancelled=replay_pb2.TURN_RULE_EXCLUDE)


def test_named_policies_leave_nothing_to_the_server() -> None:
    for policy in (AS_STORED, MODEL_SAFE):
        message = policy_message(policy)
        assert {field.name for field, _ in message.ListFields()} == set(message.DESCRIPTOR.fields_by_name)


def test_pages_of_a_response_are_joined_in_order() -> None:
    def items(*names: str) -> list[response_pb2.Item]:
        return [response_pb2.Item(id=name, json="{}") for name in names]

    first = response_pb2.Response(id="r", payload_json="{}", revision=2, input_items=items("a"))
    second = response_pb2.Response(id="r", input_items=items("b"), output_items=items("c"))
    third = response_pb2.Response(id="r", output_items=items("d"))
    joined = joined_response(pb.GetResponseResponse(response=page) for page in (first, second, third))
    assert [item.id for item in joined.input_items] == ["a", "b"]
    assert [item.id for item in joined.output_items] == ["c", "d"]
    assert (joined.payload_json, joined.revision) == ("{}", 2)


def test_pages_of_a_history_are_joined_in_order() -> None:
    pages = [
        pb.ResolveHistoryResponse(
            item_ids=["a"],
            items=[response_pb2.Item(id="a")],
            exclusions=[replay_pb2.Exclusion(response_id="x")],
            truncated=True,
        ),
        pb.ResolveHistoryResponse(
            item_ids=["b"],
            items=[response_pb2.Item(id="b")],
            exclusions=[replay_pb2.Exclusion(response_id="y")],
            truncated=True,
        ),
    ]
    history = joined_history(pages)
    assert history.item_ids == ("a", "b")
    assert [item.id for item in history.items] == ["a", "b"]
    assert [exclusion.response_id for exclusion in history.exclusions] == ["x", "y"]
    assert (history.ancestor_deleted, history.truncated) == (False, True)


def test_calls_are_those_of_the_contract() -> None:
    import turnstore.rpcs as rpcs

    calls = [value for value in vars(rpcs).values() if isinstance(value, Rpc) and "turnstore" in value.path]
    methods = pb.DESCRIPTOR.services_by_name["HistoryService"].methods_by_name
    for call in calls:
        method = methods[call.path.rpartition("/")[2]]
        assert (method.input_type, method.output_type) == (call.request.DESCRIPTOR, call.reply.DESCRIPTOR)
    assert len({call.path for call in calls}) == 10
