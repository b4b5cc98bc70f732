"""When a call is made again."""

import itertools
import time

import grpc
import pytest

from tests.client.scripted_service import Refusal
from turnstore.errors import TurnstoreError, error_from_status
from turnstore.retry import LONGEST_DELAY, Deadline, backoff, delay_before_retry

Code = grpc.StatusCode


def error_of(code: grpc.StatusCode, reason: str = "", retry_seconds: float | None = None) -> TurnstoreError:
    details = Refusal(code, reason, retry_seconds=retry_seconds).details()
    return error_from_status(code, "no", [("grpc-status-details-bin", details)])


REPEATED = [
    error_of(Code.UNAVAILABLE),
    error_of(Code.CANCELLED),
    error_of(Code.UNAVAILABLE, "STORE_UNAVAILABLE"),
    error_of(Code.UNAVAILABLE, "STORE_UNAVAILABLE", 0.25),
    error_of(Code.ABORTED, "SOMETHING_NEW", 0.05),
    error_of(Code.RESOURCE_EXHAUSTED, "SOMETHING_NEW", 0.05),
    error_of(Code.RESOURCE_EXHAUSTED, "", 0.05),
]
NOT_REPEATED = [
    error_of(Code.ABORTED, "REVISION_MISMATCH", 0.05),
    error_of(Code.ABORTED, "HISTORY_CHANGED", 0.05),
    error_of(Code.ABORTED, "CONVERSATION_LOCKED", 0.05),
    error_of(Code.ABORTED),
    error_of(Code.RESOURCE_EXHAUSTED),
    error_of(Code.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE"),
    error_of(Code.DEADLINE_EXCEEDED),
    error_of(Code.DEADLINE_EXCEEDED, "STORE_UNAVAILABLE", 0.05),
    error_of(Code.FAILED_PRECONDITION, "LEASE_LOST", 0.05),
    error_of(Code.FAILED_PRECONDITION, "RESPONSE_FINISHED"),
    error_of(Code.INVALID_ARGUMENT, "INVALID_FIELD"),
    error_of(Code.NOT_FOUND, "RESPONSE_NOT_FOUND"),
    error_of(Code.ALREADY_EXISTS, "RESPONSE_EXISTS"),
    error_of(Code.INTERNAL, "INTERNAL_ERROR"),
    error_of(Code.UNIMPLEMENTED),
    error_of(Code.UNAUTHENTICATED, "CREDENTIAL_INVALID"),
    error_of(Code.PERMISSION_DENIED, "NAMESPACE_DENIED"),
    error_of(Code.DATA_LOSS, "DATA_MISSING"),
    error_of(Code.UNKNOWN),
]


def name(error: TurnstoreError) -> str:
    return f"{error.code.name}-{error.reason}-{error.retry_delay}"


@pytest.mark.parametrize("error", REPEATED, ids=name)
def test_is_made_again(error: TurnstoreError) -> None:
    assert delay_before_retry(error, 1, 0.5, wait_for_ready=True) is not None


@pytest.mark.parametrize("error", NOT_REPEATED, ids=name)
def test_is_not_made_again(error: TurnstoreError) -> None:
    assert delay_before_retry(error, 1, 0.5, wait_for_ready=True) is None


def test_service_out_of_reach_is_not_waited_for_when_not_wanted() -> None:
    assert delay_before_retry(error_of(Code.UNAVAILABLE), 1, 0.5, wait_for_ready=False) is None


def test_database_out_of_reach_is_waited_for_all_the_same() -> None:
    error = error_of(Code.UNAVAILABLE, "STORE_UNAVAILABLE", 0.25)
    assert delay_before_retry(error, 1, 0.5, wait_for_ready=False) is not None


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_never_before_the_time_that_the_service_names(jitter: float) -> None:
    delay = delay_before_retry(error_of(Code.UNAVAILABLE, "X", 3.0), 1, jitter, wait_for_ready=True)
    assert delay is not None
    assert 3.0 <= delay <= 3.75


def test_delays_grow_to_the_longest() -> None:
    delays = [backoff(attempt, 0.0) for attempt in range(1, 2000)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(delays))
    assert delays[0] == 0.05
    assert delays[-1] == LONGEST_DELAY


def test_jitter_takes_away_up_to_half() -> None:
    assert backoff(3, 1.0) == backoff(3, 0.0) / 2


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeout_is_above_zero(timeout: float) -> None:
    with pytest.raises(ValueError, match="above zero"):
        Deadline.after(timeout)


def test_deadline_that_has_passed_never_becomes_no_deadline() -> None:
    deadline = Deadline(1.0, time.monotonic() - 5)
    assert deadline.remaining() == deadline.for_try() == 0.001


def test_a_try_leaves_time_to_find_out_why_nothing_answered() -> None:
    assert Deadline.after(100).for_try() == pytest.approx(99.8, abs=0.1)
    assert Deadline.after(1).for_try() == pytest.approx(0.9, abs=0.05)
