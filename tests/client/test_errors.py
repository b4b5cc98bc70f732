"""From a status to an exception."""

import pickle

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.client.scripted_service import Refusal
from turnstore import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    ConversationLockedError,
    CredentialInvalidError,
    DataMissingError,
    DeadlineError,
    DuplicateItemError,
    FieldViolation,
    HistoryChangedError,
    InternalError,
    InvalidArgumentError,
    InvalidFieldError,
    LeaseLostError,
    LinkChangedError,
    NamespaceDeniedError,
    NotBuiltError,
    NotFoundError,
    ParentNotFoundError,
    RequestTooLargeError,
    ResourceExhaustedError,
    ResponseExistsError,
    ResponseFinishedError,
    ResponseNotFoundError,
    ResponseStatus,
    RevisionMismatchError,
    ServiceUnreachableError,
    StoreUnavailableError,
    TurnstoreError,
    UnavailableError,
)
from turnstore.errors import error_from_status
from turnstore.v1 import errors_pb2

Code = grpc.StatusCode

# Reason, code, metadata, exception, and what its attributes say.
REASONS = [
    (
        "RESPONSE_EXISTS",
        Code.ALREADY_EXISTS,
        {"response_id": "r", "revision": "4"},
        ResponseExistsError,
        {"response_id": "r", "revision": 4},
    ),
    (
        "REVISION_MISMATCH",
        Code.ABORTED,
        {"response_id": "r", "expected": "2", "actual": "3"},
        RevisionMismatchError,
        {"response_id": "r", "expected": 2, "actual": 3},
    ),
    (
        "RESPONSE_FINISHED",
        Code.FAILED_PRECONDITION,
        {"response_id": "r", "stored_status": "FAILED", "requested_status": "IN_PROGRESS"},
        ResponseFinishedError,
        {
            "response_id": "r",
            "stored_status": ResponseStatus.FAILED,
            "requested_status": ResponseStatus.IN_PROGRESS,
        },
    ),
    (
        "LINK_CHANGED",
        Code.FAILED_PRECONDITION,
        {"response_id": "r", "field": "conversation_id"},
        LinkChangedError,
        {"response_id": "r", "field": "conversation_id"},
    ),
    (
        "DUPLICATE_ITEM",
        Code.ALREADY_EXISTS,
        {"item_ids": '["a","ü"]', "item_count": "7"},
        DuplicateItemError,
        {"item_ids": ("a", "ü"), "item_count": 7},
    ),
    ("RESPONSE_NOT_FOUND", Code.NOT_FOUND, {"response_id": "r"}, ResponseNotFoundError, {"response_id": "r"}),
    (
        "PARENT_NOT_FOUND",
        Code.NOT_FOUND,
        {"previous_response_id": "p"},
        ParentNotFoundError,
        {"previous_response_id": "p"},
    ),
    (
        "INVALID_FIELD",
        Code.INVALID_ARGUMENT,
        {"field": "response.input_items[3].json"},
        InvalidFieldError,
        {"field": "response.input_items[3].json"},
    ),
    (
        "REQUEST_TOO_LARGE",
        Code.RESOURCE_EXHAUSTED,
        {"limit_bytes": "10", "size_bytes": "11"},
        RequestTooLargeError,
        {"limit_bytes": 10, "size_bytes": 11},
    ),
    (
        "NAMESPACE_DENIED",
        Code.PERMISSION_DENIED,
        {"namespace": "n"},
        NamespaceDeniedError,
        {"namespace": "n"},
    ),
    ("CREDENTIAL_INVALID", Code.UNAUTHENTICATED, {}, CredentialInvalidError, {}),
    ("STORE_UNAVAILABLE", Code.UNAVAILABLE, {}, StoreUnavailableError, {}),
    ("DATA_MISSING", Code.DATA_LOSS, {"response_id": "r"}, DataMissingError, {"response_id": "r"}),
    ("INTERNAL_ERROR", Code.INTERNAL, {"request_id": "q"}, InternalError, {}),
    (
        "CONVERSATION_LOCKED",
        Code.ABORTED,
        {"holder": "h", "response_id": "r", "expire_time": "2026-01-02T03:04:05Z"},
        ConversationLockedError,
        {"holder": "h", "response_id": "r", "expire_time": "2026-01-02T03:04:05Z"},
    ),
    ("LEASE_LOST", Code.FAILED_PRECONDITION, {"response_id": "r"}, LeaseLostError, {"response_id": "r"}),
    ("HISTORY_CHANGED", Code.ABORTED, {}, HistoryChangedError, {}),
]

CODES = [
    (Code.INVALID_ARGUMENT, InvalidArgumentError),
    (Code.NOT_FOUND, NotFoundError),
    (Code.ALREADY_EXISTS, AlreadyExistsError),
    (Code.ABORTED, ConflictError),
    (Code.FAILED_PRECONDITION, ConflictError),
    (Code.UNAUTHENTICATED, AccessError),
    (Code.PERMISSION_DENIED, AccessError),
    (Code.RESOURCE_EXHAUSTED, ResourceExhaustedError),
    (Code.UNAVAILABLE, ServiceUnreachableError),
    (Code.DEADLINE_EXCEEDED, DeadlineError),
    (Code.DATA_LOSS, DataMissingError),
    (Code.INTERNAL, InternalError),
    (Code.UNIMPLEMENTED, NotBuiltError),
    (Code.UNKNOWN, TurnstoreError),
    (Code.CANCELLED, ServiceUnreachableError),
]


def error_of(refusal: Refusal, *more: tuple[str, str | bytes]) -> TurnstoreError:
    trailers = (("grpc-status-details-bin", refusal.details()), *more)
    return error_from_status(refusal.code, refusal.message, trailers, "call-1")


