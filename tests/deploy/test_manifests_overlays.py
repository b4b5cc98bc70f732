"""What is of one overlay alone."""

import pytest

from tests.deploy.manifests import KUBERNETES, of_kind, one, resources, settings
from tests.deploy.tools import DEPLOY


def test_production_is_scaled_and_the_deployment_leaves_that_alone() -> None:
    scaler = one("prod", "HorizontalPodAutoscaler", "turnstore")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "turnstore"}
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]
    assert [metric["resource"]["name"] for metric in scaler["metrics"]] == ["cpu"]
    assert "replicas" not in one("prod", "Deployment", "turnstore")["spec"]


def test_production_keeps_pods_while_nodes_are_drained() -> None:
    assert one("prod", "PodDisruptionBudget", "turnstore")["spec"]["maxUnavailable"] == 1


def test_production_asks_callers_for_credentials_over_tls() -> None:
    given = settings("prod")
    assert given["TURNSTORE_AUTH"] in {"tokens", "jwt"}
    assert given["TURNSTORE_SERVER_TLS_CERT"]
    assert "TURNSTORE_ALLOW_UNAUTHENTICATED" not in given


def test_production_holds_no_secret() -> None:
    assert of_kind("prod", "Secret") == []


def test_one_service_has_the_port_that_is_scraped() -> None:
    monitor = one("prod", "ServiceMonitor", "turnstore")
    (endpoint,) = monitor["spec"]["endpoints"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    scraped = [
        service["metadata"]["name"]
        for service in of_kind("prod", "Service")
        if selector.items() <= service["metadata"]["labels"].items()
        and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    ]
    assert scraped == ["turnstore"]


def test_scraped_job_has_the_name_that_the_rules_ask_for() -> None:
    monitor = one("prod", "ServiceMonitor", "turnstore")
    labels = one("prod", "Service", "turnstore")["metadata"]["labels"]
    assert labels[monitor["spec"]["jobLabel"]] == "turnstore"
    assert 'up{job="turnstore"}' in (DEPLOY / "prometheus/rules.yml").read_text()


def test_dashboard_comes_along_as_it_is() -> None:
    (dashboard,) = (r for r in of_kind("prod", "ConfigMap") if "turnstore.json" in r["data"])
    assert dashboard["data"]["turnstore.json"] == (DEPLOY / "grafana/dashboards/turnstore.json").read_text()
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_development_is_one_pod_that_nothing_scales() -> None:
    assert one("dev", "Deployment", "turnstore")["spec"]["replicas"] == 1
    assert {resource["kind"] for resource in resources("dev")}.isdisjoint(
        {"HorizontalPodAutoscaler", "PodDisruptionBudget"}
    )


def test_development_has_a_replica_set_of_its_own() -> None:
    (mongod,) = one("dev", "StatefulSet", "mongodb")["spec"]["template"]["spec"]["containers"]
    (initiate,) = one("dev", "Job", "mongodb-initiate")["spec"]["template"]["spec"]["containers"]
    name = mongod["args"][mongod["args"].index("--replSet") + 1]
    script = initiate["command"][-1]
    address = "mongodb-0.mongodb:27017"
    assert f'_id: "{name}"' in script
    assert f'host: "{address}"' in script
    assert f"mongodb://{address}/" in initiate["command"][2]
    literal = f"uri=mongodb://{address}/?replicaSet={name}"
    assert literal in (KUBERNETES / "overlays/dev/kustomization.yaml").read_text()
    assert one("dev", "Service", "mongodb")["spec"]["publishNotReadyAddresses"] is True
    assert initiate["image"] == mongod["image"]


@pytest.mark.parametrize(("overlay", "level"), [("dev", "debug"), ("prod", "info")])
def test_settings_of_the_overlay_are_added_to_those_of_the_base(overlay: str, level: str) -> None:
    given = settings(overlay)
    assert given["TURNSTORE_LOG_LEVEL"] == level
    assert given["TURNSTORE_LOG_FORMAT"] == "json"
