"""The connection string may be in a file, as secrets are mounted."""

from pathlib import Path

import pytest

from turnstore_service.operations.settings import SettingsError, load_settings

URI = "mongodb://user:s3cret@db.example:27017/?replicaSet=rs0"


def _problems(monkeypatch: pytest.MonkeyPatch, path: Path) -> str:
    monkeypatch.setenv("TURNSTORE_MONGODB_URI_FILE", str(path))
    with pytest.raises(SettingsError) as caught:
        load_settings()
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize("end", ["", "\n"])
def test_uri_is_what_the_file_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str) -> None:
    (tmp_path / "uri").write_text(URI + end)
    monkeypatch.setenv("TURNSTORE_MONGODB_URI_FILE", str(tmp_path / "uri"))
    assert load_settings().mongodb_uri == URI


def test_missing_file_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "uri"
    assert (
        _problems(monkeypatch, path)
        == f"TURNSTORE_MONGODB_URI_FILE={path} cannot be read: No such file or directory."
    )


def test_file_that_is_no_text_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "uri"
    path.write_bytes(b"\xff\xfe")
    assert (
        _problems(monkeypatch, path) == f"TURNSTORE_MONGODB_URI_FILE={path} cannot be read: it is not UTF-8."
    )


def test_bad_uri_is_told_without_its_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "uri"
    path.write_text("postgres://user:s3cret@db.example")
    told = _problems(monkeypatch, path)
    assert told.startswith(f"TURNSTORE_MONGODB_URI_FILE={path}: its text must begin with mongodb://")
    assert "s3cret" not in told


def test_both_ways_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "uri"
    path.write_text(URI)
    monkeypatch.setenv("TURNSTORE_MONGODB_URI", URI)
    assert (
        _problems(monkeypatch, path)
        == "TURNSTORE_MONGODB_URI and TURNSTORE_MONGODB_URI_FILE are both set: one is enough."
    )
