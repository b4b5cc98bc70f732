"""Files that are read again when they have changed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from tests.credentials import replace
from turnstore_service.operations import live_files
from turnstore_service.operations.live_files import FileError, LiveFiles


def _numbers(path: Path) -> Callable[[], int]:
    def read() -> int:
        text = path.read_text()
        if not text.isdigit():
            raise FileError(f"{path} is no number")
        return int(text)

    return read


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


def test_change_is_seen_at_once(file: Path) -> None:
    files = LiveFiles("the number", [file], _numbers(file))
    assert files.current() == 1
    replace(file, "2")
    assert files.current() == 2


def test_what_was_read_recently_is_not_looked_at_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(live_files.time, "monotonic", lambda: now)
    files = LiveFiles("the number", [file], _numbers(file))
    assert files.recent() == 1
    replace(file, "2")
    now += live_files.LOOK_SECONDS * 0.9
    assert files.recent() == 1
    now += live_files.LOOK_SECONDS * 0.2
    assert files.recent() == 2


def test_what_has_not_changed_is_not_read_again(file: Path) -> None:
    files = LiveFiles("the number", [file], object)
    assert files.current() is files.current()


def test_change_by_a_link_is_seen(tmp_path: Path) -> None:
    """As Kubernetes does it: the file is a link into a folder that is a link."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "number").write_text("1" if name == "old" else "2")
        os.utime(tmp_path / name / "number", ns=(0, 0))
    (tmp_path / "data").symlink_to("old")
    (tmp_path / "number").symlink_to("data/number")
    files = LiveFiles("the number", [tmp_path / "number"], _numbers(tmp_path / "number"))
    assert files.current() == 1
    (tmp_path / "data.new").symlink_to("new")
    (tmp_path / "data.new").replace(tmp_path / "data")
    assert files.current() == 2


@pytest.mark.parametrize("change", ["no number", None], ids=["broken", "removed"])
def test_state_that_cannot_be_used_leaves_the_old_one_and_is_told_once(
    file: Path, change: str | None
) -> None:
    files = LiveFiles("the number", [file], _numbers(file))
    with structlog.testing.capture_logs() as lines:
        if change is None:
            file.unlink()
        else:
            replace(file, change)
        assert [files.current() for _ in range(3)] == [1, 1, 1]
    assert [line["event"] for line in lines] == [
        "the number changed and cannot be used; what was read before stays"
    ]
    assert str(file) in lines[0]["cause"]
    replace(file, "3")
    assert files.current() == 3


def test_files_that_are_just_being_exchanged_are_read_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_text("old")
    during: list[Callable[[], None]] = []

    def read() -> tuple[str, str]:
        found = first.read_text()
        if during:
            during.pop()()
        return found, second.read_text()

    files = LiveFiles("the pair", [first, second], read)
    replace(first, "new")
    during.append(lambda: replace(second, "new"))
    files.current()
    assert files.current() == ("new", "new")
    replace(second, "newer")
    during.append(lambda: replace(first, "newer"))
    assert files.current() == ("new", "new")  # not ("new", "newer"), which never was
    assert files.current() == ("newer", "newer")


@pytest.mark.parametrize("change", ["no number", None], ids=["broken", "missing"])
def test_what_cannot_be_used_at_the_start_is_told(file: Path, change: str | None) -> None:
    if change is None:
        file.unlink()
    else:
        file.write_text(change)
    with pytest.raises(FileError) as refusal:
        LiveFiles("the number", [file], _numbers(file))
    assert str(file) in str(refusal.value)


def test_files_that_never_rest_are_told(file: Path) -> None:
    def read() -> int:
        replace(file, "1")
        return 1

    with pytest.raises(FileError, match="changing all the time"):
        LiveFiles("the number", [file], read)
