"""The rules of deploy/prometheus, as they stand in the files."""

from typing import Any

import yaml

from tests.deploy.tools import DEPLOY

PROMETHEUS = DEPLOY / "prometheus"
TESTS = ("rules_test.yml", "rules_long_windows_test.yml")


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


RECORDED: dict[str, str] = {rule["record"]: rule["expr"] for rule in _rules() if "record" in rule}
"""What recording rules give: the name and the expression."""
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in _rules() if "alert" in rule}
"""The alerts by their names."""
