"""A service behind a channel, as a driver that cases and sequences are played against.

It turns plain values into the messages of the contract and back, joins the pages of a reply, and holds every
answer to what is true of all of them: how an error is told, and that pages, ids and items agree.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from tests.model import (
    Exclusion,
    History,
    Item,
    Policy,
    Receipt,
    RefusedError,
    Stored,
    Summary,
    Turn,
)
from turnstore.v1 import errors_pb2, history_service_pb2, history_service_pb2_grpc, replay_pb2, response_pb2

DETAILS = "grpc-status-details-bin"
PARTIAL = ("CANCELLED", "INCOMPLETE")
# A call that takes longer than this, in seconds, hangs.
DEADLINE = 60.0


class ServiceDriver:
    """Makes each call over a channel, in one namespace."""

    def __init__(self, channel: grpc.aio.Channel, namespace: str) -> None:
        self._stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        self._namespace = namespace

    def _scope(self, user: str | None) -> response_pb2.Scope:
        return response_pb2.Scope(namespace=self._namespace, user=user)

    async def _call(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            raise _refused(error) from None

    async def _pages(
        self, method: str, request: Any, between: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[Any]:
        """The pages of a reply. `between` is awaited after the first one when it is not the only one."""
        tokens: set[str] = set()
        while True:
            reply = await self._call(method, request)
            yield reply
            if not reply.next_page_token:
                return
            if between and not tokens:
                await between()
            assert reply.next_page_token not in tokens, f"{method} gives the same page token twice"
            tokens.add(reply.next_page_token)
            request.page_token = reply.next_page_token

    async def store(
        self,
        user: str | None,
        response: dict[str, Any],
        *,
        expected_revision: int | None = None,
        duplicate_items: str = "REJECT",
        inherited_item_ids: Sequence[str] = (),
        request_id: str = "",
    ) -> Stored:
        fields = dict(response)
        for part in ("input_items", "output_items"):
            fields[part] = [response_pb2.Item(json=text) for text in fields.get(part, ())]
        if (error := fields.pop("error", None)) is not None:
            fields["error"] = response_pb2.ResponseError(**error)
        fields["status"] = _status(fields.get("status", "UNSPECIFIED"))
        request = history_service_pb2.StoreResponseRequest(
            scope=self._scope(user),
            response=response_pb2.Response(**fields),
            expected_revision=expected_revision,
            duplicate_items=replay_pb2.DuplicateItems.Value(f"DUPLICATE_ITEMS_{duplicate_items}"),
            inherited_item_ids=inherited_item_ids,
            request_id=request_id,
        )
        stored = (await self._call("StoreResponse", request)).response
        assert stored.id == response["id"], f"stored as {stored.id}"
        items = [*stored.input_items, *stored.output_items]
        assert not any(item.json for item in items), "the reply to a write repeats item JSON"
        return Stored(
            stored.revision,
            tuple(item.id for item in stored.input_items),
            tuple(item.id for item in stored.output_items),
        )

    async def resolve(
        self,
        user: str | None,
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
        before_response_id: str = "",
        limit: int | None = None,
        limit_unit: str = "ITEMS",
        policy: Policy | None = None,
        answered_call_ids: Sequence[str] = (),
        explain: bool = False,
        view: str = "ITEM_IDS",
        between: Callable[[], Awaitable[None]] | None = None,
    ) -> History:
        request = history_service_pb2.ResolveHistoryRequest(
            scope=self._scope(user),
            conversation_id=conversation_id,
            previous_response_id=previous_response_id,
            before_response_id=before_response_id,
            limit=limit,
            limit_unit=replay_pb2.LimitUnit.Value(f"LIMIT_UNIT_{limit_unit}"),
            view=replay_pb2.HistoryView.Value(f"HISTORY_VIEW_{view}"),
            policy=_policy(policy) if policy else None,
            answered_call_ids=answered_call_ids,
            explain=explain,
        )
        items: list[Item] = []
        exclusions: list[Exclusion] = []
        flags = []
        async for page in self._pages("ResolveHistory", request, between):
            if view == "FULL":
                full = [_item(item) for item in page.items]
                assert [item.id for item in full] == list(page.item_ids), "items and ids of a page differ"
                items.extend(full)
            else:
                assert not page.items, "items in the view ITEM_IDS"
                items.extend(Item(item_id) for item_id in page.item_ids)
            _join_exclusions(exclusions, [_exclusion(one) for one in page.exclusions])
            flags.append((page.ancestor_deleted, page.truncated))
        assert len(set(flags)) == 1, f"the pages of one history differ in their flags: {flags}"
        return History(tuple(items), tuple(exclusions), *flags[0])

    async def get(self, user: str | None, response_id: str) -> Turn:
        request = history_service_pb2.GetResponseRequest(scope=self._scope(user), response_id=response_id)
        inputs: list[Item] = []
        outputs: list[Item] = []
        first = None
        async for page in self._pages("GetResponse", request):
            first = first or page.response
            assert page.response.id == response_id, f"{page.response.id} in place of {response_id}"
            inputs.extend(_item(item) for item in page.response.input_items)
            outputs.extend(_item(item) for item in page.response.output_items)
        assert first is not None
        return Turn(
            first.id,
            _status_name(first.status),
            first.conversation_id,
            first.previous_response_id,
            tuple(inputs),
            tuple(outputs),
            first.payload_json,
            (first.error.code, first.error.message) if first.HasField("error") else None,
            first.exclude_from_replay,
            first.revision,
        )

    async def list_input_items(
        self,
        user: str | None,
        response_id: str,
        *,
        order: str = "DESC",
        page_size: int = 0,
        after: str = "",
        before: str = "",
        include_inherited: bool = False,
    ) -> list[tuple[Item, ...]]:
        request = history_service_pb2.ListInputItemsRequest(
            scope=self._scope(user),
            response_id=response_id,
            order=replay_pb2.ListOrder.Value(f"LIST_ORDER_{order}"),
            page_size=page_size,
            after=after,
            before=before,
            include_inherited=include_inherited,
        )
        return [
            tuple(_item(item) for item in page.items) async for page in self._pages("ListInputItems", request)
        ]

    async def batch_get(
        self,
        user: str | None,
        item_ids: Sequence[str],
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
    ) -> tuple[Item | None, ...]:
        request = history_service_pb2.BatchGetItemsRequest(
            scope=self._scope(user),
            item_ids=item_ids,
            conversation_id=conversation_id,
            previous_response_id=previous_response_id,
        )
        answers: list[Item | None] = []
        async for page in self._pages("BatchGetItems", request):
            for one in page.items:
                assert one.found == one.HasField("item"), "an item that is not found, or one found without it"
                answers.append(_item(one.item) if one.found else None)
        return tuple(answers)

    async def list_responses(
        self,
        user: str | None,
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
        page_size: int = 0,
    ) -> tuple[Summary, ...]:
        request = history_service_pb2.ListResponsesRequest(
            scope=self._scope(user),
            conversation_id=conversation_id,
            previous_response_id=previous_response_id,
            page_size=page_size,
        )
        return tuple(
            [
                Summary(
                    one.id,
                    _status_name(one.status),
                    one.revision,
                    one.input_item_count,
                    one.output_item_count,
                    one.conversation_id,
                    one.previous_response_id,
                    one.exclude_from_replay,
                    one.place,
                )
                async for page in self._pages("ListResponses", request)
                for one in page.responses
            ]
        )

    async def set_replay_exclusion(self, user: str | None, response_id: str, excluded: bool) -> int:
        request = history_service_pb2.SetReplayExclusionRequest(
            scope=self._scope(user), response_id=response_id, excluded=excluded
        )
        return int((await self._call("SetReplayExclusion", request)).revision)

    async def delete(self, user: str | None, response_id: str) -> Receipt:
        request = history_service_pb2.DeleteResponseRequest(scope=self._scope(user), response_id=response_id)
        return _receipt(await self._call("DeleteResponse", request))

    async def delete_conversation(self, user: str | None, conversation_id: str) -> Receipt:
        request = history_service_pb2.DeleteConversationRequest(
            scope=self._scope(user), conversation_id=conversation_id
        )
        return _receipt(await self._call("DeleteConversation", request))

    async def delete_user_data(self, user: str | None) -> Receipt:
        request = history_service_pb2.DeleteUserDataRequest(scope=self._scope(user))
        return _receipt(await self._call("DeleteUserData", request))


def _refused(error: grpc.aio.AioRpcError) -> RefusedError:
    """The refusal that an error tells, held to the form that all errors have."""
    code = error.code().name
    details = [value for key, value in error.trailing_metadata() or () if key == DETAILS]
    assert len(details) == 1, f"{code} ({error.details()}) has {len(details)} details"
    status = status_pb2.Status.FromString(bytes(details[0]))
    assert status.code == error.code().value[0], f"{code} in the trailers, {status.code} in the details"
    infos = []
    kinds = set()
    for detail in status.details:
        kinds.add(detail.TypeName())
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            infos.append(info)
    assert len(infos) == 1, f"{code} has {len(infos)} ErrorInfo"
    (info,) = infos
    assert info.domain == "turnstore", f"{code} is of the domain {info.domain}"
    assert f"ERROR_REASON_{info.reason}" in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name, (
        f"unknown reason {info.reason}"
    )
    if code == "INVALID_ARGUMENT":
        assert "google.rpc.BadRequest" in kinds, "INVALID_ARGUMENT without BadRequest"
    if code in ("UNAVAILABLE", "ABORTED"):
        assert "google.rpc.RetryInfo" in kinds, f"{code} without RetryInfo"
    return RefusedError(code, info.reason, dict(info.metadata), status.message)


def _status(name: str) -> Any:
    return response_pb2.ResponseStatus.Value(f"RESPONSE_STATUS_{name}")


def _status_name(value: Any) -> str:
    return response_pb2.ResponseStatus.Name(value).removeprefix("RESPONSE_STATUS_")


def _policy(policy: Policy) -> replay_pb2.ReplayPolicy:
    return replay_pb2.ReplayPolicy(
        cancelled=replay_pb2.TurnRule.Value(f"TURN_RULE_{policy.cancelled}"),
        incomplete=replay_pb2.TurnRule.Value(f"TURN_RULE_{policy.incomplete}"),
        in_flight=replay_pb2.TurnRule.Value(f"TURN_RULE_{policy.in_flight}"),
        tool_items=replay_pb2.ToolItems.Value(f"TOOL_ITEMS_{policy.tool_items}"),
        limit_cut=replay_pb2.LimitCut.Value(f"LIMIT_CUT_{policy.limit_cut}"),
    )


def _exclusion(one: replay_pb2.Exclusion) -> Exclusion:
    reason = replay_pb2.ExclusionReason.Name(one.reason).removeprefix("EXCLUSION_REASON_")
    return Exclusion(one.response_id, _status_name(one.status), reason, tuple(one.item_ids))


def _join_exclusions(earlier: list[Exclusion], page: list[Exclusion]) -> None:
    """Adds the exclusions of a page to those before it. One that lies on both is one."""
    if earlier and page:
        last, first = earlier[-1], page[0]
        if (last.response_id, last.reason) == (first.response_id, first.reason):
            earlier[-1] = replace(last, item_ids=last.item_ids + first.item_ids)
            page = page[1:]
    earlier.extend(page)


def _item(item: response_pb2.Item) -> Item:
    return Item(item.id, item.type, item.json, item.partial)


def _receipt(reply: Any) -> Receipt:
    return Receipt(reply.receipt.responses, reply.receipt.items)
