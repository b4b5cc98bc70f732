"""Logs one line per call."""

import random
import re
import time
from typing import Any, NamedTuple

import grpc
import structlog

from turnstore_service.operations.logging import call_fields
from turnstore_service.rpc.interceptors.around import Around
from turnstore_service.rpc.metadata import metadata_of

REQUEST_ID_KEY = "x-request-id"
"""Metadata in which a caller may give the call an id, and in which an error tells the one that was logged."""

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""What is taken over from callers: nothing that could break a log line or flood it."""

_QUIET = "/grpc."
"""Calls of health and reflection come every few seconds from every probe, so they are logged at debug
level."""

_log = structlog.get_logger("turnstore_service.calls")

_random = random.Random()  # noqa: S311 - ids are no secrets, and the system's source would cost a system call


class _LoggedCall(NamedTuple):
    method: str
    fields: dict[str, str]
    began: float


class CallLog(Around[_LoggedCall]):
    """Logs method, code, milliseconds, request id, and what the handler notes: namespace, response,
    conversation.
    """

    def __init__(self) -> None:
        # Bound once: binding anew for each line would cost more than writing it.
        self._log = _log.bind()

    def begin(self, method: str, context: Any) -> _LoggedCall:
        """Gives the call its id and the dictionary for its line."""
        request_id = _given_id(context) or f"{_random.getrandbits(128):032x}"
        fields = {"request_id": request_id}
        call_fields.set(fields)  # never taken back: every call has a task of its own
        return _LoggedCall(method, fields, time.perf_counter())

    def end(self, call: _LoggedCall, code: grpc.StatusCode, error: BaseException | None) -> None:
        """Writes the line; at warning level for what is the server's fault, with the error if there is
        one.
        """
        level = self._log.info
        if error is not None:
            level = self._log.error
        elif code in _SERVER_FAULTS:
            level = self._log.warning
        elif call.method.startswith(_QUIET):
            level = self._log.debug
        level(
            "call",
            method=call.method,
            code=code.name,
            ms=round((time.perf_counter() - call.began) * 1000, 2),
            **call.fields,
            **({} if error is None else {"exc_info": error}),
        )


_SERVER_FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)


def _given_id(context: Any) -> str | None:
    for key, value in metadata_of(context):
        if key == REQUEST_ID_KEY:
            return value if isinstance(value, str) and _SANE_ID.fullmatch(value) else None
    return None
