"""The dashboard: its queries are right and over metrics that there are, and its panels do not overlap."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dashboard_file import DASHBOARD, PANELS, queries, variable_queries
from tests.deploy.expressions import exported, problems
from tests.deploy.rule_files import RECORDED
from tests.deploy.tools import run_tool

QUERIES = {**queries(), **variable_queries()}


def test_queries_are_right(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:number_{number}", "expr": query} for number, query in enumerate(QUERIES.values())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run_tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(file))


@pytest.mark.parametrize("query", QUERIES)
def test_every_series_that_is_asked_for_is_given(query: str) -> None:
    assert problems(QUERIES[query], RECORDED) == []


def test_it_answers_the_four_questions_in_order() -> None:
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == [
        "Is it healthy?",
        "Who is slow?",
        "What is left out, and why?",
        "Is the database the cause?",
        "The processes",
    ]


def test_every_metric_of_the_service_is_shown() -> None:
    shown = " ".join([*QUERIES.values(), *RECORDED.values()])
    own = {re.sub(r"_(total|bucket|sum|count|info)$", "", name) for name in exported()}
    own = {name for name in own if name.startswith(("turnstore_", "grpc_server_"))}
    assert {name for name in own if name not in shown} == set()


def test_panels_do_not_overlap() -> None:
    def area(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}

    assert [(a["title"], b["title"]) for a, b in combinations(PANELS, 2) if area(a) & area(b)] == []
    assert [panel["title"] for panel in PANELS if panel["gridPos"]["x"] + panel["gridPos"]["w"] > 24] == []


def test_panels_have_ids_titles_and_descriptions_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    assert [panel["title"] for panel in PANELS if "targets" in panel and not panel["description"]] == []


def test_data_source_is_a_variable() -> None:
    sources = [thing["datasource"]["uid"] for thing in PANELS if "datasource" in thing]
    sources += [target["datasource"]["uid"] for panel in PANELS for target in panel.get("targets", [])]
    assert set(sources) == {"${datasource}"}
    assert DASHBOARD["templating"]["list"][0]["name"] == "datasource"
