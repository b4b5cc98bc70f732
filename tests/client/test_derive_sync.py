"""The plain client is what is derived from the async one."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "clients" / "python" / "derive_sync.py"


@pytest.fixture(scope="module")
def derive_sync() -> ModuleType:
    spec = importlib.util.spec_from_file_location("derive_sync", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("async def f():\n    return await g()\n", "def f():\n    return g()\n"),
        ("async with a as b:\n    pass\n", "with a as b:\n    pass\n"),
        ("async for a in b:\n    pass\n", "for a in b:\n    pass\n"),
        ("c = [a async for a in b]\n", "c = [a for a in b]\n"),
        ("await asyncio.sleep(1)\n", "time.sleep(1)\n"),
        ("x = (await\n     f())\n", "x = (\n     f())\n"),
        ("def f() -> AsyncIterator[AsyncCalls]: ...\n", "def f() -> Iterator[Calls]: ...\n"),
        ("# an AsyncHistoryClient, async\n", "# an HistoryClient, async\n"),
        ('"""Use AsyncHistoryClient:\n\nasync."""\n', '"""Use HistoryClient:\n\nasync."""\n'),
        ("asynchronously = awaited = 1\n", "asynchronously = awaited = 1\n"),
    ],
)
def test_async_words_are_taken_out(derive_sync: ModuleType, source: str, plain: str) -> None:
    assert derive_sync.derive(source) == plain


def check(script: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, script, "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=SCRIPT.parents[2],
    )


def test_committed_client_is_the_derived_one() -> None:
    done = check(SCRIPT)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The script with a copy of both clients, and the settings of the formatter."""
    root = SCRIPT.parents[2]
    folder = tmp_path / "clients" / "python"
    shutil.copytree(SCRIPT.parent / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SCRIPT, folder)
    shutil.copy(SCRIPT.parent / "pyproject.toml", folder)
    shutil.copy(root / "pyproject.toml", tmp_path)
    return folder / SCRIPT.name


def test_change_of_the_async_client_alone_is_noticed_and_carried_over(copied: Path) -> None:
    source = copied.parent / "src" / "turnstore" / "asynchronous" / "calls.py"
    source.write_text(source.read_text() + "\n\nasync def added() -> None:\n    await asyncio.sleep(0)\n")
    assert check(copied).returncode == 1
    subprocess.run([sys.executable, copied], check=True)
    assert check(copied).returncode == 0
    derived = copied.parent / "src" / "turnstore" / "synchronous" / "calls.py"
    assert derived.read_text().endswith("\n\ndef added() -> None:\n    time.sleep(0)\n")


def test_module_that_has_no_source_any_more_is_noticed_and_removed(copied: Path) -> None:
    left = copied.parent / "src" / "turnstore" / "synchronous" / "left.py"
    left.write_text("")
    assert "left.py" in check(copied).stdout
    subprocess.run([sys.executable, copied], check=True)
    assert not left.exists()


def test_phrase_that_stands_nowhere_any_more_is_noticed(copied: Path) -> None:
    source = copied.parent / "src" / "turnstore" / "asynchronous" / "client.py"
    source.write_text(source.read_text().replace("`async with` block", "block"))
    done = check(copied)
    assert done.returncode == 1
    assert "stands 0 times" in done.stderr
