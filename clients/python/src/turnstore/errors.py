"""What a call may raise, and how an answer of the service becomes an exception."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from turnstore.response import ResponseStatus

ERROR_DOMAIN = "turnstore"
"""The domain of the service's own `google.rpc.ErrorInfo`; the reason of another domain is not read."""

_DETAILS_KEY = "grpc-status-details-bin"

REQUEST_ID_KEY = "x-request-id"
"""The metadata in which a call's id goes to the service, and comes back."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field of a request that breaks its rules."""

    field: str
    """The field's path, for example `response.input_items[3].json`."""

    description: str
    """What is wrong with it."""


class TurnstoreError(Exception):
    """Something that a call of the service ended in. Every exception of this package derives from it.

    Attributes:
        message: what was wrong and what to do, in words for people.
        code: the gRPC status code.
        reason: the service's reason (a name of `turnstore.v1.ErrorReason` without its prefix), or empty.
        metadata: the values that belong to the reason, as text.
        retry_delay: after how many seconds the service wants to be asked again, or None.
        request_id: the id under which the service's log has the call, if the call came to it.
        attempts: how many tries the call took.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_delay: float | None = None,
        request_id: str = "",
        violations: Iterable[FieldViolation] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata: Mapping[str, str] = dict(metadata or {})
        self.retry_delay = retry_delay
        self.request_id = request_id
        self.attempts = 1
        self._violations = tuple(violations)

    def __str__(self) -> str:
        return self.message

    def _text(self, key: str) -> str:
        return self.metadata.get(key, "")

    def _number(self, key: str) -> int | None:
        value = self.metadata.get(key, "")
        # The value comes from the wire: a service of another version may say anything.
        return int(value) if value.lstrip("-").isdecimal() and len(value) < 20 else None

    def _status(self, key: str) -> ResponseStatus:
        try:
            return ResponseStatus(self._text(key).lower())
        except ValueError:
            return ResponseStatus.UNSPECIFIED


class InvalidArgumentError(TurnstoreError):
    """The request is malformed (INVALID_ARGUMENT). Sending it again ends in the same way."""

    @property
    def violations(self) -> tuple[FieldViolation, ...]:
        """Each field that breaks its rules, and how."""
        return self._violations


class InvalidFieldError(InvalidArgumentError):
    """A field breaks its rules."""

    @property
    def field(self) -> str:
        """The first such field's path, for example `response.input_items[3].json`."""
        return self._text("field")


class NotFoundError(TurnstoreError):
    """What the call names does not exist in its scope, or was deleted (NOT_FOUND)."""


class ResponseNotFoundError(NotFoundError):
    """The response does not exist in the scope, or was deleted."""

    @property
    def response_id(self) -> str:
        """The response that was asked for."""
        return self._text("response_id")


class ParentNotFoundError(NotFoundError):
    """The response that the call builds on does not exist in the scope, or was deleted."""

    @property
    def previous_response_id(self) -> str:
        """The parent that was named."""
        return self._text("previous_response_id")


class AlreadyExistsError(TurnstoreError):
    """What a write would make is there already (ALREADY_EXISTS). Nothing was stored."""


class ResponseExistsError(AlreadyExistsError):
    """`expected_revision` is 0 and the response exists."""

    @property
    def response_id(self) -> str:
        """The response."""
        return self._text("response_id")

    @property
    def revision(self) -> int | None:
        """The revision that is stored."""
        return self._number("revision")


class DuplicateItemError(AlreadyExistsError):
    """Input items stand in the line's history already. Send them no second time, or store with
    `duplicate_items=DuplicateItems.KEEP_FIRST`.
    """

    @property
    def item_ids(self) -> tuple[str, ...]:
        """The ids, as many as the service names (4 KiB of them)."""
        try:
            ids = json.loads(self._text("item_ids") or "[]")
        except ValueError:
            return ()
        return tuple(item_id for item_id in ids if isinstance(item_id, str)) if isinstance(ids, list) else ()

    @property
    def item_count(self) -> int:
        """How many there are in all."""
        count = self._number("item_count")
        return len(self.item_ids) if count is None else count


class ConflictError(TurnstoreError):
    """The call does not fit what is stored, or what others do at the same time (ABORTED,
    FAILED_PRECONDITION). Nothing was stored.
    """


class RevisionMismatchError(ConflictError):
    """The response is not at `expected_revision`. Read it again and decide anew."""

    @property
    def response_id(self) -> str:
        """The response."""
        return self._text("response_id")

    @property
    def expected(self) -> int | None:
        """The revision that the write expected."""
        return self._number("expected")

    @property
    def actual(self) -> int | None:
        """The revision that is stored."""
        return self._number("actual")


class ResponseFinishedError(ConflictError):
    """The response has a final status, and the write would change it without the matching
    `expected_revision`.
    """

    @property
    def response_id(self) -> str:
        """The response."""
        return self._text("response_id")

    @property
    def stored_status(self) -> ResponseStatus:
        """The status that is stored."""
        return self._status("stored_status")

    @property
    def requested_status(self) -> ResponseStatus:
        """The status that the write would have set."""
        return self._status("requested_status")


