"""Prometheus' configuration and the rules: right, tried by promtool, and over metrics that there are."""

import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.deploy.expressions import problems
from tests.deploy.rule_files import ALERTS, PROMETHEUS, RECORDED, TESTS
from tests.deploy.tools import run_tool

EXPRESSIONS = {**RECORDED, **{name: rule["expr"] for name, rule in ALERTS.items()}}


def _alert_tests() -> list[dict[str, Any]]:
    files = [yaml.safe_load((PROMETHEUS / name).read_text()) for name in TESTS]
    return [alert for file in files for test in file["tests"] for alert in test["alert_rule_test"]]


def test_configuration_is_right() -> None:
    run_tool("promtool", "check", "config", str(PROMETHEUS / "prometheus.yml"))


def test_rules_are_right() -> None:
    run_tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(PROMETHEUS / "rules.yml"))


@pytest.mark.parametrize("file", TESTS)
def test_alerts_fire_when_they_should(file: str) -> None:
    run_tool("promtool", "test", "rules", file, cwd=PROMETHEUS)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_series_that_is_asked_for_is_given(name: str) -> None:
    assert problems(EXPRESSIONS[name], RECORDED) == []


@pytest.mark.parametrize("name", ALERTS)
def test_alert_is_tried_firing_and_quiet(name: str) -> None:
    tried = {bool(test.get("exp_alerts")) for test in _alert_tests() if test["alertname"] == name}
    assert tried == {True, False}


@pytest.mark.parametrize("name", ALERTS)
def test_alert_tells_how_urgent_it_is_and_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"


def test_every_recorded_series_is_used_by_an_alert_or_the_dashboard() -> None:
    used = " ".join(rule["expr"] for rule in ALERTS.values())
    used += (PROMETHEUS.parent / "grafana/dashboards/turnstore.json").read_text()
    assert [name for name in RECORDED if name not in used] == []


def test_resource_of_the_operator_has_the_same_rules() -> None:
    maker = PROMETHEUS / "make_prometheusrule.py"
    made = subprocess.run([sys.executable, str(maker), "--check"], timeout=60, check=False)
    assert made.returncode == 0, f"prometheusrule.yaml is stale: run .venv/bin/python {maker.name} there"
    rules = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())
    assert yaml.safe_load((PROMETHEUS / "prometheusrule.yaml").read_text())["spec"] == rules
