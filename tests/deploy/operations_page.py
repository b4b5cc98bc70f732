"""docs/operations.md, and what its tables are to say. `python -m tests.deploy.operations_page` writes them."""

import re

from tests.deploy.tools import ROOT
from tests.service_process import run_command
from turnstore_service.operations.metrics import Metrics
from turnstore_service.server import SERVED

WRITE = "run `.venv/bin/python -m tests.deploy.operations_page`"
PAGE = ROOT / "docs/operations.md"

_OPEN_LABELS = {"grpc_method", "grpc_service", "version", "python", "grpc", "le"}
"""Labels whose values are not listed: they are those of the contract, of a version, or bounds."""


def between(marker: str) -> str:
    """What stands between the page's markers of that name."""
    pattern = rf"<!-- {marker}(?::[^>]*)? -->\n(.*?)<!-- /{marker} -->"
    found = re.findall(pattern, PAGE.read_text(), re.DOTALL)
    assert len(found) == 1, f"{PAGE.name} needs one pair of markers <!-- {marker} --> and <!-- /{marker} -->"
    return str(found[0])


def headings() -> set[str]:
    """The anchors of its headings."""
    titles = re.findall(r"^#+ (.*)$", PAGE.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def metrics_table() -> str:
    """The table of all metrics, made from those that the service has."""
    lines = ["| Metric | Type | Labels | Meaning |", "| --- | --- | --- | --- |"]
    for family in sorted(Metrics(SERVED).registry.collect(), key=lambda family: family.name):
        # As it is scraped: `name_bucket`, `name_sum` and `name_count` of a histogram go by its name.
        name = {"counter": f"{family.name}_total", "info": f"{family.name}_info"}.get(
            family.type, family.name
        )
        values: dict[str, set[str]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
        shown = ", ".join(
            f"`{label}`" if label in _OPEN_LABELS else f"`{label}`: {', '.join(sorted(values[label]))}"
            for label in sorted(values.keys() - {"le"})
        )
        lines.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def settings_table() -> str:
    """The table of all settings."""
    printed = run_command("settings", "--markdown", settings={})
    assert printed.returncode == 0, printed.stderr
    return printed.stdout


if __name__ == "__main__":
    text = PAGE.read_text()
    for marker, table in (("settings", settings_table()), ("metrics", metrics_table())):
        text = text.replace(between(marker), table)
    PAGE.write_text(text)
