"""The provider that a host is given as its store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from azure.ai.agentserver.responses import PlatformContext

from turnstore.adapters.azure_agentserver.envelopes import (
    FINAL,
    conversation_id_of,
    envelope_of,
    is_id,
    response_of,
)
from turnstore.adapters.azure_agentserver.errors import host_errors, not_found
from turnstore.adapters.azure_agentserver.memory import Origins, Recent
from turnstore.adapters.azure_agentserver.writes import Writes
from turnstore.asynchronous.client import AsyncHistoryClient
from turnstore.endpoint import DEFAULT_TARGET
from turnstore.errors import (
    HistoryChangedError,
    ParentNotFoundError,
    ResponseNotFoundError,
    RevisionMismatchError,
)
from turnstore.replay import DuplicateItems, ListOrder, ReplayPolicy
from turnstore.response import Item, Response
from turnstore.retry import MAX_RESTARTS
from turnstore.scope import Scope

if TYPE_CHECKING:
    from azure.ai.agentserver.responses.models import OutputItem, ResponseObject

_REVISIONS = 20_000
"""Responses whose revision is remembered, some 400 bytes each: far more than a host runs at once. An update
of one that is forgotten costs a read, and may not change a response that has ended.
"""

_IDS_AT_ONCE = 1_000
"""Item ids that the service takes in one call."""

_MOST_INPUT_ITEMS = 100
"""Input items in one answer, as with the host's own providers."""

_LARGEST_LIMIT = 2**31 - 1
"""Largest limit that the wire has room for. More items than that are not stored."""

_NO_REVISION = 2**63 - 1
"""A revision that no response ever reaches."""


