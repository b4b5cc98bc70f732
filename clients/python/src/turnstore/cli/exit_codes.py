"""What the command's exit code tells a script."""

from __future__ import annotations

from enum import IntEnum

from turnstore.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    DeadlineError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    TurnstoreError,
    UnavailableError,
)


class ExitCode(IntEnum):
    """The exit codes of `turnstore`."""

    OK = 0
    """Done."""

    FAILED = 1
    """Anything that is none of the others: a fault of the service, missing data, a call it does not have."""

    USAGE = 2
    """The command line, a file or a setting is wrong. Nothing was sent."""

    NOT_FOUND = 3
    """What was named does not exist in the scope, or was deleted."""

    CONFLICT = 4
    """It exists already, or does not fit what is stored: revision, final status, duplicate items, links."""

    INVALID = 5
    """The service refused the request as malformed."""

    DENIED = 6
    """No credential, or none that may do this."""

    UNAVAILABLE = 7
    """No service or no database answered in time, or the service takes no more just now. Try again later."""


_CODES: tuple[tuple[type[TurnstoreError], ExitCode], ...] = (
    (NotFoundError, ExitCode.NOT_FOUND),
    (AlreadyExistsError, ExitCode.CONFLICT),
    (ConflictError, ExitCode.CONFLICT),
    (InvalidArgumentError, ExitCode.INVALID),
    (AccessError, ExitCode.DENIED),
    (UnavailableError, ExitCode.UNAVAILABLE),
    (DeadlineError, ExitCode.UNAVAILABLE),
    (ResourceExhaustedError, ExitCode.UNAVAILABLE),
)


def exit_code(error: TurnstoreError) -> ExitCode:
    """Return the exit code for what a call ended in."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED
