"""A real Prometheus with the project's configuration and rules, which scrapes a real service."""

import json
import re
import socket
import subprocess
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.database import drop_database
from tests.deploy.dashboard_file import queries
from tests.deploy.rule_files import ALERTS, PROMETHEUS, RECORDED
from tests.deploy.tools import tool
from tests.processes import wait_until
from tests.service_process import ServiceProcess, run_command
from turnstore import HistoryClient, Response

WAIT_SECONDS = 40.0


def _always(expression: str) -> str:
    """The expression with its comparisons as 0 or 1, so that it gives series whether or not they hold."""
    shown = re.sub(r"(==|!=|>=|<=|>|<)(?!\s*bool)\s*(?=[\d(a-z])", r"\1 bool ", expression)
    return re.sub(r"absent\((.*?)\)", r"\1", shown)


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """What its API answers."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as reply:
            return json.load(reply)["data"]

    def series(self, expression: str) -> list[Any]:
        """What the expression gives just now."""
        return list(self.ask("query", query=expression)["result"])

    def answers(self) -> bool:
        """Whether it is ready."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False


@pytest.fixture(scope="module")
def service(mongodb_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service that has taken calls of several kinds."""
    database = f"turnstore_test_{uuid.uuid4().hex}"
    settings = {"TURNSTORE_MONGODB_URI": mongodb_uri, "TURNSTORE_MONGODB_DATABASE": database}
    made = run_command("migrate", settings=settings)
    assert made.returncode == 0, made.stderr
    running = ServiceProcess(tmp_path_factory.mktemp("service"), settings)
    try:
        running.wait_ready()
        yield running
    finally:
        running.kill()
        drop_database(mongodb_uri, database)


@pytest.fixture(scope="module")
def prometheus(service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the project's configuration, but for how often and where it scrapes."""
    folder = tmp_path_factory.mktemp("prometheus")
    configuration = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "250ms", "evaluation_interval": "250ms"}
    configuration["rule_files"] = [str(PROMETHEUS / name) for name in configuration["rule_files"]]
    (job,) = configuration["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [service.ready["metrics_listen"]]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        running = Prometheus(f"http://{address}")
        wait_until(running.answers, WAIT_SECONDS, "Prometheus is ready")
        _take_calls(service, "trip")
        wait_until(
            lambda: all(running.series(name) for name in RECORDED), WAIT_SECONDS, "every rule has a result"
        )
        yield running
    finally:
        process.terminate()
        process.wait(30)


def _take_calls(service: ServiceProcess, conversation: str) -> None:
    with HistoryClient(service.target) as client:
        for number, status in enumerate(("completed", "failed", "completed")):
            item = {"type": "message", "id": f"m{number}", "role": "user", "content": "A weekend in Oslo?"}
            client.store_response(
                Response(f"r{number}", status, conversation_id=conversation, input_items=[item])
            )
        client.resolve_history(conversation_id=conversation, explain=True)


@pytest.mark.parametrize(
    ("expression", "always"),
    [
        ("a == 0", "a == bool 0"),
        ("a:b > 14.4 * 0.001\n  and c > 1", "a:b > bool 14.4 * 0.001\n  and c > bool 1"),
        ("absent(turnstore_ready)", "turnstore_ready"),
        ('rate(a{b=~"c|d", e!="f"}[5m]) > 0.9', 'rate(a{b=~"c|d", e!="f"}[5m]) > bool 0.9'),
    ],
)
def test_comparisons_become_values(expression: str, always: str) -> None:
    assert _always(expression) == always


def test_service_is_scraped(prometheus: Prometheus, service: ServiceProcess) -> None:
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert target["health"] == "up", target["lastError"]
    assert target["labels"] == {"job": "turnstore", "instance": service.ready["metrics_listen"]}


def test_rules_are_evaluated_without_an_error(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {*RECORDED, *ALERTS}
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}


@pytest.mark.parametrize("alert", ALERTS)
def test_query_of_the_alert_finds_series(prometheus: Prometheus, alert: str) -> None:
    assert prometheus.series(_always(ALERTS[alert]["expr"]))


@pytest.mark.parametrize("query", queries())
def test_query_of_the_dashboard_finds_series(prometheus: Prometheus, query: str) -> None:
    assert prometheus.series(_always(queries()[query]))


def test_healthy_service_raises_no_alert(prometheus: Prometheus) -> None:
    assert [alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]] == []


def test_calls_are_counted(prometheus: Prometheus) -> None:
    for query, count in (
        ('turnstore_turns_stored_total{status="failed"}', 1),
        ('turnstore_items_left_out_total{reason="failed"}', 1),
        ("turnstore_history_items_sum", 2),
        ('grpc_server_handled_total{grpc_method="StoreResponse", grpc_code="OK"}', 3),
    ):
        (series,) = prometheus.series(query)
        assert float(series["value"][1]) == count, query


def test_metrics_are_as_prometheus_wants_them(service: ServiceProcess) -> None:
    with urllib.request.urlopen(service.metrics_url, timeout=30) as reply:
        text = reply.read()
    checked = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stderr.decode()


def test_end_of_the_service_begins_an_alert(prometheus: Prometheus, service: ServiceProcess) -> None:
    """The last of the file, since it ends the service."""
    service.terminate()

    def pending() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]}

    wait_until(lambda: "TurnstoreDown" in pending(), WAIT_SECONDS, "the alert is pending")
