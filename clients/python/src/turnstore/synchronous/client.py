"""The client: one method for each call of the service."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from os import PathLike
from types import TracebackType
from typing import Self

from turnstore.connection import Connection
from turnstore.endpoint import DEFAULT_TARGET, Endpoint, TokenSource
from turnstore.errors import ResponseNotFoundError
from turnstore.health import Ping
from turnstore.messages import (
    enum_name,
    item_value,
    joined_history,
    joined_response,
    policy_message,
    receipt_value,
    response_message,
    response_value,
    scope_message,
    summary_value,
)
from turnstore.replay import DuplicateItems, History, HistoryView, LimitUnit, ListOrder, ReplayPolicy
from turnstore.response import DeleteReceipt, Item, Response, ResponseSummary
from turnstore.retry import Deadline
from turnstore.rpcs import (
    BATCH_GET_ITEMS,
    DELETE_CONVERSATION,
    DELETE_RESPONSE,
    DELETE_USER_DATA,
    GET_RESPONSE,
    LIST_INPUT_ITEMS,
    LIST_RESPONSES,
    RESOLVE_HISTORY,
    SET_REPLAY_EXCLUSION,
    STORE_RESPONSE,
)
from turnstore.scope import Scope
from turnstore.synchronous.calls import Calls
from turnstore.v1 import history_service_pb2 as pb
from turnstore.v1 import response_pb2


class HistoryClient:
    """A client of the turnstore service.

    It connects at the first call and closes when its `with` block ends, or by `close()`. One client
    serves any number of calls at the same time, from any number of threads.

    Every call ends within its timeout, tries and pages included. A service that is away (it restarts, its
    database fails over) is waited for within that time, and the call made again; writes are safe to repeat
    because each carries a `request_id`. Errors are subclasses of `TurnstoreError`; all calls may raise
    `InvalidArgumentError`, `AccessError`, `ResourceExhaustedError`, `UnavailableError`, `DeadlineError`,
    `DataMissingError`, `InternalError` and `NotBuiltError`, and tell of the others that they raise.

    Args:
        target: where the service is: HOST:PORT (every address of the name is used in turn), or any gRPC
            target, for example `unix:/run/turnstore.sock` or `ipv4:10.0.0.1:50051,10.0.0.2:50051`.
        namespace: the namespace of the client's scope. Empty: the credential's own, which is `default` when
            the service runs without authentication.
        user: the end user of the client's scope. None: the anonymous partition.
        timeout: seconds that a call may take in all.
        wait_for_ready: whether a service that cannot be reached is waited for within the timeout. False: it
            is an error at once.
        token: the bearer token, or a function that returns it, asked before every try.
        token_file: a file with the token, read again when it has changed.
        plaintext_token: send the token also where the connection is not encrypted.
        tls: connect over TLS. Any other `tls_` argument turns it on too.
        tls_ca: a PEM file with the certificates that the service's is checked against. None: the system's.
        tls_cert: a PEM file with the client's certificate chain, for mutual TLS.
        tls_key: a PEM file with its key.
        tls_server_name: the name that the service's certificate is for, when it is not the target's.

    Raises:
        ValueError: arguments that do not fit together.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        namespace: str = "",
        user: str | None = None,
        timeout: float = 15.0,
        wait_for_ready: bool = True,
        token: TokenSource | None = None,
        token_file: str | PathLike[str] | None = None,
        plaintext_token: bool = False,
        tls: bool = False,
        tls_ca: str | PathLike[str] | None = None,
        tls_cert: str | PathLike[str] | None = None,
        tls_key: str | PathLike[str] | None = None,
        tls_server_name: str = "",
    ) -> None:
        endpoint = Endpoint.of(
            target,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_server_name=tls_server_name,
            token=token,
            token_file=token_file,
            plaintext_token=plaintext_token,
        )
        Deadline.after(timeout)
        self._scope = Scope(namespace, user)
        self._timeout = timeout
        self._connection = Connection(endpoint)
        self._calls = Calls(self._connection, wait_for_ready=wait_for_ready)

    @property
    def target(self) -> str:
        """Where the service is, as gRPC takes it (`dns:///` stands before a plain HOST:PORT)."""
        return self._connection.endpoint.target

    @property
    def scope(self) -> Scope:
        """The scope of calls that are given none."""
        return self._scope

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Calls that run end; later ones raise RuntimeError."""
        self._connection.close()

    def store_response(
        self,
        response: Response,
        *,
        expected_revision: int | None = None,
        duplicate_items: DuplicateItems | str = DuplicateItems.REJECT,
        inherited_item_ids: Iterable[str] = (),
        request_id: str | None = None,
        scope: Scope | None = None,
        timeout: float | None = None,
    ) -> Response:
        """Create a response, or replace what it holds. When it returns, the write is durable on a majority of
        the database's members.

        Args:
            response: the turn. What the service alone decides (revision, times, `partial`) is not sent.
            expected_revision: None: no condition. 0: the response must not exist. n: it must be at revision
                n, which also allows a change of a finished response.
            duplicate_items: what happens to input items that stand in the line's history already.
            inherited_item_ids: a snapshot of the history that the turn was given, for callers that know item
                ids but no parent. Used on create alone, and only when the response names no parent.
            request_id: the UUID of this write. None: a new one. Give your own to repeat a write later whose
                outcome you do not know.
            scope: whose response it is. None: the client's scope.
            timeout: seconds that the call may take in all. None: the client's timeout.

        Returns:
            The response with its revision and the ids of its items. The items' `json` is left out.

        Raises:
            ResponseExistsError: `expected_revision` is 0 and the response exists.
            RevisionMismatchError: it is not at `expected_revision`.
            ResponseFinishedError: its status is final and the write would change it without the matching
                `expected_revision`.
            LinkChangedError: the write names another conversation or parent than is stored.
            DuplicateItemError: input items stand in the line's history already.
            ParentNotFoundError: the parent is unknown or deleted.
            ResponseNotFoundError: the response was deleted.
        """
        request = pb.StoreResponseRequest(
            scope=self._scope_message(scope),
            response=response_message(response),
            expected_revision=expected_revision,
            duplicate_items=enum_name(DuplicateItems, duplicate_items),
            inherited_item_ids=inherited_item_ids,
            request_id=request_id or str(uuid.uuid4()),
        )
        reply = self._calls.unary(STORE_RESPONSE, request, self._deadline(timeout))
        return response_value(reply.response)

    def resolve_history(
        self,
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
        before_response_id: str = "",
        view: HistoryView | str = HistoryView.ITEM_IDS,
        limit: int | None = None,
        limit_unit: LimitUnit | str = LimitUnit.ITEMS,
        policy: ReplayPolicy | None = None,
        answered_call_ids: Iterable[str] = (),
        explain: bool = False,
        scope: Scope | None = None,
        timeout: float | None = None,
    ) -> History:
        """Return the items that the next turn is given: failed, excluded and deleted turns are left out.

        Args:
            conversation_id: the conversation whose next turn it is. An unknown one has an empty history.
            previous_response_id: the response that the next turn follows. With a conversation as well: the
                parent's history, then the conversation's.
            before_response_id: instead of a line, the history that this stored response was given, as it
                stands now.
            view: ids alone, or `HistoryView.FULL` (`"full"`): the items with their JSON.
            limit: how many units are returned, the newest ones. None: everything. 0: nothing.
            limit_unit: what the limit counts: items or turns.
            policy: how the history is put together, for example `MODEL_SAFE`. None: the server's default.
            answered_call_ids: calls and approval requests that the next input answers, at most 1,000: they
                stay, and the other unanswered ones go, where the policy leaves unanswered calls out.
            explain: also tell every item that was left out, and why.
            scope: whose history it is. None: the client's scope.
            timeout: seconds that the call may take in all. None: the client's timeout.

        Raises:
            ParentNotFoundError: the parent is unknown or deleted.
            ResponseNotFoundError: `before_response_id` is unknown or deleted.
            HistoryChangedError: the history has several pages and changed each time while it was read.
        """
        request = pb.ResolveHistoryRequest(
            scope=self._scope_message(scope),
            conversation_id=conversation_id,
            previous_response_id=previous_response_id,
            before_response_id=before_response_id,
            view=enum_name(HistoryView, view),
            limit=limit,
            limit_unit=enum_name(LimitUnit, limit_unit),
            policy=None if policy is None else policy_message(policy),
            answered_call_ids=answered_call_ids,
            explain=explain,
        )
        return joined_history(self._calls.pages(RESOLVE_HISTORY, request, self._deadline(timeout)))

    def get_response(
        self, response_id: str, *, scope: Scope | None = None, timeout: float | None = None
    ) -> Response:
        """Return a response with all its items, a failed one included.

        Args:
            response_id: the response.
            scope: whose response it is. None: the client's scope.
            timeout: seconds that the call may take in all. None: the client's timeout.

        Raises:
            ResponseNotFoundError: the response is unknown or deleted.
            HistoryChangedError: the response has several pages and changed each time while it was read.
        """
        request = pb.GetResponseRequest(scope=self._scope_message(scope), response_id=response_id)
        return joined_response(self._calls.pages(GET_RESPONSE, request, self._deadline(timeout)))

    def set_replay_exclusion(
        self, response_id: str, excluded: bool, *, scope: Scope | None = None, timeout: float | None = None
    ) -> int:
        """Hide a turn from every history, or show it again, without touching its content.

        Args:
            response_id: the response.
            excluded: True hides the turn, False shows it as its status says.
            scope: whose response it is. None: the client's scope.
            timeout: seconds that the call may take in all. None: the client's timeout.

        Returns:
            The response's revision now.

        Raises:
            ResponseNotFoundError: the response is unknown or deleted.
        """
        request = pb.SetReplayExclusionRequest(
            scope=self._scope_message(scope), response_id=response_id, excluded=excluded
        )
        reply = self._calls.unary(SET_REPLAY_EXCLUSION, request, self._deadline(timeout))
        return reply.revision

    def delete_response(
        self, response_id: str, *, scope: Scope | None = None, timeout: float | None = None
    ) -> DeleteReceipt:
        """Erase a response's content and items. Its place stays, so that what follows it still resolves.

        Args:
            response_id: the response.
            scope: whose response it is. None: the client's scope.
            timeout: seconds that the call may take in all. None: the client's timeout.

        Raises:
            ResponseNotFoundError: the response is unknown or was deleted before.
        """
        request = pb.DeleteResponseRequest(scope=self._scope_message(scope), response_id=response_id)
        try:
            reply = self._calls.unary(DELETE_RESPONSE, request, self._deadline(timeout))
        except ResponseNotFoundError as error:
            if error.attempts > 1:
                # The reply to an earlier try was lost, and that try may have erased it. It is gone, as asked.
                return DeleteReceipt(responses=0, items=0)
            raise
        return receipt_value(reply.receipt)

    def delete_conversation(
        self, conversation_id: str, *, scope: Scope | None = None, timeout: float | None = None
    ) -> DeleteReceipt:
        """Erase all responses of a conversation. Safe to repeat; an unknown conversation is an empty receipt.

        Args:
            conversation_id: the conversation.
            scope: whose conversation it is. None: the client's scope.
            timeout: seconds that the call may take in all. None: the client's timeout.
        """
        request = pb.DeleteConversationRequest(
            scope=self._scope_message(scope), conversation_id=conversation_id
        )
        reply = self._calls.unary(DELETE_CONVERSATION, request, self._deadline(timeout))
        return receipt_value(reply.receipt)

    def delete_user_data(self, *, scope: Scope | None = None, timeout: float | None = None) -> DeleteReceipt:
        """Erase everything of a scope: all conversations and chains of one user, or, without a user, of the
        anonymous partition. Safe to repeat.

        Args:
            scope: whose data goes. None: that of the client's scope.
            timeout: seconds that the call may take in all. None: the client's timeout.
        """
        request = pb.DeleteUserDataRequest(scope=self._scope_message(scope))
        reply = self._calls.unary(DELETE_USER_DATA, request, self._deadline(timeout))
        return receipt_value(reply.receipt)

    def list_input_items(
        self,
        response_id: str,
        *,
        order: ListOrder | str = ListOrder.DESC,
        after: str = "",
        before: str = "",
        include_inherited: bool = False,
        page_size: int = 100,
        scope: Scope | None = None,
        timeout: float | None = None,
    ) -> Iterator[Item]:
        """Iterate over the input items of a response, failed ones included. Pages are fetched as they are
        needed.

        Args:
            response_id: the response.
            order: newest first, or `ListOrder.ASC` (`"asc"`).
            after: an item's id: only what comes after it in this order. An id that is not there is ignored.
            before: an item's id: only what comes before it in this order.
            include_inherited: put the history that the response was given in front of its own input.
            page_size: how many items are fetched at once, at most 100.
            scope: whose response it is. None: the client's scope.
            timeout: seconds that fetching a page may take. None: the client's timeout.

        Raises:
            ResponseNotFoundError: the response is unknown or deleted.
            HistoryChangedError: with `include_inherited`, the history changed on the way. What was handed out
                cannot be taken back: begin again.
        """
        request = pb.ListInputItemsRequest(
            scope=self._scope_message(scope),
            response_id=response_id,
            order=enum_name(ListOrder, order),
            after=after,
            before=before,
            include_inherited=include_inherited,
            page_size=page_size,
        )
        while True:
            page = self._calls.unary(LIST_INPUT_ITEMS, request, self._deadline(timeout))
            for item in page.items:
                yield item_value(item)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def batch_get_items(
        self,
        item_ids: Iterable[str],
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
        scope: Scope | None = None,
        timeout: float | None = None,
    ) -> list[Item | None]:
        """Return items by their ids: one for each id, in that order, None where none is stored.

        Args:
            item_ids: the ids, at most 1,000.
            conversation_id: the conversation whose history decides where several items have one id.
            previous_response_id: the response whose chain decides, instead of a conversation.
            scope: whose items they are. None: the client's scope.
            timeout: seconds that the call may take in all. None: the client's timeout.

        Raises:
            ParentNotFoundError: `previous_response_id` is unknown or deleted.
            HistoryChangedError: the answer has several pages and changed each time while it was read.
        """
        request = pb.BatchGetItemsRequest(
            scope=self._scope_message(scope),
            item_ids=item_ids,
            conversation_id=conversation_id,
            previous_response_id=previous_response_id,
        )
        if not request.item_ids:
            return []
        pages = self._calls.pages(BATCH_GET_ITEMS, request, self._deadline(timeout))
        return [item_value(found.item) if found.found else None for page in pages for found in page.items]

    def list_responses(
        self,
        *,
        conversation_id: str = "",
        previous_response_id: str = "",
        page_size: int = 100,
        scope: Scope | None = None,
        timeout: float | None = None,
    ) -> Iterator[ResponseSummary]:
        """Iterate over the turns of a line without their bodies, oldest first, without deleted ones. Pages
        are fetched as they are needed.

        Args:
            conversation_id: the conversation. An unknown one has no turns.
            previous_response_id: the newest response of a chain, instead of a conversation.
            page_size: how many turns are fetched at once, at most 100.
            scope: whose turns they are. None: the client's scope.
            timeout: seconds that fetching a page may take. None: the client's timeout.

        Raises:
            ParentNotFoundError: `previous_response_id` is unknown or deleted.
        """
        request = pb.ListResponsesRequest(
            scope=self._scope_message(scope),
            conversation_id=conversation_id,
            previous_response_id=previous_response_id,
            page_size=page_size,
        )
        while True:
            page = self._calls.unary(LIST_RESPONSES, request, self._deadline(timeout))
            for summary in page.responses:
                yield summary_value(summary)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def ping(self, *, wait: bool = False, timeout: float | None = None) -> Ping:
        """Ask the service for its health, on a connection of its own that is made for this.

        Args:
            wait: ask again until it can serve, or the time is over.
            timeout: seconds that it may take in all. None: the client's timeout.

        Raises:
            ServiceUnreachableError: nobody answered; without `wait` at once.
        """
        return self._calls.ping(self._deadline(timeout), wait=wait)

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline.after(self._timeout if timeout is None else timeout)

    def _scope_message(self, scope: Scope | None) -> response_pb2.Scope:
        return scope_message(self._scope if scope is None else scope)