class LinkChangedError(ConflictError):
    """The write names another conversation or parent than is stored."""

    @property
    def response_id(self) -> str:
        """The response."""
        return self._text("response_id")

    @property
    def field(self) -> str:
        """`conversation_id` or `previous_response_id`."""
        return self._text("field")


class HistoryChangedError(ConflictError):
    """What an earlier page showed has changed since, and kept changing each time the call began again."""


class ConversationLockedError(ConflictError):
    """Another leased turn runs in the conversation. Never retried by the client: it may run for long."""

    @property
    def holder(self) -> str:
        """The lease's owner."""
        return self._text("holder")

    @property
    def response_id(self) -> str:
        """The response whose turn runs."""
        return self._text("response_id")

    @property
    def expire_time(self) -> str:
        """When the lease runs out unless it is renewed, in RFC 3339."""
        return self._text("expire_time")


class LeaseLostError(ConflictError):
    """The lease of the turn is not the caller's any more. Stop working on the turn."""

    @property
    def response_id(self) -> str:
        """The response."""
        return self._text("response_id")


class AccessError(TurnstoreError):
    """The caller may not do this (UNAUTHENTICATED, PERMISSION_DENIED)."""


class CredentialInvalidError(AccessError):
    """No credential, or one that the service does not accept."""


class NamespaceDeniedError(AccessError):
    """The credential does not own the namespace."""

    @property
    def namespace(self) -> str:
        """The namespace that was asked for."""
        return self._text("namespace")


class ResourceExhaustedError(TurnstoreError):
    """The service takes no more of this, or not so much at once (RESOURCE_EXHAUSTED)."""


class RequestTooLargeError(ResourceExhaustedError):
    """The request is larger than the service takes."""

    @property
    def limit_bytes(self) -> int | None:
        """The service's limit."""
        return self._number("limit_bytes")

    @property
    def size_bytes(self) -> int | None:
        """The request's size."""
        return self._number("size_bytes")


class UnavailableError(TurnstoreError):
    """The service cannot answer now (UNAVAILABLE). Whether a write took place is not known: it is safe to
    repeat it with the same `request_id`.
    """


class ServiceUnreachableError(UnavailableError):
    """No service answered at the target: none runs there, it is not ready, or it does not take the
    connection. The message tells what the connection says.
    """


class StoreUnavailableError(UnavailableError):
    """The service answers, but its database does not."""


class DeadlineError(TurnstoreError, TimeoutError):
    """The call's deadline passed (DEADLINE_EXCEEDED). Whether a write took place is not known: it is safe to
    repeat it with the same `request_id`.
    """


class DataMissingError(TurnstoreError):
    """Stored data that should be there is not (DATA_LOSS)."""

    @property
    def response_id(self) -> str:
        """The response whose data is missing."""
        return self._text("response_id")


class InternalError(TurnstoreError):
    """A fault of the service (INTERNAL). Its log tells the cause under `request_id`."""


class NotBuiltError(TurnstoreError):
    """The service does not have this RPC or field (UNIMPLEMENTED)."""


_BY_REASON: Mapping[str, type[TurnstoreError]] = {
    "RESPONSE_EXISTS": ResponseExistsError,
    "REVISION_MISMATCH": RevisionMismatchError,
    "RESPONSE_FINISHED": ResponseFinishedError,
    "LINK_CHANGED": LinkChangedError,
    "DUPLICATE_ITEM": DuplicateItemError,
    "RESPONSE_NOT_FOUND": ResponseNotFoundError,
    "PARENT_NOT_FOUND": ParentNotFoundError,
    "INVALID_FIELD": InvalidFieldError,
    "REQUEST_TOO_LARGE": RequestTooLargeError,
    "NAMESPACE_DENIED": NamespaceDeniedError,
    "CREDENTIAL_INVALID": CredentialInvalidError,
    "STORE_UNAVAILABLE": StoreUnavailableError,
    "DATA_MISSING": DataMissingError,
    "INTERNAL_ERROR": InternalError,
    "CONVERSATION_LOCKED": ConversationLockedError,
    "LEASE_LOST": LeaseLostError,
    "HISTORY_CHANGED": HistoryChangedError,
}

