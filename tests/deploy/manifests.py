"""The manifests of deploy/kubernetes as kustomize renders them."""

import shutil
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import yaml

from tests.deploy.tools import DEPLOY, run_tool

Resource = dict[str, Any]

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("dev", "prod")


@cache
def _rendered(overlay: str) -> list[Resource]:
    folder = str(KUBERNETES / "overlays" / overlay)
    if shutil.which("kubectl") is None and shutil.which("kustomize") is not None:
        text = run_tool("kustomize", "build", folder)
    else:
        text = run_tool("kubectl", "kustomize", folder)
    return list(yaml.safe_load_all(text))


def resources(overlay: str) -> list[Resource]:
    """All resources of an overlay, new at each call."""
    return deepcopy(_rendered(overlay))


def of_kind(overlay: str, kind: str, name: str | None = None) -> list[Resource]:
    """Those of a kind, and of a name if one is given."""
    return [
        resource
        for resource in resources(overlay)
        if resource["kind"] == kind and name in {None, resource["metadata"]["name"]}
    ]


def one(overlay: str, kind: str, name: str) -> Resource:
    """The resource of that kind and name."""
    (found,) = of_kind(overlay, kind, name)
    return found


def pod_templates(overlay: str) -> Iterator[tuple[str, Resource]]:
    """The template of every resource that makes pods, with the resource's name."""
    for resource in resources(overlay):
        if resource["kind"] in {"Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod"}:
            assert resource["kind"] not in {"CronJob", "Pod"}, "not looked into yet"
            yield f"{resource['kind']}/{resource['metadata']['name']}", resource["spec"]["template"]


def containers(template: Resource) -> list[Resource]:
    """All containers of a pod."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def settings(overlay: str) -> dict[str, str]:
    """The settings that the overlay gives to the service."""
    return {
        name: value
        for resource in of_kind(overlay, "ConfigMap")
        for name, value in resource["data"].items()
        if name.startswith("TURNSTORE_")
    }
