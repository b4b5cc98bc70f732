"""The demonstration tells the truth: it passes on the service as it is, and fails on one with the bug."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import turnstore_service
from tests.processes import mongods_on
from tests.service_process import clean_environment

PACKAGE = Path(turnstore_service.__file__).parent
COMMAND = [sys.executable, "-m", "turnstore_service.demo"]
SECONDS = 90
LAST_LINE = re.compile(r"demo: (\d+) of (\d+) answers as the rules say")

FAILED_FILTER: Sequence[tuple[str, str, str]] = (
    (
        "replay/rules.py",
        "    if status is Status.FAILED:\n        return Reason.FAILED\n",
        "",
    ),
    (
        "storage/mongo/documents.py",
        "    return status is not Status.FAILED and not excluded\n",
        "    return not excluded\n",
    ),
)
"""File, text and replacement for each place that keeps failed turns out: the rule, and the index of turns that
replay reads."""


# What a developer's shell may hold. The demo has a service and a store of its own, so nothing of it may matter.
OTHER_SETTINGS = {
    "TURNSTORE_MONGODB_URI": "mongodb://127.0.0.1:1/?replicaSet=none",
    "TURNSTORE_DEFAULT_POLICY": "model_safe",
}


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo makes its folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(tmp_path: Path, temporary: Path) -> dict[str, str]:
    return {**clean_environment({}), "TMPDIR": str(temporary), "PYTHONPATH": str(tmp_path / "copy")}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> "subprocess.CompletedProcess[str]":
    """The demo as it is."""
    return _play(clean_environment(OTHER_SETTINGS), tmp_path_factory.mktemp("demo"))


def _copy_package(tmp_path: Path, changes: Sequence[tuple[str, str, str]]) -> None:
    copy = tmp_path / "copy" / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text, replacement in changes:
        source = (copy / name).read_text()
        assert source.count(text) == 1, f"{name} has changed: mend this test"
        (copy / name).write_text(source.replace(text, replacement))


def _play(environment: dict[str, str], tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        COMMAND, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_every_answer_is_right(played: "subprocess.CompletedProcess[str]") -> None:
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stdout.splitlines()[-1] == "demo: 11 of 11 answers as the rules say"
    assert "WRONG" not in played.stdout


def test_tables_fit_a_terminal_of_80_columns(played: "subprocess.CompletedProcess[str]") -> None:
    assert [line for line in played.stdout.splitlines() if len(line) > 80] == []
    assert "\n   turn_2   FAILED       o1    output of call lost           out: FAILED\n" in played.stdout


def test_service_without_the_failed_filter_is_found_out(environment: dict[str, str], tmp_path: Path) -> None:
    _copy_package(tmp_path, FAILED_FILTER)
    played = _play(environment, tmp_path)
    assert played.returncode == 1, played.stdout + played.stderr
    told = LAST_LINE.fullmatch(played.stdout.splitlines()[-1])
    assert told is not None, played.stdout
    # Wrong wherever a failed turn stands on the line: after it failed, and from then on.
    assert told.groups() == ("7", "11")
    assert "WRONG: the next turn is given q1, a1, o1\n" in played.stdout


def test_missing_mongod_is_told(environment: dict[str, str], tmp_path: Path, temporary: Path) -> None:
    played = _play({**environment, "TURNSTORE_MONGOD": str(tmp_path / "none")}, tmp_path)
    assert played.returncode == 1
    assert f"TURNSTORE_MONGOD={tmp_path / 'none'} is no program" in played.stderr
    assert "Traceback" not in played.stderr
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_nothing_is_left_when_it_is_broken_off(
    number: signal.Signals, environment: dict[str, str], tmp_path: Path, temporary: Path
) -> None:
    # In this copy the story waits for ever, so that the signal meets it in the middle; in short steps, since Python
    # would see a signal that comes just before a step only when that has ended.
    waits = "    while True:\n        __import__('time').sleep(0.05)\n"
    _copy_package(tmp_path, [("demo.py", "    _play_conversation(story)\n", waits)])
    with subprocess.Popen(
        COMMAND,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        # Whatever runs in a shell's background inherits that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - it takes no lock
    ) as demo:
        try:
            assert demo.stdout is not None
            said = ""
            while "end with this demo" not in " ".join(said.split()):
                line = demo.stdout.readline()
                assert line, f"it ended: {said}"
                said += line
            (folder,) = temporary.iterdir()
            (mongod,) = mongods_on(folder / "data")
            demo.send_signal(number)
            assert demo.wait(SECONDS) == 128 + number
        finally:
            demo.kill()
    assert list(temporary.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(mongod, 0)
