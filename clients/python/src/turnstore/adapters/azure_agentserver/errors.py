"""From the client's exceptions to those that the host understands."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from azure.ai.agentserver.core.platform_headers import PLATFORM_ERROR_TAG
from azure.ai.agentserver.responses import FoundryApiError, FoundryBadRequestError, FoundryStorageError
from azure.ai.agentserver.responses.store import ResponseAlreadyExistsError

from turnstore.errors import (
    InvalidArgumentError,
    ResponseExistsError,
    ResponseNotFoundError,
    TurnstoreError,
)

_log = logging.getLogger("turnstore.adapters.azure_agentserver")


@contextmanager
def host_errors(response_id: str = "") -> Iterator[None]:
    """Raise what the host knows in place of what the client raises.

    Args:
        response_id: the response that the calls inside are about.

    Raises:
        KeyError: the response does not exist, or was deleted.
        ResponseAlreadyExistsError: it exists already.
        FoundryBadRequestError: the service does not take the request. Tagged as a platform error.
        FoundryApiError: anything else. Tagged as a platform error.
    """
    try:
        yield
    except ResponseNotFoundError as error:
        raise not_found(response_id) from error
    except ResponseExistsError as error:
        raise ResponseAlreadyExistsError(response_id) from error
    except InvalidArgumentError as error:
        raise _tagged(FoundryBadRequestError(_message(error))) from error
    except TurnstoreError as error:
        # The host logs some failures without their cause, which is what an operator needs.
        _log.error("%s: %s", type(error).__name__, error)
        raise _tagged(FoundryApiError(_message(error))) from error


def not_found(response_id: str) -> KeyError:
    """Return the exception for a response that is not there."""
    return KeyError(f"response '{response_id}' not found")


def _message(error: TurnstoreError) -> str:
    """Return what may leave the host: it puts the text into a header, which has to be one line of ASCII.

    The service's own words name no host; what the connection says does, and stays in the log.
    """
    return ascii(error.message)[1:-1] if error.reason else f"turnstore did not answer ({error.code.name})"


def _tagged(error: FoundryStorageError) -> FoundryStorageError:
    setattr(error, PLATFORM_ERROR_TAG, True)
    return error
