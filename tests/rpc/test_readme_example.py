"""The README's example of a client does what the README says."""

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import StartService
from tests.service_process import clean_environment

README = (Path(__file__).parents[2] / "README.md").read_text()
DEFAULT_TARGET = "127.0.0.1:50051"


def test_example_prints_what_stands_below_it(start_service: StartService, tmp_path: Path) -> None:
    ((program, output),) = re.findall(
        r"<!-- example -->\n```python\n(.*?)```\n\n```text\n(.*?)```\n<!-- /example -->", README, re.DOTALL
    )
    assert program.count(DEFAULT_TARGET) == 1
    service = start_service().wait_ready()
    ran = subprocess.run(
        [sys.executable, "-c", program.replace(DEFAULT_TARGET, service.target)],
        env=clean_environment({}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, output), ran.stderr
