"""Where the tests' MongoDB comes from, on a machine without a container engine."""

import os
from pathlib import Path

import pytest

from tests.database import NoDatabaseError, choose, forget_settings
from turnstore_service.embedded.binary import find_mongod


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")


def test_uri_comes_first() -> None:
    assert choose({"TURNSTORE_TEST_MONGODB_URI": "mongodb://h"}).kind == "uri"


def test_embedded_one_is_taken_where_there_is_nothing_else() -> None:
    choice = choose({})
    assert choice.kind == "embedded"
    assert choice.why == (f"no TURNSTORE_TEST_MONGODB_URI; no container engine answers; {find_mongod(None)}")


def test_embedded_one_can_be_forced() -> None:
    environment = {"TURNSTORE_TEST_MONGODB_URI": "mongodb://h", "TURNSTORE_TEST_MONGODB": "embedded"}
    assert choose(environment).kind == "embedded"


@pytest.mark.parametrize(
    ("forced", "problem"),
    [
        ("uri", "no TURNSTORE_TEST_MONGODB_URI"),
        ("container", "no container engine answers"),
        ("docker", "must be one of uri, container, embedded"),
        ("", "must be one of uri, container, embedded"),
    ],
)
def test_kind_that_cannot_be_had_fails(forced: str, problem: str) -> None:
    with pytest.raises(NoDatabaseError, match=problem):
        choose({"TURNSTORE_TEST_MONGODB": forced})


def test_embedded_one_that_cannot_be_had_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("turnstore_service.embedded.binary.PACKAGE", "a-distribution-that-nobody-has")
    with pytest.raises(NoDatabaseError, match="no MongoDB for the tests: no TURNSTORE_TEST_MONGODB_URI; "):
        choose({})


def test_settings_of_the_shell_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTORE_MONGODB_URI", "mongodb://production")
    monkeypatch.setenv("TURNSTORE_TEST_MONGODB_IMAGE", "mongo:7")
    forget_settings()
    assert "TURNSTORE_MONGODB_URI" not in os.environ
    assert os.environ["TURNSTORE_TEST_MONGODB_IMAGE"] == "mongo:7"
