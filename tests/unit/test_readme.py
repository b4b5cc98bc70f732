"""The README says what is there: settings, RPCs, reasons, files."""

import re
from pathlib import Path

import pytest

from tests.service_process import run_command
from turnstore.v1 import errors_pb2, history_service_pb2
from turnstore_service.rpc.service import IMPLEMENTED

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "clients/python/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SERVICE = history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"]


def _between(marker: str) -> str:
    """What stands between the README's markers of that name."""
    found = re.findall(rf"<!-- {marker}(?::[^>]*)? -->\n(.*?)<!-- /{marker} -->", README, re.DOTALL)
    assert len(found) == 1, f"README.md needs one pair of markers <!-- {marker} --> and <!-- /{marker} -->"
    return str(found[0])


def _rows(marker: str) -> list[list[str]]:
    """The cells of the table between the markers, without its head."""
    lines = _between(marker).splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def test_settings_are_those_of_the_service() -> None:
    printed = run_command("settings", "--markdown", settings={})
    assert printed.returncode == 0, printed.stderr
    is_current = _between("settings") == printed.stdout
    assert is_current, "put what `turnstore-service settings --markdown` prints between README.md's markers"


def test_every_rpc_is_listed() -> None:
    assert [name for name, _ in _rows("rpcs")] == [method.name for method in SERVICE.methods]


def test_rpcs_that_are_not_built_are_told() -> None:
    not_built = {name for name, text in _rows("rpcs") if text == "not built: UNIMPLEMENTED"}
    assert not_built == {method.name for method in SERVICE.methods} - set(IMPLEMENTED)


def test_every_reason_is_listed() -> None:
    values = errors_pb2.DESCRIPTOR.enum_types_by_name["ErrorReason"].values
    reasons = [value.name.removeprefix("ERROR_REASON_") for value in values]
    assert sorted(reason for _, reason, _ in _rows("errors")) == sorted(set(reasons) - {"UNSPECIFIED"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, heading = target.partition("#")
        if ":" in path:
            continue  # another site
        file = page.parent / path if path else page
        if not file.exists() or (heading and heading not in _headings(file)):
            broken.append(target)
    assert broken == []


def _headings(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
