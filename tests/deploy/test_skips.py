"""What CI lets pass as skipped."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.skips import allowed, problems
from tests.deploy.tools import ROOT


@pytest.mark.parametrize(
    ("skipped", "permitted", "in_container", "told"),
    [
        (set(), set(), set(), []),
        ({"a"}, {"a"}, {"a"}, []),
        ({"a"}, set(), {"a"}, ["was skipped, which is not allowed: a"]),
        (set(), {"a"}, {"a"}, ["was expected to be skipped: a"]),
        ({"a"}, {"a"}, set(), ["is allowed to be skipped and is no container test: a"]),
    ],
)
def test_skips_are_exactly_those_that_are_allowed(
    skipped: set[str], permitted: set[str], in_container: set[str], told: list[str]
) -> None:
    assert problems(skipped, permitted, in_container) == told


def test_only_tests_of_the_image_are_in_the_list() -> None:
    assert {test.partition("::")[0] for test in allowed()} == {"tests/deploy/test_image.py"}


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_skipped_test_fails_the_run_in_ci_alone(tmp_path: Path, ci: str, status: int) -> None:
    (tmp_path / "test_it.py").write_text("import pytest\ndef test_a():\n    pytest.skip('no tool')\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.deploy.skips", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == status, run.stdout + run.stderr
    assert re.search(r"!!! 1 CHECKS DID NOT RUN !!!.*\nno tool\n  test_it.py::test_a\n", run.stdout)
