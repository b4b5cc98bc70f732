"""Structured logs on standard error, one line per event, as JSON or for people."""

import logging
import sys
import threading
from collections.abc import MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson
import structlog

call_fields: ContextVar[dict[str, str] | None] = ContextVar("call_fields", default=None)
"""What the log line of the present call will say: the call log makes the dictionary, with `request_id` in it,
and whoever handles the call adds `namespace`, `response_id`, `conversation_id` (see `note_call`), and
`trace_id` and `span_id` where calls are traced. Never contents or credentials. None outside of calls."""

_MOST_CHARACTERS = 256
"""Of a noted value: as many as an id may have."""
_ON_EVERY_LINE = ("request_id", "trace_id", "span_id")
"""What of it stands on all lines that are logged within the call."""

_EventDict = MutableMapping[str, Any]


def note_call(**fields: str) -> None:
    """Adds to the log line of the present call; empty values are left out. Does nothing outside of calls.

    Values come from callers and may not have been checked: what is too long or cannot be shown is told in part.
    """
    line = call_fields.get()
    if line is not None:
        line.update({name: _shown(value) for name, value in fields.items() if value})


def _shown(value: str) -> str:
    return value if len(value) <= _MOST_CHARACTERS and value.isprintable() else repr(value[:_MOST_CHARACTERS])


def request_id() -> str:
    """The id of the present call, under which its log lines are found; empty outside of calls."""
    line = call_fields.get()
    return "" if line is None else line["request_id"]


def configure_logging(
    level: Literal["debug", "info", "warning", "error"],
    form: Literal["auto", "json", "console"],
    stream: TextIO | None = None,
    worker: int | None = None,
) -> None:
    """Sets up the process's logs, those of libraries included.

    Args:
        level: The least severity that is logged.
        form: The look of a line; auto: for people on a terminal, else JSON.
        stream: Where to; standard error unless given.
        worker: Which of several workers the process is; its lines say so.
    """
    stream = sys.stderr if stream is None else stream
    if form == "auto":
        form = "console" if stream.isatty() else "json"
    shared: list[structlog.typing.Processor] = [_add_call_ids]
    if worker is not None:
        shared.append(_add_worker(worker))
    renderer: structlog.typing.Processor
    if form == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = _json_line
    else:
        shared.append(structlog.processors.add_log_level)
        shared.append(structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"))
        renderer = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            # The renderer's own choice shows local variables, and with them what people said to their agents.
            exception_formatter=structlog.dev.plain_traceback,
        )
    least = getattr(logging, level.upper())
    writer = _LineWriter(stream)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=lambda *_: writer,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(least)
    # At debug level the driver logs its commands, and with them what people said to their agents.
    logging.getLogger("pymongo").setLevel(max(least, logging.INFO))
    # The library logs whole headers that are no UTF-8, and with them credentials.
    logging.getLogger("grpc._cython.cygrpc").addFilter(_tells_no_header)


def _tells_no_header(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Invalid encoding")


class _LineWriter:
    """Writes lines, and lets calls go on when nobody reads them any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a closed pipe, a closed stream
                return

    debug = info = warning = error = critical = exception = msg


_LEVELS = {"exception": "error", "warn": "warning"}
"""Methods of loggers that are not named as their level is."""
_JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


def _json_line(_logger: Any, method: str, event: _EventDict) -> str:
    """The last step of a line: with its time and level, in one go, since every call writes a line."""
    line = {"time": datetime.now(UTC), "level": _LEVELS.get(method, method), "event": event.pop("event", "")}
    line.update(event)
    return orjson.dumps(line, default=repr, option=_JSON_OPTIONS).decode()


def _add_worker(number: int) -> structlog.typing.Processor:
    def add(_logger: Any, _method: str, event: _EventDict) -> _EventDict:
        event.setdefault("worker", number)
        return event

    return add


def _add_call_ids(_logger: Any, _method: str, event: _EventDict) -> _EventDict:
    line = call_fields.get()
    if line is not None and "request_id" not in event:  # the call's own line has them all
        for name in _ON_EVERY_LINE:
            if name in line:
                event.setdefault(name, line[name])
    return event
