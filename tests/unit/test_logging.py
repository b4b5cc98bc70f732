import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from turnstore_service.operations.logging import call_fields, configure_logging, note_call, request_id


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("pymongo").setLevel(logging.NOTSET)


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_line_has_time_level_event_and_fields() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    structlog.get_logger().info("ready", listen="127.0.0.1:1")
    (line,) = _lines(stream)
    assert list(line) == ["time", "level", "event", "listen"]
    assert line["time"].endswith("Z")
    assert (line["level"], line["event"], line["listen"]) == ("info", "ready", "127.0.0.1:1")


def test_less_severe_lines_are_left_out() -> None:
    stream = io.StringIO()
    configure_logging("warning", "json", stream)
    structlog.get_logger().info("not this")
    logging.getLogger("a.library").info("nor this")
    structlog.get_logger().warning("this")
    logging.getLogger("a.library").warning("and %s", "this")
    assert [line["event"] for line in _lines(stream)] == ["this", "and this"]


def test_library_lines_look_alike_and_name_their_logger() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    logging.getLogger("a.library").error("broken")
    (line,) = _lines(stream)
    assert (line["level"], line["event"], line["logger"]) == ("error", "broken", "a.library")


def test_driver_does_not_log_its_commands_at_debug_level() -> None:
    stream = io.StringIO()
    configure_logging("debug", "json", stream)
    logging.getLogger("pymongo.command").debug("insert {what somebody said}")
    assert stream.getvalue() == ""


def test_exception_is_logged_with_its_traceback_on_one_line() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    structlog.get_logger().error("failed", exc_info=ValueError("why"))
    (line,) = _lines(stream)
    assert "ValueError: why" in line["exception"]


def test_console_form_is_for_people() -> None:
    stream = io.StringIO()
    configure_logging("info", "console", stream)
    structlog.get_logger().info("ready", listen="127.0.0.1:1")
    assert "listen=127.0.0.1:1" in stream.getvalue()


def test_auto_form_is_json_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    configure_logging("info", "auto", stream)
    structlog.get_logger().info("ready")
    assert _lines(stream)[0]["event"] == "ready"


def test_nobody_reading_stops_nothing() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    stream.close()
    structlog.get_logger().info("into the void")


def test_lines_within_a_call_carry_its_request_id() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    token = call_fields.set({"request_id": "r-1"})
    try:
        structlog.get_logger().info("within")
        assert request_id() == "r-1"
    finally:
        call_fields.reset(token)
    structlog.get_logger().info("outside")
    assert [line.get("request_id") for line in _lines(stream)] == ["r-1", None]
    assert request_id() == ""


def test_notes_are_kept_for_the_call_without_empty_ones() -> None:
    fields = {"request_id": "r-1"}
    token = call_fields.set(fields)
    try:
        note_call(namespace="n", response_id="", conversation_id="c")
    finally:
        call_fields.reset(token)
    assert fields == {"request_id": "r-1", "namespace": "n", "conversation_id": "c"}


def test_note_is_told_in_part_where_it_is_long_or_cannot_be_shown() -> None:
    fields = {"request_id": "r-1"}
    token = call_fields.set(fields)
    try:
        note_call(response_id="x" * 10_000, conversation_id="a\x1b[2J\nb", namespace="Zürich 東京")
    finally:
        call_fields.reset(token)
    assert fields["response_id"] == repr("x" * 256)
    assert fields["conversation_id"] == "'a\\x1b[2J\\nb'"
    assert fields["namespace"] == "Zürich 東京"


def test_library_does_not_log_headers() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    library = logging.getLogger("grpc._cython.cygrpc")
    library.error("Invalid encoding on %s", b"Bearer secret\xa0")
    library.error("something else")
    assert [line["event"] for line in _lines(stream)] == ["something else"]


def test_note_outside_of_calls_is_let_be() -> None:
    note_call(namespace="n")
    assert call_fields.get() is None


def test_lines_of_a_worker_say_which_one_it_is() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream, worker=0)
    structlog.get_logger().info("ready")
    logging.getLogger("a.library").error("broken")
    assert [line["worker"] for line in _lines(stream)] == [0, 0]


def test_lines_within_a_traced_call_carry_its_trace() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    token = call_fields.set({"request_id": "r-1", "namespace": "n", "trace_id": "t", "span_id": "s"})
    try:
        structlog.get_logger().info("within")
        logging.getLogger("a.library").error("broken")
    finally:
        call_fields.reset(token)
    for line in _lines(stream):
        assert (line["request_id"], line["trace_id"], line["span_id"]) == ("r-1", "t", "s")
        assert "namespace" not in line
