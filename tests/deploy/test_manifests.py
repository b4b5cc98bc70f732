"""The manifests: what kustomize makes of them is valid, strictly, and fits together."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import trustme
import yaml

from tests.deploy.custom_resources import SCHEMAS
from tests.deploy.manifests import (
    KUBERNETES,
    OVERLAYS,
    Resource,
    containers,
    of_kind,
    one,
    pod_templates,
    resources,
    settings,
)
from tests.deploy.tools import ROOT
from tests.service_process import run_command
from turnstore_service.operations.health import LIVENESS_NAME, READINESS_NAMES
from turnstore_service.operations.quantities import parse_duration

VERSIONS = ("1.29", kubernetes_validate.latest_version())
"""The oldest Kubernetes that the manifests are for, and the newest whose schema is there."""

KINDS_WITHOUT_SCHEMA = {"dev": set(), "prod": {"ServiceMonitor", "PrometheusRule"}}

pytestmark = pytest.mark.parametrize("overlay", OVERLAYS)


def _without_schema(overlay: str, version: str) -> set[str]:
    """Validates all that there is a schema for; the kinds of the rest."""
    kinds = set()
    for resource in resources(overlay):
        try:
            kubernetes_validate.validate(resource, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            kinds.add(resource["kind"])
    return kinds


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_is_valid(overlay: str, version: str) -> None:
    assert _without_schema(overlay, version) == KINDS_WITHOUT_SCHEMA[overlay]


@pytest.mark.parametrize("version", VERSIONS)
def test_misspelt_field_would_be_found(overlay: str, version: str) -> None:
    deployment = one(overlay, "Deployment", "turnstore")
    pod = deployment["spec"]["template"]["spec"]
    pod["enableServiceLink"] = pod.pop("enableServiceLinks")
    with pytest.raises(kubernetes_validate.ValidationError, match="enableServiceLink"):
        kubernetes_validate.validate(deployment, version, strict=True)


def test_custom_resources_are_valid(overlay: str) -> None:
    found = [resource for resource in resources(overlay) if resource["kind"] in KINDS_WITHOUT_SCHEMA[overlay]]
    assert {resource["kind"] for resource in found} == KINDS_WITHOUT_SCHEMA[overlay]
    for resource in found:
        jsonschema.validate(resource, SCHEMAS[resource["kind"]])


def test_every_file_is_used(overlay: str) -> None:
    """Of the overlay, the base and the components."""
    used = set()

    def follow(folder: Path) -> None:
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        used.add(folder / "kustomization.yaml")
        named = [*kustomization.get("resources", []), *kustomization.get("components", [])]
        named += [patch["path"] for patch in kustomization.get("patches", []) if "path" in patch]
        generated = [*kustomization.get("configMapGenerator", []), *kustomization.get("secretGenerator", [])]
        named += [file for made in generated for file in [*made.get("envs", []), *made.get("files", [])]]
        for name in named:
            path = (folder / name).resolve()
            if path.is_dir():
                follow(path)
            else:
                used.add(path)

    follow(KUBERNETES / "overlays" / overlay)
    folders = [KUBERNETES / "base", KUBERNETES / "overlays" / overlay]
    assert [file for folder in folders for file in folder.iterdir() if file not in used] == []


def test_names_are_unique(overlay: str) -> None:
    named = [(resource["kind"], resource["metadata"]["name"]) for resource in resources(overlay)]
    assert len(set(named)) == len(named)


def test_all_stands_in_one_namespace(overlay: str) -> None:
    (namespace,) = of_kind(overlay, "Namespace")
    inside = [resource for resource in resources(overlay) if resource["kind"] != "Namespace"]
    assert {resource["metadata"].get("namespace") for resource in inside} == {namespace["metadata"]["name"]}


def test_every_pod_runs_without_rights(overlay: str) -> None:
    templates = dict(pod_templates(overlay))
    assert {"Deployment/turnstore", "Job/turnstore-migrate"} <= set(templates)
    for template in templates.values():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(pod.get(field) for field in ("hostNetwork", "hostPID", "hostIPC"))
        assert not any("hostPath" in volume for volume in pod.get("volumes", []))
        for container in containers(template):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_every_container_says_what_it_needs(overlay: str) -> None:
    for _, template in pod_templates(overlay):
        for container in containers(template):
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            # Processor time is not limited: throttling would only make calls slow.
            assert set(container["resources"]["limits"]) == {"memory"}


def test_service_runs_as_the_user_of_the_image(overlay: str) -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    user = re.search(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    assert user is not None
    context = one(overlay, "Deployment", "turnstore")["spec"]["template"]["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))


def test_images_have_versions_and_name_no_registry(overlay: str) -> None:
    for _, template in pod_templates(overlay):
        for container in containers(template):
            name, colon, version = container["image"].partition(":")
            assert colon, container["image"]
            assert version != "latest"
            assert "." not in name.partition("/")[0], "a registry is for whoever deploys to name"


def test_image_has_the_version_of_the_project(overlay: str) -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for kind, name in (("Deployment", "turnstore"), ("Job", "turnstore-migrate")):
        (container,) = containers(one(overlay, kind, name)["spec"]["template"])
        assert container["image"] == f"turnstore-service:{version[1]}"


def _probe(overlay: str, name: str) -> Any:
    (container,) = one(overlay, "Deployment", "turnstore")["spec"]["template"]["spec"]["containers"]
    return container[name]["grpc"]


def test_readiness_follows_the_database_and_liveness_does_not(overlay: str) -> None:
    assert _probe(overlay, "readinessProbe")["service"] == "" == READINESS_NAMES[0]
    assert _probe(overlay, "livenessProbe")["service"] == LIVENESS_NAME
    assert _probe(overlay, "startupProbe")["service"] == LIVENESS_NAME


def test_probes_ask_where_health_is_served_without_tls(overlay: str) -> None:
    port = int(settings(overlay)["TURNSTORE_HEALTH_LISTEN"].rpartition(":")[2])
    assert {
        _probe(overlay, name)["port"] for name in ("readinessProbe", "livenessProbe", "startupProbe")
    } == {port}


def test_rollout_takes_no_pod_away_before_another_is_ready(overlay: str) -> None:
    strategy = one(overlay, "Deployment", "turnstore")["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def test_pod_has_time_to_end_in_order(overlay: str) -> None:
    given = settings(overlay)
    pause = parse_duration(given["TURNSTORE_SHUTDOWN_PAUSE"])
    grace = parse_duration(given["TURNSTORE_SHUTDOWN_GRACE"])
    pod = one(overlay, "Deployment", "turnstore")["spec"]["template"]["spec"]
    assert pause >= timedelta(seconds=5), "endpoints take some seconds to follow"
    assert timedelta(seconds=pod["terminationGracePeriodSeconds"]) >= pause + grace + timedelta(seconds=10)


def _named_ports(overlay: str) -> dict[str, int]:
    (container,) = one(overlay, "Deployment", "turnstore")["spec"]["template"]["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def test_ports_are_those_that_the_service_listens_on(overlay: str) -> None:
    image = dict(re.findall(r"(TURNSTORE_\w*LISTEN)=\S+:(\d+)", (ROOT / "deploy/Dockerfile").read_text()))
    assert _named_ports(overlay) == {
        "grpc": int(image["TURNSTORE_LISTEN"]),
        "metrics": int(image["TURNSTORE_METRICS_LISTEN"]),
        "health": int(settings(overlay)["TURNSTORE_HEALTH_LISTEN"].rpartition(":")[2]),
    }


def _selected(labels: dict[str, str], selector: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def _service_labels(overlay: str) -> dict[str, str]:
    labels: dict[str, str] = one(overlay, "Deployment", "turnstore")["spec"]["template"]["metadata"]["labels"]
    return labels


def test_everything_that_selects_pods_selects_those_of_the_service(overlay: str) -> None:
    deployment = one(overlay, "Deployment", "turnstore")["spec"]
    selectors = [deployment["selector"]["matchLabels"]]
    selectors += [spread["labelSelector"]["matchLabels"] for spread in _spreads(overlay)]
    for name in ("turnstore", "turnstore-headless"):
        selectors.append(one(overlay, "Service", name)["spec"]["selector"])
    for budget in of_kind(overlay, "PodDisruptionBudget"):
        selectors.append(budget["spec"]["selector"]["matchLabels"])
    migrate = one(overlay, "Job", "turnstore-migrate")["spec"]["template"]["metadata"]["labels"]
    for selector in selectors:
        assert _selected(_service_labels(overlay), selector)
        assert not _selected(migrate, selector), "the Job's pods take no calls"


def _spreads(overlay: str) -> list[Resource]:
    pod = one(overlay, "Deployment", "turnstore")["spec"]["template"]["spec"]
    return list(pod["topologySpreadConstraints"])


def test_pods_are_spread_over_zones_and_nodes(overlay: str) -> None:
    keys = {spread["topologyKey"] for spread in _spreads(overlay)}
    assert keys == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}


def test_services_lead_to_ports_of_the_pods(overlay: str) -> None:
    for name in ("turnstore", "turnstore-headless"):
        ports = one(overlay, "Service", name)["spec"]["ports"]
        assert {port["targetPort"] for port in ports} <= set(_named_ports(overlay))
    assert one(overlay, "Service", "turnstore-headless")["spec"]["clusterIP"] == "None"
    assert "clusterIP" not in one(overlay, "Service", "turnstore")["spec"]


def test_network_policy_covers_every_pod_of_the_service(overlay: str) -> None:
    policy = one(overlay, "NetworkPolicy", "turnstore")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    selector = policy["podSelector"]["matchLabels"]
    assert _selected(_service_labels(overlay), selector)
    migrate = one(overlay, "Job", "turnstore-migrate")["spec"]["template"]["metadata"]["labels"]
    assert _selected(migrate, selector)
    let_in = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert let_in == {"grpc", "metrics"}
    assert all(rule["from"] for rule in policy["ingress"])


def test_settings_are_taken_with_the_files_that_are_mounted(overlay: str, tmp_path: Path) -> None:
    given = settings(overlay)
    deployment = one(overlay, "Deployment", "turnstore")["spec"]["template"]["spec"]
    (container,) = deployment["containers"]
    volumes = {volume["name"]: volume for volume in deployment["volumes"]}
    folders = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    issued = trustme.CA().issue_cert("turnstore.example")
    tokens = [{"token": "t" * 32, "namespace": "acme", "rights": ["read"]}]
    contents = {
        "uri": b"mongodb://db.example/?replicaSet=rs0",
        "tokens.json": json.dumps({"tokens": tokens}).encode(),
        "tls.crt": issued.cert_chain_pems[0].bytes(),
        "tls.key": issued.private_key_pem.bytes(),
    }
    for name, value in given.items():
        if value.startswith("/run/"):
            folder, _, file = value.rpartition("/")
            assert "secret" in folders[folder], f"{name} is in no Secret that is mounted"
            stands_for = tmp_path / file
            stands_for.write_bytes(contents[file])
            given[name] = str(stands_for)
    checked = run_command("check-config", settings=given)
    assert checked.returncode == 0, checked.stderr


def test_secrets_are_files_and_no_variables(overlay: str) -> None:
    for name, template in pod_templates(overlay):
        for container in containers(template):
            assert not any("secretRef" in source for source in container.get("envFrom", [])), name
            for variable in container.get("env", []):
                assert "secretKeyRef" not in variable.get("valueFrom", {}), name


def test_secrets_can_be_read_by_the_service_alone(overlay: str) -> None:
    for kind, name in (("Deployment", "turnstore"), ("Job", "turnstore-migrate")):
        pod = one(overlay, kind, name)["spec"]["template"]["spec"]
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
        modes = {volume["secret"]["defaultMode"] for volume in pod["volumes"] if "secret" in volume}
        assert modes == {0o440}


def test_no_mounted_secret_is_a_single_file(overlay: str) -> None:
    """A file that is mounted by itself never changes, whatever happens to the Secret."""
    for _, template in pod_templates(overlay):
        for container in containers(template):
            assert not any("subPath" in mount for mount in container.get("volumeMounts", []))


def test_job_makes_the_indexes_of_the_same_database(overlay: str) -> None:
    job = one(overlay, "Job", "turnstore-migrate")["spec"]["template"]["spec"]
    service = one(overlay, "Deployment", "turnstore")["spec"]["template"]["spec"]
    (migrating,), (serving,) = job["containers"], service["containers"]
    assert migrating["args"] == ["migrate"]
    assert serving["args"] == ["serve"]
    assert migrating["envFrom"] == serving["envFrom"]
    assert [volume for volume in job["volumes"] if volume["name"] == "mongodb"] == [
        volume for volume in service["volumes"] if volume["name"] == "mongodb"
    ]
