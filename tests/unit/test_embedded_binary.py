import importlib.metadata
import re
from pathlib import Path

import pytest

from turnstore_service.embedded import binary
from turnstore_service.embedded.binary import find_mongod
from turnstore_service.embedded.errors import EmbeddedMongodError


def _program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_named_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path / "path" / "mongod")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    named = _program(tmp_path / "mongod-8")
    assert find_mongod(str(named)) == named


def test_named_program_is_looked_up_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = _program(tmp_path / "mongod-8")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_mongod("mongod-8") == named


def test_named_program_in_the_home_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = _program(tmp_path / "mongod")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_mongod("~/mongod") == named


def test_path_comes_before_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = _program(tmp_path / "mongod")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_mongod(None) == on_path


def test_package_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    packaged = find_mongod(None)
    assert packaged.parent.name == "bin"
    assert Path(str(importlib.metadata.distribution(binary.PACKAGE).locate_file(""))) in packaged.parents


def test_wrong_name_is_told_and_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedMongodError, match=f"TURNSTORE_MONGOD={tmp_path}/none is no program"):
        find_mongod(f"{tmp_path}/none")


def test_no_mongod_at_all_is_told_with_the_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binary, "PACKAGE", "a-distribution-that-nobody-has")
    with pytest.raises(EmbeddedMongodError) as refusal:
        find_mongod(None)
    assert re.search(
        r"TURNSTORE_MONGODB_URI=.*turnstore-service\[embedded\].*compose", str(refusal.value), re.DOTALL
    )
