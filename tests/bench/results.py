"""What a run of the benchmark came to: which bounds were missed, the tables, and the same for machines."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import beside, long_runs
from tests.bench.beside import LEAST_RATE, MOST_MEDIAN, Compared
from tests.bench.long_runs import Contention, Growth
from tests.bench.scaling import Scaled
from tests.bench.storing import Stored


@dataclass
class Results:
    """All figures of one run."""

    compared: list[Compared] = field(default_factory=list)
    scaled: list[Scaled] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    drivers: list[Compared] = field(default_factory=list)
    contention: Contention | None = None
    growth: Growth | None = None

    def missed(self) -> list[str]:
        """A sentence for each bound that was missed."""
        found = []
        for row in self.compared:
            found += _above(f"{row.title}: the median to the floor's", row.median_ratio(1), MOST_MEDIAN)
            most = row.most_callers
            title = f"{row.title}: calls a second to the floor's at {most}"
            found += _below(title, row.rate_ratio(most), LEAST_RATE)
        for pair in self.scaled:
            found += _above(f"{pair.pair.title}, to {pair.pair.base_title}", pair.ratio, pair.pair.bound)
        for kind in self.stored:
            found += _above(f"bytes a turn: {kind.title}, to {kind.base_title}", kind.ratio, kind.bound)
        if self.contention is not None:
            found += [f"a write failed: {failure}" for failure in self.contention.failures]
            if not self.contention.failures:
                title = "writes a second on one conversation, to those on one each"
                found += _below(title, self.contention.ratio, long_runs.LEAST_CONTENDED)
        if self.growth is not None:
            found += _above("growth of resident memory", self.growth.ratio, long_runs.MOST_GROWTH)
        return found

    def figures(self) -> dict[str, Any]:
        """For machines."""
        figures: dict[str, Any] = {
            "machine": {"processors": os.cpu_count(), "python": platform.python_version()},
            "calls": [beside.figures(row) for row in self.compared],
            "scaling": [
                {
                    "title": pair.pair.title,
                    "base": pair.pair.base_title,
                    "median_ms": pair.sample.median * 1000,
                    "base_median_ms": pair.base.median * 1000,
                    "ratio": pair.ratio,
                    "bound": pair.pair.bound,
                }
                for pair in self.scaled
            ],
            "storage": [
                {
                    "title": kind.title,
                    "base": kind.base_title,
                    "bytes_per_turn": kind.bytes_a_turn,
                    "base_bytes_per_turn": kind.base_bytes,
                    "ratio": kind.ratio,
                    "bound": kind.bound,
                }
                for kind in self.stored
            ],
            "drivers": [beside.figures(row) for row in self.drivers],
            "missed": self.missed(),
        }
        if self.contention is not None and not self.contention.failures:
            figures["contention"] = {
                "one_conversation": self.contention.one.figures(),
                "one_each": self.contention.each.figures(),
                "ratio": self.contention.ratio,
                "bound": long_runs.LEAST_CONTENDED,
            }
        if self.growth is not None:
            figures["memory"] = {
                "calls": [self.growth.few_calls, self.growth.many_calls],
                "resident_bytes": [self.growth.few_bytes, self.growth.many_bytes],
                "ratio": self.growth.ratio,
                "bound": long_runs.MOST_GROWTH,
            }
        return figures

    def show(self, console: Console) -> None:
        """Prints the tables, and the bounds that were missed."""
        if self.compared:
            console.print(_beside_table("The service beside the floor", self.compared, bounded=True))
        if self.scaled:
            console.print(_scaling_table(self.scaled))
        if self.stored:
            console.print(_storage_table(self.stored))
        if self.drivers:
            console.print(_beside_table("The service on two drivers", self.drivers, bounded=False))
        if self.contention is not None and not self.contention.failures:
            one, each = self.contention.one, self.contention.each
            console.print(
                f"Writes a second on one conversation {one.rate:,.0f}, on one each {each.rate:,.0f}: "
                f"{self.contention.ratio:.2f} times, {len(one.seconds) + len(each.seconds):,} writes in all"
            )
        if self.growth is not None:
            few, many = self.growth.few_bytes / 2**20, self.growth.many_bytes / 2**20
            console.print(
                f"Resident memory after {self.growth.few_calls:,} calls {few:.1f} MiB, after "
                f"{self.growth.many_calls:,} {many:.1f} MiB: {self.growth.ratio:.2f} times"
            )
        missed = self.missed()
        for sentence in missed:
            console.print(f"missed: {sentence}", style="red")
        if not missed:
            console.print("Every ratio is within its bound.")


def _above(title: str, ratio: float, bound: float) -> list[str]:
    return [] if ratio <= bound else [f"{title} is {ratio:.2f}, bound {bound:.2f}"]


def _below(title: str, ratio: float, bound: float) -> list[str]:
    return [] if ratio >= bound else [f"{title} is {ratio:.2f}, bound {bound:.2f}"]


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0)
    return table


def _beside_table(title: str, rows: Sequence[Compared], *, bounded: bool) -> Table:
    names = (
        "call",
        "callers",
        "server",
        "median ms",
        "p99 ms",
        "calls/s",
        "processor ms",
        "median",
        "calls/s",
    )
    table = _table(title, names)
    for row in rows:
        for callers, samples in row.samples.items():
            for side in row.sides:
                sample = samples[side]
                ratios = ["", ""]
                if side == row.sides[0]:
                    median, rate = row.median_ratio(callers), row.rate_ratio(callers)
                    ratios = [
                        _marked(median, bounded and callers == 1 and median > MOST_MEDIAN),
                        _marked(rate, bounded and callers > 1 and rate < LEAST_RATE),
                    ]
                table.add_row(
                    row.title if side == row.sides[0] and callers == 1 else "",
                    str(callers) if side == row.sides[0] else "",
                    side,
                    f"{sample.median * 1000:.2f}",
                    f"{sample.p99 * 1000:.2f}",
                    f"{sample.rate:,.0f}",
                    f"{sample.processor_a_call * 1000:.2f}",
                    *ratios,
                )
        table.add_section()
    return table


def _scaling_table(rows: Sequence[Scaled]) -> Table:
    names = ("ResolveHistory, ids, limit 100", "beside", "median ms", "beside ms", "ratio", "bound")
    table = _table("How the cost of a history grows", names)
    for row in rows:
        table.add_row(
            row.pair.title,
            row.pair.base_title,
            f"{row.sample.median * 1000:.2f}",
            f"{row.base.median * 1000:.2f}",
            _marked(row.ratio, row.ratio > row.pair.bound),
            f"{row.pair.bound:.2f}",
        )
    return table


def _storage_table(rows: Sequence[Stored]) -> Table:
    names = ("bytes a turn, data and indexes", "beside", "bytes", "beside bytes", "ratio", "bound")
    table = _table("What a turn takes up", names)
    for row in rows:
        table.add_row(
            row.title,
            row.base_title,
            f"{row.bytes_a_turn:,.0f}",
            f"{row.base_bytes:,.0f}",
            _marked(row.ratio, row.ratio > row.bound),
            f"{row.bound:.2f}",
        )
    return table


def _marked(ratio: float, missed: bool) -> str:
    return f"[red]{ratio:.2f} ![/red]" if missed else f"{ratio:.2f}"