@pytest.mark.parametrize(
    ("reason", "code", "metadata", "kind", "attributes"), REASONS, ids=[row[0] for row in REASONS]
)
def test_each_reason_has_its_exception(
    reason: str,
    code: grpc.StatusCode,
    metadata: dict[str, str],
    kind: type[TurnstoreError],
    attributes: dict[str, object],
) -> None:
    error = error_of(Refusal(code, reason, metadata))
    assert type(error) is kind
    assert (error.code, error.reason, error.metadata) == (code, reason, metadata)
    assert {name: getattr(error, name) for name in attributes} == attributes


def test_no_reason_of_the_contract_is_forgotten() -> None:
    names = {name.removeprefix("ERROR_REASON_") for name, _ in errors_pb2.ErrorReason.items()}
    assert {row[0] for row in REASONS} == names - {"UNSPECIFIED"}


@pytest.mark.parametrize(("code", "kind"), CODES, ids=[row[0].name for row in CODES])
def test_status_without_a_reason_is_told_by_its_code(code: grpc.StatusCode, kind: type) -> None:
    assert type(error_of(Refusal(code))) is kind


def test_reason_of_another_domain_is_not_read() -> None:
    error = error_of(Refusal(Code.ABORTED, "REVISION_MISMATCH", {"actual": "3"}, domain="other"))
    assert (type(error), error.reason, error.metadata) == (ConflictError, "", {})


def test_reason_of_a_newer_service_is_told_by_its_code() -> None:
    error = error_of(Refusal(Code.ABORTED, "SOMETHING_NEW", {"a": "b"}))
    assert (type(error), error.reason, error.metadata) == (ConflictError, "SOMETHING_NEW", {"a": "b"})


def test_unavailable_with_an_unknown_reason_was_said_by_the_service() -> None:
    assert type(error_of(Refusal(Code.UNAVAILABLE, "SOMETHING_NEW"))) is UnavailableError


def test_request_that_the_transport_refuses_is_too_large() -> None:
    message = "SERVER: Received message larger than max (83886447 vs. 68157440)"
    assert type(error_from_status(Code.RESOURCE_EXHAUSTED, message, ())) is RequestTooLargeError


def test_deadline_is_a_deadline_whatever_took_too_long() -> None:
    error = error_of(Refusal(Code.DEADLINE_EXCEEDED, "STORE_UNAVAILABLE"))
    assert isinstance(error, DeadlineError)
    assert isinstance(error, TimeoutError)


def test_retry_delay_is_told_in_seconds() -> None:
    assert error_of(Refusal(Code.UNAVAILABLE, "STORE_UNAVAILABLE", retry_seconds=0.25)).retry_delay == 0.25


def test_without_retry_info_there_is_no_delay() -> None:
    assert error_of(Refusal(Code.UNAVAILABLE, "STORE_UNAVAILABLE")).retry_delay is None


def test_violations_are_told_one_by_one() -> None:
    status = status_pb2.Status(code=3)
    bad_request = error_details_pb2.BadRequest()
    bad_request.field_violations.add(field="response.id", description="is empty")
    bad_request.field_violations.add(field="limit", description="is negative")
    status.details.add().Pack(bad_request)
    trailers = [("grpc-status-details-bin", status.SerializeToString())]
    error = error_from_status(Code.INVALID_ARGUMENT, "no", trailers)
    assert isinstance(error, InvalidArgumentError)
    assert error.violations == (
        FieldViolation("response.id", "is empty"),
        FieldViolation("limit", "is negative"),
    )


def test_request_id_is_the_one_that_the_service_logged() -> None:
    assert error_of(Refusal(Code.INTERNAL), ("x-request-id", "logged")).request_id == "logged"


def test_request_id_is_the_one_that_was_sent_when_nothing_came_back() -> None:
    assert error_of(Refusal(Code.INTERNAL)).request_id == "call-1"


@pytest.mark.parametrize("details", [b"\xff\xff\xff", "text"])
def test_details_that_cannot_be_read_leave_code_and_message(details: str | bytes) -> None:
    error = error_from_status(Code.NOT_FOUND, "gone", [("grpc-status-details-bin", details)])
    assert (type(error), str(error), error.reason) == (NotFoundError, "gone", "")


@pytest.mark.parametrize("value", ["", "x", "1.5", "9" * 30, "[]", "{"])
def test_metadata_that_makes_no_sense_is_none_of_the_values(value: str) -> None:
    revision = error_of(Refusal(Code.ALREADY_EXISTS, "RESPONSE_EXISTS", {"revision": value}))
    duplicates = error_of(Refusal(Code.ALREADY_EXISTS, "DUPLICATE_ITEM", {"item_ids": value}))
    status = error_of(Refusal(Code.FAILED_PRECONDITION, "RESPONSE_FINISHED", {"stored_status": value}))
    assert isinstance(revision, ResponseExistsError)
    assert isinstance(duplicates, DuplicateItemError)
    assert isinstance(status, ResponseFinishedError)
    assert (revision.revision, duplicates.item_ids, duplicates.item_count) == (None, (), 0)
    assert status.stored_status is ResponseStatus.UNSPECIFIED


def test_message_is_what_a_person_reads() -> None:
    assert str(error_of(Refusal(Code.NOT_FOUND, message="it is gone"))) == "it is gone"


def test_message_that_is_empty_is_the_code() -> None:
    assert str(error_from_status(Code.NOT_FOUND, "")) == "NOT_FOUND"


def test_exception_survives_pickling() -> None:
    error = error_of(Refusal(Code.ALREADY_EXISTS, "RESPONSE_EXISTS", {"revision": "4"}))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.revision, copy.code) == (type(error), str(error), 4, error.code)
