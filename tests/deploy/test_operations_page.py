"""docs/operations.md has every setting, every metric, and a runbook for every alert."""

import re

from tests.deploy.operations_page import PAGE, WRITE, between, headings, metrics_table, settings_table
from tests.deploy.rule_files import ALERTS
from tests.deploy.tools import DEPLOY, ROOT


def test_settings_are_those_of_the_service() -> None:
    assert between("settings") == settings_table(), WRITE


def test_metrics_are_those_of_the_service() -> None:
    assert between("metrics") == metrics_table(), WRITE


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    anchors = {rule["annotations"]["runbook"].partition("#")[2] for rule in ALERTS.values()}
    assert anchors <= headings()
    assert {heading for heading in headings() if heading.startswith("turnstore")} == anchors


def test_contents_list_every_part() -> None:
    parts = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    assert re.findall(r"^- \[(.*)\]\(#", PAGE.read_text(), re.MULTILINE) == parts


def test_objectives_are_those_of_the_rules() -> None:
    rules = (DEPLOY / "prometheus/rules.yml").read_text()
    for objective in ("99.9 %", "99 %", "0.25 s"):
        assert objective in PAGE.read_text()
        assert objective in rules


def test_secrets_that_production_needs_are_told() -> None:
    overlay = (DEPLOY / "kubernetes/overlays/prod/kustomization.yaml").read_text()
    needed = re.findall(r"^#   (turnstore-\w+) ", overlay, re.MULTILINE)
    assert needed == ["turnstore-mongodb", "turnstore-tokens", "turnstore-tls"]
    for secret in needed:
        assert re.search(rf"create secret \w+ {secret} ", PAGE.read_text()), secret


def test_variables_that_are_named_are_settings() -> None:
    known = set(re.findall(r"`(TURNSTORE_\w+)`", between("settings")))
    for page in (PAGE, ROOT / "docs/scaling.md"):
        named = set(re.findall(r"\b(TURNSTORE_(?!TEST_)\w*[A-Z])\b", page.read_text()))
        assert named - known == set(), page.name
