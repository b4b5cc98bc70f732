"""The check of expressions finds what it is there to find."""

import pytest

from tests.deploy.expressions import metric_names, problems


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("turnstore_ready == 0", {"turnstore_ready"}),
        ('sum by (job) (rate(a_total{code="b"}[5m])) / c:d_e > 1', {"a_total", "c:d_e"}),
        ("histogram_quantile(0.99, sum by (le) (rate(a_bucket[1h])))", {"a_bucket"}),
        ("a > bool 1 and on (job) b or vector(0)", {"a", "b"}),
        ("sum without (x) (a) unless ignoring (y) b offset 5m", {"a", "b", "m"} - {"m"}),
    ],
)
def test_names_are_found(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("turnstore_redy", "nobody gives turnstore_redy"),
        ('turnstore_ready{colour="red"}', "turnstore_ready has no label colour"),
        (
            'turnstore_errors_total{reason="data_mising"}',
            "turnstore_errors_total has never reason=data_mising",
        ),
        (
            'turnstore_turns_stored_total{status=~"completed|fialed"}',
            "turnstore_turns_stored_total has never status=fialed",
        ),
        (
            'grpc_server_handling_seconds_bucket{le="0.3"}',
            "grpc_server_handling_seconds_bucket has never le=0.3",
        ),
    ],
)
def test_what_nobody_gives_is_told(expression: str, problem: str) -> None:
    assert problems(expression, []) == [problem]


def test_what_rules_record_and_prometheus_adds_is_known() -> None:
    assert problems('a:b{job="x"} / up{job="x", instance=~".*"} + turnstore_ready{job="x"}', ["a:b"]) == []
