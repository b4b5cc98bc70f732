"""Making a call: its deadline, its tries, its pages, and what to say when there is nobody to answer."""

from __future__ import annotations

import time
import uuid
from typing import TypeVar

import grpc
from google.protobuf.wrappers_pb2 import StringValue

from turnstore.connection import Connection
from turnstore.endpoint import HISTORY_SERVICE
from turnstore.errors import (
    DeadlineError,
    HistoryChangedError,
    ServiceUnreachableError,
    TurnstoreError,
    error_from_call,
    late_error,
    unreachable_error,
)
from turnstore.health import SERVING, Ping
from turnstore.retry import MAX_RESTARTS, Deadline, backoff, delay_before_retry, jitter
from turnstore.rpcs import CHECK_HEALTH, Reply, Request, Rpc
from turnstore.v1 import history_service_pb2 as pb

PagedRequest = TypeVar(
    "PagedRequest", pb.ResolveHistoryRequest, pb.GetResponseRequest, pb.BatchGetItemsRequest
)
PagedReply = TypeVar(
    "PagedReply", pb.ResolveHistoryResponse, pb.GetResponseResponse, pb.BatchGetItemsResponse
)


class Calls:
    """Makes calls on a connection."""

    def __init__(self, connection: Connection, *, wait_for_ready: bool) -> None:
        self._connection = connection
        self._wait = wait_for_ready

    def unary(self, rpc: Rpc[Request, Reply], request: Request, deadline: Deadline) -> Reply:
        """Make a call, and make it again where that may help, until the deadline.

        Raises:
            TurnstoreError: what the call ended in.
        """
        attempt = 0
        call_id = str(uuid.uuid4())
        before: TurnstoreError | None = None
        while True:
            attempt += 1
            try:
                return self._connection.call(
                    rpc, request, call_id=call_id, timeout=deadline.for_try(), wait=self._wait
                )
            except grpc.RpcError as error:
                failure = error_from_call(error, call_id)
                if isinstance(failure, DeadlineError):
                    failure = self._late(failure, before, deadline)
                    delay = None
                else:
                    delay = delay_before_retry(failure, attempt, jitter(), wait_for_ready=self._wait)
                    if delay is not None and delay >= deadline.remaining():
                        delay = None
                    if delay is None and isinstance(failure, ServiceUnreachableError):
                        failure = self._unreachable(failure, deadline)
                failure.attempts = attempt
                if delay is None:
                    raise failure from error
                before = failure
            time.sleep(delay)

    def pages(
        self, rpc: Rpc[PagedRequest, PagedReply], request: PagedRequest, deadline: Deadline
    ) -> list[PagedReply]:
        """Make a call as often as its answer has pages. The pages are one state of what is stored: when it
        changes on the way, begin again.

        Raises:
            HistoryChangedError: it changed each time.
            TurnstoreError: what the call ended in.
        """
        restarts = 0
        while True:
            request.page_token = ""
            pages: list[PagedReply] = []
            try:
                while not pages or request.page_token:
                    page = self.unary(rpc, request, deadline)
                    pages.append(page)
                    request.page_token = page.next_page_token
                return pages
            except HistoryChangedError:
                restarts += 1
                delay = backoff(restarts, jitter())
                if restarts > MAX_RESTARTS or delay >= deadline.remaining():
                    raise
            time.sleep(delay)

    def ping(self, deadline: Deadline, *, wait: bool) -> Ping:
        """Ask an instance for its health, whatever it is; with `wait`, until it can serve.

        Raises:
            ServiceUnreachableError: no instance answered.
            TurnstoreError: what the call ended in.
        """
        attempt = 0
        call_id = str(uuid.uuid4())
        last: Ping | None = None
        with self._connection.direct_channel() as channel:
            while True:
                attempt += 1
                started = time.monotonic()
                try:
                    reply = self._connection.call(
                        CHECK_HEALTH,
                        StringValue(value=HISTORY_SERVICE),
                        call_id=call_id,
                        timeout=deadline.for_try(),
                        wait=False,
                        channel=channel,
                    )
                    ping = Ping(serving=reply.value == SERVING, seconds=time.monotonic() - started)
                    delay = backoff(attempt, jitter())
                    if ping.serving or not wait or delay >= deadline.remaining():
                        return ping
                    last = ping
                except grpc.RpcError as error:
                    failure = error_from_call(error, call_id)
                    if last is not None and isinstance(failure, DeadlineError):
                        return last  # the time is over, and what was heard last is the answer
                    delay = backoff(attempt, jitter())
                    unreachable = isinstance(failure, ServiceUnreachableError)
                    if not (unreachable and wait) or delay >= deadline.remaining():
                        if unreachable:
                            failure = self._unreachable(failure, deadline)
                        failure.attempts = attempt
                        raise failure from error
                time.sleep(delay)

    def _late(
        self, failure: TurnstoreError, before: TurnstoreError | None, deadline: Deadline
    ) -> TurnstoreError:
        """Return what to say when the deadline passed: that nobody is there, where that is the cause."""
        target = self._connection.endpoint.target
        answers = True
        try:
            self._connection.call(
                CHECK_HEALTH,
                StringValue(value=HISTORY_SERVICE),
                call_id=failure.request_id,
                timeout=deadline.remaining(),
                wait=False,
            )
        except grpc.RpcError as error:
            connection = error_from_call(error, failure.request_id)
            if isinstance(connection, ServiceUnreachableError):
                return self._unreachable(connection, deadline)
            answers = not isinstance(connection, DeadlineError)
        return late_error(failure, before, target=target, timeout=deadline.timeout, answers=answers)

    def _unreachable(self, connection: TurnstoreError, deadline: Deadline) -> ServiceUnreachableError:
        return unreachable_error(connection, self._connection.endpoint.target, deadline.elapsed())
