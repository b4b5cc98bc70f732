"""compose.yaml and the files that it mounts: there is no engine in these tests, so they are read strictly."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.tools import DEPLOY, ROOT
from tests.service_process import run_command
from turnstore_service.operations.quantities import parse_duration
from turnstore_service.operations.settings import Settings

FILE = DEPLOY / "compose.yaml"


def _without_variables(text: str) -> str:
    """With the defaults of its variables."""
    shown = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    assert "$" not in shown, "a variable without a default"
    return shown


COMPOSE: dict[str, Any] = yaml.safe_load(_without_variables(FILE.read_text()))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
INITIATE = (DEPLOY / "compose/initiate.js").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()

_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "minItems": 1, "items": _TEXT}
_DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


_SERVICE = {
    **_object(
        image=_TEXT,
        build=_object(
            context=_TEXT,
            dockerfile=_TEXT,
            args={"type": "object", "additionalProperties": _TEXT},
        ),
        command=_TEXTS,
        entrypoint=_TEXTS,
        environment={"type": "object", "additionalProperties": _TEXT},
        volumes={"type": "array", "items": {"type": "string", "pattern": "^[^:]+:/[^:]*(:ro)?$"}},
        ports={"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}},
        healthcheck=_object(
            test={"type": "array", "minItems": 2, "items": _TEXT, "prefixItems": [{"const": "CMD"}]},
            interval=_DURATION,
            timeout=_DURATION,
            start_period=_DURATION,
            retries={"type": "integer", "minimum": 1},
        ),
        depends_on={
            "anyOf": [
                _TEXTS,
                {
                    "type": "object",
                    "additionalProperties": _object(
                        condition={"enum": ["service_healthy", "service_completed_successfully"]}
                    ),
                },
            ]
        },
        restart={"enum": ["unless-stopped"]},
        stop_grace_period=_DURATION,
        read_only={"const": True},
        cap_drop={"const": ["ALL"]},
        security_opt={"const": ["no-new-privileges:true"]},
    ),
    "required": ["image"],
}
SCHEMA = _object(
    **{
        "name": _TEXT,
        "x-turnstore": _SERVICE,
        "services": {"type": "object", "additionalProperties": _SERVICE},
        "volumes": {"type": "object", "additionalProperties": {"type": "null"}},
    }
)
"""As much of compose as is used, and nothing else. Ports are on loopback alone: nothing asks for a credential."""


def test_file_is_valid() -> None:
    jsonschema.validate(COMPOSE, SCHEMA)


def test_it_has_the_service_its_database_and_what_watches_it() -> None:
    assert set(SERVICES) == {"mongo", "mongo-initiate", "migrate", "turnstore", "prometheus", "grafana"}


def test_images_have_versions_and_name_no_registry() -> None:
    for service in SERVICES.values():
        name, colon, version = service["image"].partition(":")
        assert colon, service["image"]
        assert version != "latest"
        assert "." not in name.partition("/")[0]


def test_image_is_built_from_the_dockerfile_with_its_own_base() -> None:
    for name in ("migrate", "turnstore"):
        build = SERVICES[name]["build"]
        folder = (DEPLOY / build["context"]).resolve()
        assert folder == ROOT
        assert (folder / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
        assert f"\nARG BASE_IMAGE={build['args']['BASE_IMAGE']}\n" in DOCKERFILE


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, _, rest = volume.partition(":")
        if source.startswith("."):
            assert (DEPLOY / source).exists(), source
            assert rest.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_waited_for_can_come_about(name: str) -> None:
    waits = SERVICES[name].get("depends_on", {})
    for other, wait in waits.items() if isinstance(waits, dict) else []:
        if wait["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        else:
            assert "restart" not in SERVICES[other], "what is started again never completes"
    assert set(waits) <= set(SERVICES)


def test_order_of_the_start_leads_from_the_database_to_the_service() -> None:
    chain = ["turnstore"]
    while waits := SERVICES[chain[-1]].get("depends_on"):
        (following,) = waits
        chain.append(following)
    assert chain == ["turnstore", "migrate", "mongo-initiate", "mongo"]


def test_replica_set_has_one_name_and_one_address() -> None:
    command = SERVICES["mongo"]["command"]
    name = command[command.index("--replSet") + 1]
    assert f'_id: "{name}"' in INITIATE
    assert 'host: "mongo:27017"' in INITIATE
    assert SERVICES["mongo-initiate"]["entrypoint"][2].startswith("mongodb://mongo:27017/")
    for service in ("migrate", "turnstore"):
        uri = SERVICES[service]["environment"]["TURNSTORE_MONGODB_URI"]
        assert uri == f"mongodb://mongo:27017/?replicaSet={name}"


def test_script_that_is_run_is_the_one_that_is_mounted() -> None:
    initiate = SERVICES["mongo-initiate"]
    assert initiate["volumes"] == [f"./compose/initiate.js:{initiate['entrypoint'][-1]}:ro"]


def test_settings_are_taken() -> None:
    image = dict(re.findall(r"(TURNSTORE_\w+)=(\S+)", DOCKERFILE.split("\nENV PATH")[1]))
    checked = run_command("check-config", settings={**image, **SERVICES["turnstore"]["environment"]})
    assert checked.returncode == 0, checked.stderr
    assert SERVICES["migrate"]["environment"] == SERVICES["turnstore"]["environment"]


def test_service_runs_without_rights() -> None:
    for name in ("migrate", "turnstore"):
        assert SERVICES[name]["read_only"] is True
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]


def test_service_has_time_to_end_in_order() -> None:
    settings = Settings()
    given = parse_duration(SERVICES["turnstore"]["stop_grace_period"])
    assert given >= settings.shutdown_pause + settings.shutdown_grace + timedelta(seconds=5)


def _mounted(service: str, target: str) -> Path:
    """The file or folder here that a path in the container is."""
    (source,) = (v.split(":")[0] for v in SERVICES[service]["volumes"] if v.split(":")[1] == target)
    return (DEPLOY / source).resolve()


def test_prometheus_finds_its_files_and_the_service() -> None:
    file = _mounted("prometheus", "/etc/prometheus/prometheus.yml")
    configuration = yaml.safe_load(file.read_text())
    for rules in configuration["rule_files"]:
        assert _mounted("prometheus", f"/etc/prometheus/{rules}").is_file()
    (job,) = configuration["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    port = re.search(r"TURNSTORE_METRICS_LISTEN=0\.0\.0\.0:(\d+)", DOCKERFILE)
    assert port is not None
    assert found["names"] == ["turnstore"]
    assert found["names"][0] in SERVICES
    assert found["port"] == int(port[1])


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    folder = _mounted("grafana", "/etc/grafana/provisioning")
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["isDefault"] is True
    (port,) = SERVICES["prometheus"]["ports"]
    assert source["url"] == f"http://prometheus:{port.rpartition(':')[2]}"
    (provider,) = yaml.safe_load((folder / "dashboards/turnstore.yml").read_text())["providers"]
    dashboards = _mounted("grafana", provider["options"]["path"])
    assert [file.name for file in dashboards.iterdir()] == ["turnstore.json"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/turnstore.json"


def test_nobody_can_change_what_grafana_shows() -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
