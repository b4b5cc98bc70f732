"""Errors to gRPC statuses: the one place that knows codes and reasons.

Each status carries a `google.rpc.ErrorInfo` (domain `turnstore`, reason from the proto's ErrorReason), for an
invalid argument a `BadRequest`, and where a retry can help a `RetryInfo` (AIP-193).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import grpc
import orjson
from google.rpc import code_pb2, error_details_pb2, status_pb2

from turnstore_service.storage import errors as store

DOMAIN = "turnstore"
_METADATA_BYTES = 2048
"""Room for ids in an error. gRPC clients take 8 KiB of trailing metadata by default, in which the message stands
twice (once percent-encoded) and the details in base64."""
_SHOWN_CHARACTERS = 300
"""Longest value of a caller's that an error repeats."""
_RETRY_SECONDS = {grpc.StatusCode.UNAVAILABLE: 0.25, grpc.StatusCode.ABORTED: 0.05}
"""When to try again: an election takes seconds, another writer milliseconds."""

STATUS_DETAILS = "grpc-status-details-bin"


@dataclass
class ApiError(Exception):
    """An answer that is an error."""

    code: grpc.StatusCode
    reason: str
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    violations: tuple[tuple[str, str], ...] = ()
    retry_seconds: float | None = None

    def details(self) -> bytes:
        """The status as it goes into the trailing metadata."""
        status = status_pb2.Status(code=_number(self.code), message=self.message)
        status.details.add().Pack(
            error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata)
        )
        if self.violations:
            bad = error_details_pb2.BadRequest()
            for name, description in self.violations:
                bad.field_violations.add(field=name, description=description)
            status.details.add().Pack(bad)
        seconds = _RETRY_SECONDS.get(self.code) if self.retry_seconds is None else self.retry_seconds
        if seconds is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(int(seconds * 1_000_000_000))
            status.details.add().Pack(retry)
        return bytes(status.SerializeToString())


def _number(code: grpc.StatusCode) -> int:
    return int(getattr(code_pb2, code.name))


def shown(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    """A caller's value, shortened to what an error may repeat."""
    return text if len(text) <= characters else f"{text[:characters]}… ({len(text)} characters)"


def invalid(name: str, problem: str) -> ApiError:
    """A field that cannot be taken; `problem` continues a sentence that begins with the field's name."""
    return ApiError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        f"{name} {problem}",
        {"field": name},
        ((name, problem),),
    )


def unimplemented(name: str) -> ApiError:
    """An RPC or a field of the contract that this version does not have."""
    return ApiError(
        grpc.StatusCode.UNIMPLEMENTED,
        "UNSPECIFIED",
        f"{name} is not implemented by this version of the service",
        {"name": name},
    )


def too_large(limit_bytes: int, size_bytes: int) -> ApiError:
    """A request above the limit."""
    return ApiError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "REQUEST_TOO_LARGE",
        f"the request has {size_bytes} bytes; the limit is {limit_bytes}: store large turns in smaller items or"
        " raise TURNSTORE_MAX_REQUEST_BYTES",
        {"limit_bytes": str(limit_bytes), "size_bytes": str(size_bytes)},
    )


def too_many_calls(retry_seconds: float, limit: int, of: str) -> ApiError:
    """A call beyond those that are taken at one time; it may come back after so many seconds. `of`: which limit."""
    return ApiError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "UNSPECIFIED",
        f"there are {limit} calls already {of}, and no more are taken at one time: come back after the time that the"
        " retry info names",
        {"limit_calls": str(limit)},
        retry_seconds=retry_seconds,
    )


def waited_too_long() -> ApiError:
    """A call whose deadline passed before its turn had come. Nothing was done."""
    return ApiError(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "UNSPECIFIED",
        "the deadline passed while the call waited for others to end; nothing was done",
    )


def unauthenticated(problem: str) -> ApiError:
    """No credential, or one that is not accepted. The words are for whoever sent it: never a part of it."""
    return ApiError(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID", problem)


def credentials_unavailable() -> ApiError:
    """The keys that credentials are checked with are not there yet."""
    return ApiError(
        grpc.StatusCode.UNAVAILABLE,
        "UNSPECIFIED",
        "credentials cannot be checked now, because the keys for it have not been fetched yet: try again",
        retry_seconds=1.0,
    )


def namespace_denied(namespace: str) -> ApiError:
    """Another namespace than the credential's. Whether there is anything in it is not told."""
    return ApiError(
        grpc.StatusCode.PERMISSION_DENIED,
        "NAMESPACE_DENIED",
        f"the credential is not for namespace {shown(namespace)}: leave the namespace empty for its own",
        {"namespace": namespace},
    )


def right_denied(namespace: str, missing: Iterable[str]) -> ApiError:
    """The credential's own namespace, in which it may not do this."""
    rights = ", ".join(missing)
    return ApiError(
        grpc.StatusCode.PERMISSION_DENIED,
        "NAMESPACE_DENIED",
        f"the credential does not have the right for this in namespace {shown(namespace)}; it lacks: {rights}",
        {"namespace": namespace, "missing_rights": rights},
    )


def history_changed() -> ApiError:
    """A page of something that is no longer what the first page was of."""
    return ApiError(
        grpc.StatusCode.ABORTED,
        "HISTORY_CHANGED",
        "what was being read has changed since its first page: begin again without a page token",
    )


def internal(request_id: str) -> ApiError:
    """A defect. The cause is in the log under the request's id, and nowhere else."""
    return ApiError(
        grpc.StatusCode.INTERNAL,
        "INTERNAL_ERROR",
        "the service failed to handle the request; its log has the cause under the request id",
        {"request_id": request_id},
    )


def of(error: store.StoreError, request_id: str) -> ApiError:
    """The answer for something that the store raised."""
    match error:
        case store.ResponseNotFoundError():
            return ApiError(
                grpc.StatusCode.NOT_FOUND,
                "RESPONSE_NOT_FOUND",
                f"response {shown(error.response_id)} does not exist, or was deleted",
                {"response_id": error.response_id},
            )
        case store.ParentNotFoundError():
            return ApiError(
                grpc.StatusCode.NOT_FOUND,
                "PARENT_NOT_FOUND",
                f"previous response {shown(error.previous_response_id)} does not exist, or was deleted: store it"
                " first, or hand over its history as inherited_item_ids",
                {"previous_response_id": error.previous_response_id},
            )
        case store.DuplicateItemError():
            return _duplicate(error)
        case store.ResponseExistsError():
            return ApiError(
                grpc.StatusCode.ALREADY_EXISTS,
                "RESPONSE_EXISTS",
                f"response {shown(error.response_id)} exists already, at revision {error.revision}",
                {"response_id": error.response_id, "revision": str(error.revision)},
            )
        case store.RevisionMismatchError():
            return ApiError(
                grpc.StatusCode.ABORTED,
                "REVISION_MISMATCH",
                f"response {shown(error.response_id)} is at revision {error.actual}, not {error.expected}: read it"
                " again and decide anew",
                {
                    "response_id": error.response_id,
                    "expected": str(error.expected),
                    "actual": str(error.actual),
                },
            )
        case store.ResponseFinishedError():
            return ApiError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "RESPONSE_FINISHED",
                f"response {shown(error.response_id)} is {error.stored.name}, which is final: a repair has to name"
                " the revision that it changes (expected_revision)",
                {
                    "response_id": error.response_id,
                    "stored_status": error.stored.name,
                    "requested_status": error.requested.name,
                },
            )
        case store.LinkChangedError():
            return ApiError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "LINK_CHANGED",
                f"response {shown(error.response_id)} was stored with another {error.field}, which cannot change:"
                " leave it empty",
                {"response_id": error.response_id, "field": error.field},
            )
        case store.ResponseTooLargeError():
            return invalid(
                "response.input_items",
                "and the output items have ids and types that do not fit into one stored document"
                f" ({error.limit_bytes} bytes): spread them over several responses",
            )
        case store.StoreDeadlineError():
            return ApiError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "STORE_UNAVAILABLE",
                "the deadline passed before the database had answered; a write may have been done: repeat it with"
                " the same request_id",
            )
        case store.StoreUnavailableError():
            return ApiError(
                grpc.StatusCode.UNAVAILABLE,
                "STORE_UNAVAILABLE",
                "the database could not answer; a write may have been done: repeat it with the same request_id",
            )
        case store.DataMissingError():
            return ApiError(
                grpc.StatusCode.DATA_LOSS,
                "DATA_MISSING",
                "stored data that should be there is not: restore it from a backup",
                {"response_id": error.response_id},
            )
        case store.ChangedError():
            return history_changed()
    return internal(request_id)


def _duplicate(error: store.DuplicateItemError) -> ApiError:
    named: list[str] = []
    room = _METADATA_BYTES - 2
    for item_id in error.item_ids:
        room -= len(orjson.dumps(item_id)) + 1
        if room < 0:
            break
        named.append(item_id)
    return ApiError(
        grpc.StatusCode.ALREADY_EXISTS,
        "DUPLICATE_ITEM",
        f"Duplicate item found with id {error.item_ids[0]}. Remove duplicate items from your input and try again.",
        {"item_ids": orjson.dumps(named).decode(), "item_count": str(len(error.item_ids))},
    )
