"""What a write does to a response that exists: the contract's order of checks, free of I/O."""

from dataclasses import dataclass

from turnstore_service.replay.values import TERMINAL, Status
from turnstore_service.storage.errors import (
    LinkChangedError,
    ResponseExistsError,
    ResponseFinishedError,
    ResponseNotFoundError,
    RevisionMismatchError,
)
from turnstore_service.storage.values import Write


@dataclass(frozen=True, slots=True)
class Existing:
    """What the checks look at of a stored response."""

    status: Status
    revision: int
    conversation_id: str
    previous_response_id: str
    excluded: bool
    deleted: bool
    request_ids: frozenset[bytes]
    """Those of the creation and of the last write."""
    same_content: bool
    """Status, output, payload and error are those of the write."""
    same_input: bool
    """The write leaves the input as stored, or gives the same."""


def changes(existing: Existing | None, write: Write) -> bool:
    """Whether the write is to be carried out; False: it is a success that changes nothing.

    For an unknown response True means a create. Raises, in the contract's order, the error that applies.
    """
    if existing is None:
        if write.expected_revision:
            raise RevisionMismatchError(write.response_id, write.expected_revision, 0)
        return True
    if existing.deleted:
        # A create that is repeated after its response was deleted must not bring it back.
        repeated = bool(write.request_id) and write.request_id in existing.request_ids
        if write.expected_revision != 0 or repeated:
            raise ResponseNotFoundError(write.response_id)
        return True
    if write.request_id and write.request_id in existing.request_ids:
        return False
    if write.expected_revision == 0:
        raise ResponseExistsError(write.response_id, existing.revision)
    if write.conversation_id and write.conversation_id != existing.conversation_id:
        raise LinkChangedError(write.response_id, "conversation_id")
    if write.previous_response_id and write.previous_response_id != existing.previous_response_id:
        raise LinkChangedError(write.response_id, "previous_response_id")
    same_exclusion = write.excluded is None or write.excluded == existing.excluded
    if existing.same_content and existing.same_input and same_exclusion:
        return False
    if write.expected_revision is not None:
        if write.expected_revision != existing.revision:
            raise RevisionMismatchError(write.response_id, write.expected_revision, existing.revision)
    elif existing.status in TERMINAL:
        raise ResponseFinishedError(write.response_id, existing.status, write.status)
    return True
