from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstore_service.operations.quantities import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("0s", timedelta(0)),
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("1.5h", timedelta(minutes=90)),
        ("24h", timedelta(days=1)),
        ("7d", timedelta(days=7)),
        (" 2 s ", timedelta(seconds=2)),
    ],
)
def test_duration_is_read(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-1s", "1 min", "1S", "1h30m", "1e3s", ".5s", "٣s", "1s\n2s", "9" * 400 + "s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number and a unit"):
        parse_duration(text)


def test_duration_beyond_all_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="is too long"):
        parse_duration("9" * 15 + "d")


@given(st.integers(min_value=0, max_value=10**12))
def test_duration_is_written_as_it_is_read(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=1500), "1500ms"),
        (timedelta(seconds=90), "90s"),
        (timedelta(minutes=5), "5m"),
        (timedelta(days=1), "24h"),
    ],
)
def test_duration_is_written_in_the_largest_whole_unit(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64KiB", 64 * 1024),
        ("64MiB", 64 * 1024**2),
        ("3.5MiB", 3584 * 1024),
        ("1 GiB", 1024**3),
    ],
)
def test_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "64MB", "64mib", "64M", "1e6", "0x10", "1_000", "9" * 400])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number of bytes"):
        parse_size(text)


def test_part_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_size("0.3KiB")


@given(st.integers(min_value=0, max_value=2**50))
def test_size_is_written_as_it_is_read(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(3584 * 1024, "3.5MiB"), (64 * 1024**2, "64MiB"), (1000, "1000"), (1536, "1.5KiB")]
)
def test_size_is_written_in_a_short_unit(size: int, text: str) -> None:
    assert format_size(size) == text
