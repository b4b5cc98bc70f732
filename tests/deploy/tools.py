"""Programs that the tests of deploy/ need and that no Python package brings."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

_ADVICE = {
    "promtool": "`.ci/tools`, or on Debian: apt-get install prometheus",
    "prometheus": "`.ci/tools`, or on Debian: apt-get install prometheus",
    "kubectl": "`.ci/tools`, or put kubectl 1.27 or newer on the PATH",
}


def tool(name: str) -> str:
    """The path of a program; the test that asks for one that is missing is skipped, with what to do."""
    # Beside the Python of the tests is where .ci/tools puts what it finds no package for.
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip(f"CHECK DID NOT RUN: {name} is missing. Get it by {_ADVICE[name]}")
    return path


def run_tool(*command: str, cwd: Path = ROOT) -> str:
    """What the program wrote to standard output; fails with all that it wrote when its status is not 0."""
    done = subprocess.run(
        [tool(command[0]), *command[1:]], cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout
