"""What a store raises. One module of the service (`rpc/errors.py`) turns these into gRPC statuses."""

from collections.abc import Sequence

from turnstore_service.replay.values import Status


class StoreError(Exception):
    """Base of everything that a store raises on purpose."""


class ResponseExistsError(StoreError):
    """A create met a response of that id."""

    def __init__(self, response_id: str, revision: int) -> None:
        super().__init__(response_id)
        self.response_id = response_id
        self.revision = revision


class RevisionMismatchError(StoreError):
    """The response is not at the revision that the caller named. `actual` 0: it does not exist."""

    def __init__(self, response_id: str, expected: int, actual: int) -> None:
        super().__init__(response_id)
        self.response_id = response_id
        self.expected = expected
        self.actual = actual


class ResponseFinishedError(StoreError):
    """A blind write would have changed a response whose status is final."""

    def __init__(self, response_id: str, stored: Status, requested: Status) -> None:
        super().__init__(response_id)
        self.response_id = response_id
        self.stored = stored
        self.requested = requested


class LinkChangedError(StoreError):
    """The write names another conversation or parent than the stored one."""

    def __init__(self, response_id: str, field: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id
        self.field = field


class DuplicateItemError(StoreError):
    """Input items already stand in the replayable history, put there by another response."""

    def __init__(self, item_ids: Sequence[str]) -> None:
        super().__init__(item_ids[0])
        self.item_ids = tuple(item_ids)


class ResponseNotFoundError(StoreError):
    """No such response in the scope, or it was deleted."""

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id


class ParentNotFoundError(StoreError):
    """The response named as previous one does not exist in the scope, or was deleted."""

    def __init__(self, previous_response_id: str) -> None:
        super().__init__(previous_response_id)
        self.previous_response_id = previous_response_id


class ResponseTooLargeError(StoreError):
    """What has to stay in one document (item ids, types, snapshot) does not fit into one."""

    def __init__(self, response_id: str, limit_bytes: int) -> None:
        super().__init__(response_id)
        self.response_id = response_id
        self.limit_bytes = limit_bytes


class DataMissingError(StoreError):
    """Something that the stored documents refer to is not there."""

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id


class ChangedError(StoreError):
    """Something changed between two reads that have to agree."""


class StoreUnavailableError(StoreError):
    """The database could not answer; of a write it is unknown whether it was done."""


class StoreDeadlineError(StoreError):
    """The caller's deadline passed inside a database call; of a write it is unknown whether it was done."""


class StoreBrokenError(StoreError):
    """The database refused a command that it should take: a defect, or a deployment that is not as it should be."""
