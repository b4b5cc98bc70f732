"""What PromQL expressions ask for, held against what the service exports."""

import re
from collections.abc import Iterable
from functools import cache

from turnstore_service.operations.metrics import Metrics
from turnstore_service.server import SERVED

OWN_OF_PROMETHEUS = {"up"}
"""Series that Prometheus itself makes of every scrape."""
TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus puts on what it scrapes."""

_WORDS = {
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
}
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


@cache
def exported() -> dict[str, list[dict[str, str]]]:
    """Every series that the service exports from its start: its name, and the labels of each."""
    series: dict[str, list[dict[str, str]]] = {}
    for family in Metrics(SERVED).registry.collect():
        for sample in family.samples:
            series.setdefault(sample.name, []).append(dict(sample.labels))
    return series


def metric_names(expression: str) -> set[str]:
    """The names of the series that an expression asks for."""
    text = re.sub(r'"[^"]*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", text)
    found = re.findall(r"(?<![\w:.])([a-zA-Z_:][\w:]*)(?!\s*\(|[\w:])", text)
    return {name for name in found if name not in _WORDS}


def problems(expression: str, recorded: Iterable[str]) -> list[str]:
    """A sentence for each series that the expression asks for and nobody gives.

    Args:
        expression: PromQL, without variables.
        recorded: The names that recording rules give.
    """
    known = {*exported(), *recorded, *OWN_OF_PROMETHEUS}
    found = [f"nobody gives {name}" for name in sorted(metric_names(expression) - known)]
    for name, matchers in _SELECTOR.findall(expression):
        for label, operator, value in _MATCHER.findall(matchers):
            if name not in exported() or label in TARGET_LABELS:
                continue
            values = {labels[label] for labels in exported()[name] if label in labels}
            # Each alternative, since a misspelt one would only be missing from a sum.
            wanted = value.split("|") if operator in {"=~", "!~"} else [value]
            if not values:
                found.append(f"{name} has no label {label}")
            found += [f"{name} has never {label}={want}" for want in wanted if values and want not in values]
    return found
