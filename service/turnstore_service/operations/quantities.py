"""Durations and sizes as people write them in settings: `90s`, `64MiB`."""

import re
from datetime import timedelta
from decimal import Decimal

_DURATION_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_SIZE_UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def parse_duration(text: str) -> timedelta:
    """Reads a number and a unit (ms, s, m, h, d), as in `500ms`, `1.5h`.

    Raises:
        ValueError: The text is no such thing.
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)", text.strip(), re.ASCII)
    if match is None:
        raise ValueError("must be a number and a unit (ms, s, m, h or d), such as 500ms, 90s, 15m, 24h")
    try:
        return float(match[1]) * _DURATION_UNITS[match[2]]
    except OverflowError:
        raise ValueError("is too long") from None


def format_duration(duration: timedelta) -> str:
    """Writes a duration in its largest unit (to hours) without a fraction, for `parse_duration` to read."""
    for unit in ("h", "m", "s", "ms"):
        count, rest = divmod(duration, _DURATION_UNITS[unit])
        if not rest and (count or unit == "s"):
            return f"{count}{unit}"
    return f"{duration / _DURATION_UNITS['ms']}ms"


def parse_size(text: str) -> int:
    """Reads a number of bytes, plain or with a unit (KiB, MiB, GiB), as in `65536`, `3.5MiB`.

    Raises:
        ValueError: The text is no such thing, or no whole number of bytes.
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*(|KiB|MiB|GiB)", text.strip(), re.ASCII)
    if match is None:
        raise ValueError("must be a number of bytes, plain or with KiB, MiB or GiB, such as 65536, 64MiB")
    size = Decimal(match[1]) * _SIZE_UNITS[match[2]]
    if size != int(size):
        raise ValueError("is no whole number of bytes")
    return int(size)


def format_size(size: int) -> str:
    """Writes a size in its largest unit of which it is a multiple of a half, for `parse_size` to read."""
    for unit in ("GiB", "MiB", "KiB"):
        halves, rest = divmod(size * 2, _SIZE_UNITS[unit])
        if not rest and halves >= 2:
            return f"{halves // 2}{'.5' if halves % 2 else ''}{unit}"
    return str(size)
