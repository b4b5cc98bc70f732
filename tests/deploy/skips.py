"""A pytest plugin that does not let skipped tests go by unseen: `pytest -p tests.deploy.skips`.

It tells at the end, loudly, which tests did not run and why. In CI (the variable CI is `true`) it also fails the run
unless they are exactly those of skips_allowed.txt where no container engine with the images is there, and none where
one is. Only tests that are marked `container` may stand in that file.
"""

import os
from pathlib import Path

import pytest

from tests.deploy.engine import missing

ALLOWED_FILE = Path(__file__).with_name("skips_allowed.txt")


def allowed() -> set[str]:
    """The ids of the tests in the file."""
    lines = ALLOWED_FILE.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def problems(skipped: set[str], permitted: set[str], in_container: set[str]) -> list[str]:
    """A sentence for each test that was skipped and may not be, and the other way round.

    Args:
        skipped: Ids of the tests that were skipped.
        permitted: Ids of those that have to be.
        in_container: Ids of the tests that are marked `container`, of those in either.
    """
    found = [f"was skipped, which is not allowed: {test}" for test in sorted(skipped - permitted)]
    found += [f"was expected to be skipped: {test}" for test in sorted(permitted - skipped)]
    found += [
        f"is allowed to be skipped and is no container test: {test}"
        for test in sorted(permitted - in_container)
    ]
    return found


class _Watch:
    """Sees the reports of a run, also those of parallel test processes."""

    def __init__(self) -> None:
        self.skipped: dict[str, str] = {}
        self.in_container: set[str] = set()
        self.problems: list[str] = []

    def _see(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.skipped[report.nodeid] = reason.removeprefix("Skipped: ")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._see(report)
        if "container" in report.keywords:
            self.in_container.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._see(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if os.environ.get("CI") == "true":
            permitted = allowed() if missing() else set()
            self.problems = problems(set(self.skipped), permitted, self.in_container)
            if self.problems:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.section(f"{len(self.skipped)} CHECKS DID NOT RUN", sep="!")
            for reason in sorted(set(self.skipped.values())):
                tests = sorted(test for test, why in self.skipped.items() if why == reason)
                terminalreporter.line(f"{reason}\n  " + "\n  ".join(tests))
        for problem in self.problems:
            terminalreporter.line(f"ERROR {problem} (see tests/deploy/skips.py)")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that started the workers sees all of their reports
        config.pluginmanager.register(_Watch(), "skips-watch")