class TurnstoreResponseProvider:
    """Keeps a host's responses in the turnstore service. Give it to `ResponsesAgentServerHost(store=...)`.

    It connects at the first call. A host never closes its store and calls it from whatever event loop serves
    a request, and so may you: each loop has a connection of its own. One provider may serve several hosts.

    Its methods are those of the package's `ResponseProviderProtocol`. Each may raise `FoundryApiError` (the
    service cannot answer, or a write conflicts with another) and `FoundryBadRequestError` (the service does
    not take the request), both with the host's platform-error tag.

    Args:
        target: where the service is: HOST:PORT or a gRPC target.
        namespace: the namespace that the host's responses are kept under. Empty: the credential's own.
        policy: how histories are put together, for example `turnstore.MODEL_SAFE`. None: the service's
            default.
        connection: any further argument of `turnstore.AsyncHistoryClient` but `user`: `timeout`, `token`,
            `tls_ca` and so on.

    Raises:
        ValueError: arguments that do not fit together.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        namespace: str = "",
        policy: ReplayPolicy | None = None,
        **connection: Any,
    ) -> None:
        # Users come with each call. Named here, one in `connection` is refused.
        self._client = AsyncHistoryClient(target, namespace=namespace, user=None, **connection)
        self._policy = policy
        self._origins = Origins()
        self._revisions: Recent[tuple[str | None, str], int] = Recent(_REVISIONS)
        self._writes: Writes[tuple[str | None, str, str]] = Writes()

    async def close(self) -> None:
        """Close the connections. Not needed: they close with their event loops."""
        await self._client.close()

    async def create_response(
        self,
        response: Mapping[str, Any],
        input_items: Iterable[Mapping[str, Any]] | None,
        history_item_ids: Iterable[str] | None,
        *,
        context: PlatformContext | None = None,
    ) -> None:
        """Store a new response.

        Args:
            response: its envelope.
            input_items: what the turn was given.
            history_item_ids: the history that came before, as `get_history_item_ids` gave it.
            context: whose response it is.

        Raises:
            ResponseAlreadyExistsError: a response of this id exists.
        """
        scope = self._scope(context)
        items = list(input_items or ())
        history = list(history_item_ids or ())
        conversation = conversation_id_of(response)
        parent = ""
        if not conversation:
            parent = str(response.get("previous_response_id") or "")
            if not parent and history_item_ids is not None:
                parent = self._origins.parent_of(scope.user, history)
        turn = response_of(
            response, input_items=items, conversation_id=conversation, previous_response_id=parent
        )
        with host_errors(turn.id), self._writing(turn.id, conversation, scope):
            try:
                stored = await self._create(turn, () if parent else history, scope)
            except ParentNotFoundError:
                # It was deleted, or was never stored here: what it gave is all that is known of it.
                stored = await self._create(response_of(response, input_items=items), history, scope)
        self._revisions.put((scope.user, turn.id), stored.revision)

    async def get_response(
        self, response_id: str, *, context: PlatformContext | None = None
    ) -> ResponseObject:
        """Return the envelope of a response, a failed one included.

        Raises:
            KeyError: there is no such response, or it was deleted.
        """
        scope = self._scope(context)
        with host_errors(response_id):
            stored = await self._client.get_response(response_id, scope=scope)
        self._revisions.put((scope.user, response_id), stored.revision)
        return cast("ResponseObject", envelope_of(stored))

    async def update_response(
        self, response: Mapping[str, Any], *, context: PlatformContext | None = None
    ) -> None:
        """Replace the envelope of a response. Its input items stay as they are.

        A response that has changed since this provider saw it last is not overwritten, unless the write ends
        the turn: then it is made once more, on what is stored now.

        Raises:
            KeyError: there is no such response, or it was deleted.
        """
        scope = self._scope(context)
        turn = response_of(response)
        # Before anything is waited for: what comes in while this write is under way, it does not know.
        seen = self._revisions.get((scope.user, turn.id))
        with host_errors(turn.id), self._writing(turn.id, conversation_id_of(response), scope):
            if seen is None:
                # A write without a revision would create what does not exist.
                await self._client.get_response(turn.id, scope=scope)
                stored = await self._client.store_response(turn, scope=scope)
            else:
                try:
                    stored = await self._client.store_response(turn, expected_revision=seen, scope=scope)
                except RevisionMismatchError as error:
                    if error.actual == 0:
                        raise not_found(turn.id) from error
                    if error.actual is None or turn.status not in FINAL:
                        raise
                    stored = await self._client.store_response(
                        turn, expected_revision=error.actual, scope=scope
                    )
        self._revisions.put((scope.user, turn.id), stored.revision)

    async def delete_response(self, response_id: str, *, context: PlatformContext | None = None) -> None:
        """Erase a response. Its id is free again.

        Raises:
            KeyError: there is no such response, or it was deleted before.
        """
        scope = self._scope(context)
        with host_errors(response_id):
            await self._client.delete_response(response_id, scope=scope)
        self._revisions.forget((scope.user, response_id))

    async def get_input_items(
        self,
        response_id: str,
        limit: int = 20,
        ascending: bool = False,
        after: str | None = None,
        before: str | None = None,
        *,
        context: PlatformContext | None = None,
    ) -> list[OutputItem]:
        """Return the items that a turn was given, those of the history that was handed to it first.

        A turn of a conversation is handed no history, and lists its own input alone.

        Args:
            response_id: the response.
            limit: how many at most, from 1 to 100; other numbers are taken for the nearest of these.
            ascending: oldest first instead of newest first.
            after: an item's id: only what comes after it in this order. An unknown one is ignored.
            before: an item's id: only what comes before it in this order. An unknown one is ignored.
            context: whose response it is.

        Raises:
            KeyError: there is no such response.
            ValueError: the response was deleted.
        """
        scope = self._scope(context)
        with host_errors(response_id):
            try:
                # A turn of a conversation has all of it in front, which would leave the first 100 items, all
                # that a host asks for, without any of the turn's own.
                stored = await self._client.get_response(response_id, scope=scope)
                return await self._input_items(
                    response_id,
                    limit=max(1, min(_MOST_INPUT_ITEMS, int(limit))),
                    order=ListOrder.ASC if ascending else ListOrder.DESC,
                    after=after if after and is_id(after) else "",
                    before=before if before and is_id(before) else "",
                    include_inherited=not stored.conversation_id
                    or bool(stored.payload.get("previous_response_id")),
                    scope=scope,
                )
            except ResponseNotFoundError as error:
                if await self._was_deleted(response_id, scope):
                    raise ValueError(f"response '{response_id}' has been deleted") from error
                raise

    async def get_items(
        self, item_ids: Iterable[str], *, context: PlatformContext | None = None
    ) -> list[OutputItem | None]:
        """Return items by their ids: one for each id, in that order, None where none is stored."""
        scope = self._scope(context)
        asked = list(item_ids)
        possible = [item_id for item_id in asked if is_id(item_id)]
        found: list[Item | None] = []
        with host_errors():
            for at in range(0, len(possible), _IDS_AT_ONCE):
                found += await self._client.batch_get_items(possible[at : at + _IDS_AT_ONCE], scope=scope)
        items = iter(found)
        in_order = (next(items) if is_id(item_id) else None for item_id in asked)
        return [None if item is None else cast("OutputItem", item.data) for item in in_order]

    async def get_history_item_ids(
        self,
        previous_response_id: str | None,
        conversation_id: str | None,
        limit: int,
        *,
        context: PlatformContext | None = None,
    ) -> list[str]:
        """Return the ids of the items that the next turn is given, oldest first, none of failed turns.

        Args:
            previous_response_id: the response that the turn follows. One that is unknown or deleted has none.
            conversation_id: the conversation of the turn. With both, the parent's history comes first.
            limit: how many at most, the newest ones. -1: everything; 0 and less: nothing.
            context: whose history it is.
        """
        if limit == 0 or limit < -1 or not (previous_response_id or conversation_id):
            return []
        scope = self._scope(context)
        most = None if limit == -1 else min(limit, _LARGEST_LIMIT)
        await self._writes.ended(
            (scope.user, "response", previous_response_id or ""),
            (scope.user, "conversation", conversation_id or ""),
        )
        with host_errors():
            try:
                item_ids = await self._history(previous_response_id, conversation_id, most, scope)
            except ParentNotFoundError:
                return await self._history(None, conversation_id, most, scope) if conversation_id else []
        if previous_response_id and not conversation_id:
            self._origins.remember(scope.user, item_ids, previous_response_id)
        return item_ids

    def _scope(self, context: PlatformContext | None) -> Scope:
        return self._client.scope.for_user(None if context is None else context.user_id_key)

    def _writing(self, response_id: str, conversation_id: str, scope: Scope) -> AbstractContextManager[None]:
        lines = [(scope.user, "response", response_id)]
        if conversation_id:
            lines.append((scope.user, "conversation", conversation_id))
        return self._writes.about(*lines)

    async def _create(self, turn: Response, inherited: Iterable[str], scope: Scope) -> Response:
        return await self._client.store_response(
            turn,
            expected_revision=0,
            # As with the package's own stores: an item that stands in the line already shows once.
            duplicate_items=DuplicateItems.KEEP_FIRST,
            inherited_item_ids=inherited,
            scope=scope,
        )

    async def _history(
        self, previous_response_id: str | None, conversation_id: str | None, limit: int | None, scope: Scope
    ) -> list[str]:
        history = await self._client.resolve_history(
            previous_response_id=previous_response_id or "",
            conversation_id=conversation_id or "",
            limit=limit,
            policy=self._policy,
            scope=scope,
        )
        return list(history.item_ids)

    async def _input_items(self, response_id: str, *, limit: int, **choices: Any) -> list[OutputItem]:
        restarts = 0
        while True:
            found: list[OutputItem] = []
            try:
                async for item in self._client.list_input_items(response_id, page_size=limit, **choices):
                    # An id of a list of unknown origin may have no body anywhere.
                    if item.json:
                        found.append(cast("OutputItem", item.data))
                    if len(found) == limit:
                        break
                return found
            except HistoryChangedError:
                restarts += 1
                if restarts > MAX_RESTARTS:
                    raise

    async def _was_deleted(self, response_id: str, scope: Scope) -> bool:
        """Return whether a response that is not found was deleted, or never was.

        Only a write is told the difference, so this makes one that cannot take place.
        """
        try:
            await self._client.store_response(
                Response(response_id), expected_revision=_NO_REVISION, scope=scope
            )
        except ResponseNotFoundError:
            return True
        except RevisionMismatchError:
            pass
        return False
