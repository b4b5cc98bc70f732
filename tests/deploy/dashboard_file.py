"""The dashboard of deploy/grafana, as it stands in the file."""

import json
import re
from typing import Any

from tests.deploy.tools import DEPLOY

FILE = DEPLOY / "grafana/dashboards/turnstore.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]

_VALUES = {"$__rate_interval": "5m", "$job": "turnstore", "$instance": ".*"}
"""What Grafana puts in for variables, for one choice."""


def queries() -> dict[str, str]:
    """The expression of each query without variables, by panel and query."""
    found = {}
    for panel in PANELS:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for variable, value in _VALUES.items():
                expression = expression.replace(variable, value)
            assert "$" not in expression, f"{panel['title']}: unknown variable in {expression}"
            found[f"{panel['title']} {target['refId']}"] = expression
    return found


def variable_queries() -> dict[str, str]:
    """The series that each variable takes its values from."""
    found = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            series = re.fullmatch(r"label_values\((.*), \w+\)", variable["definition"])
            assert series is not None, variable["definition"]
            found[variable["name"]] = series[1].replace("$job", "turnstore")
    return found
