"""Metrics of several processes as those of one service."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

Snapshot = list[Any]
"""All metrics of a process at one time, in plain values that JSON has: for each family its name, type and help,
and for each sample of it the name, the labels and the value."""

_LEAST = frozenset({"turnstore_ready", "process_start_time_seconds"})
"""Samples of which the least is told: the service is ready when each process is, and began with the first."""


def snapshot(registry: CollectorRegistry) -> Snapshot:
    """What the metrics say now."""
    return [
        [
            family.name,
            family.type,
            family.documentation,
            [[sample.name, sample.labels, sample.value] for sample in family.samples],
        ]
        for family in registry.collect()
    ]


def add_up(snapshots: Iterable[Snapshot]) -> list[Metric]:
    """The families of all, each sample once: counts, seconds and bytes added up, descriptions as they are."""
    families: dict[str, Metric] = {}
    sums: dict[str, dict[Any, Any]] = {}
    for families_of_one in snapshots:
        for name, kind, documentation, samples in families_of_one:
            families.setdefault(name, Metric(name, documentation, kind))
            sum_of = sums.setdefault(name, {})
            for sample_name, labels, value in samples:
                key = (sample_name, *labels.items())
                if key in sum_of and kind == "info":
                    continue
                joined = _joined(sample_name, sum_of[key].value, value) if key in sum_of else value
                sum_of[key] = Sample(sample_name, labels, joined)
    for name, family in families.items():
        family.samples = list(sums[name].values())
    return list(families.values())


def _joined(name: str, one: float, other: float) -> float:
    return min(one, other) if name in _LEAST else one + other