# For answers without a reason: those that gRPC or a proxy gives, and those of a newer service.
_FAR_TOO_LARGE = "SERVER: Received message larger than max"
"""How the service's transport refuses a request so far beyond the limit that the service does not see it."""
_BY_CODE: Mapping[grpc.StatusCode, type[TurnstoreError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.ABORTED: ConflictError,
    grpc.StatusCode.FAILED_PRECONDITION: ConflictError,
    grpc.StatusCode.UNAUTHENTICATED: AccessError,
    grpc.StatusCode.PERMISSION_DENIED: AccessError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.DATA_LOSS: DataMissingError,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.UNIMPLEMENTED: NotBuiltError,
}


def error_from_status(
    code: grpc.StatusCode,
    message: str,
    trailers: Iterable[tuple[str, str | bytes]] = (),
    call_id: str = "",
) -> TurnstoreError:
    """Return the exception for a status: by its reason where it has one of the service's, else by its code.

    UNAVAILABLE without a reason is what the connection says, not the service. So is CANCELLED, which a call
    ends in that comes in just when a server stops; a call that the caller cancels does not come here.
    """
    trailing = {key: value for key, value in trailers if key in {_DETAILS_KEY, REQUEST_ID_KEY}}
    info, retry, bad_request = _details(trailing.get(_DETAILS_KEY))
    reason = info.reason if info.domain == ERROR_DOMAIN else ""
    metadata = dict(info.metadata) if reason else {}
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, TurnstoreError)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        # Whatever it was that took too long.
        kind = DeadlineError
    elif not reason and code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
        kind = ServiceUnreachableError
    elif not reason and message.startswith(_FAR_TOO_LARGE):
        kind = RequestTooLargeError
    logged_under = trailing.get(REQUEST_ID_KEY)
    return kind(
        message or code.name,
        code=code,
        reason=reason,
        metadata=metadata,
        retry_delay=None if retry is None else retry.retry_delay.ToTimedelta().total_seconds(),
        request_id=logged_under if isinstance(logged_under, str) else call_id,
        violations=(
            FieldViolation(violation.field, violation.description)
            for violation in bad_request.field_violations
        ),
    )


def error_from_call(error: grpc.RpcError, call_id: str) -> TurnstoreError:
    """Return the exception for the call of this id that ended in an error, of the async or the plain API."""
    # Both APIs raise objects with these methods; the base class that they share does not declare them.
    call: Any = error
    return error_from_status(call.code(), call.details() or "", call.trailing_metadata() or (), call_id)


def unreachable_error(connection: TurnstoreError, target: str, seconds: float) -> ServiceUnreachableError:
    """Return the exception for a service that did not answer: where it was looked for, and what to do.

    Args:
        connection: what the connection says.
        target: where the service was looked for.
        seconds: for how long.
    """
    details = connection.message.rstrip(".")
    if "unhealthy" in details:
        advice = (
            "A service runs there but says that it is not ready. Its log and its health tell why; most often "
            "its database is away, or its indexes are missing (`turnstore-service migrate`)."
        )
    elif "handshake" in details.lower():
        advice = (
            "TLS could not be agreed on: check the authority (tls_ca), the name that the service's certificate "
            "is for (tls_server_name), and the client's own certificate if it wants one (tls_cert, tls_key)."
        )
    elif "Socket closed" in details:
        advice = "Something listens there and closes the connection: it is about to stop, or it wants TLS."
    else:
        advice = (
            "Start one with `turnstore-service serve`, or give the client the HOST:PORT of one that runs."
        )
    return ServiceUnreachableError(
        f"No turnstore service could be reached at {target} (tried for {seconds:.1f} s). "
        f"The connection says: {details}. {advice}",
        code=grpc.StatusCode.UNAVAILABLE,
        request_id=connection.request_id,
    )


def late_error(
    failure: TurnstoreError,
    before: TurnstoreError | None,
    *,
    target: str,
    timeout: float,
    answers: bool,
) -> DeadlineError:
    """Return the exception for a call that was not answered in time.

    Args:
        failure: what the last try ended in.
        before: what the try before it ended in, if there was one.
        target: where the service is.
        timeout: seconds that the whole call might take.
        answers: whether the service answered when it was asked for its health instead.
    """
    if failure.reason:
        # The service itself says what it waited for.
        advice = f"It says: {failure.message.rstrip('.')}."
    elif answers:
        advice = "It does answer when asked for its health: give this call a longer timeout, or ask for less."
    else:
        advice = (
            "Nor did it answer when asked for its health: is the target right, is it open to this machine?"
        )
    message = f"The service at {target} did not answer within {timeout:g} s. {advice}"
    if before is not None:
        message += f" The try before the last one ended with: {before.message}"
    return DeadlineError(message, code=grpc.StatusCode.DEADLINE_EXCEEDED, request_id=failure.request_id)


def _details(
    encoded: str | bytes | None,
) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo | None, error_details_pb2.BadRequest]:
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    bad_request = error_details_pb2.BadRequest()
    has_retry = False
    if isinstance(encoded, bytes):
        try:
            status = status_pb2.Status.FromString(encoded)
            for detail in status.details:
                _unpack(detail, info)
                has_retry = _unpack(detail, retry) or has_retry
                _unpack(detail, bad_request)
        except DecodeError:
            # Bytes that are no such message say nothing. The status code and text are known all the same.
            return error_details_pb2.ErrorInfo(), None, error_details_pb2.BadRequest()
    return info, retry if has_retry else None, bad_request


def _unpack(detail: Any, message: Message) -> bool:
    return bool(detail.Is(message.DESCRIPTOR) and detail.Unpack(message))
