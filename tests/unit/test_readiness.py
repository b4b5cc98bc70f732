import pytest

from turnstore_service.operations.health import Readiness


def _row(checks: str) -> str:
    """Readiness after each check: + and - are checks, R is ready, . is not."""
    readiness = Readiness()
    shown = ""
    for check in checks:
        before = readiness.ready
        changed = readiness.observe(check == "+")
        assert changed == (readiness.ready != before)
        shown += "R" if readiness.ready else "."
    return shown


@pytest.mark.parametrize(
    ("checks", "shown"),
    [
        ("+", "R"),
        ("--+", "..R"),
        ("+--+--+", "RRRRRRR"),
        ("+---", "RRR."),
        ("+---+", "RRR.."),
        ("+---++", "RRR..R"),
        ("+---+-++", "RRR....R"),
    ],
)
def test_readiness_follows_with_hysteresis(checks: str, shown: str) -> None:
    assert _row(checks) == shown
