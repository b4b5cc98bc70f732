"""That the metrics of a service on a real MongoDB count what they say, and nothing that callers could make up."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.model import MODEL_SAFE, Policy, RefusedError
from tests.service_driver import ServiceDriver
from tests.service_process import RunningService, service_in_process
from turnstore.v1 import errors_pb2, history_service_pb2, response_pb2
from turnstore.v1 import history_service_pb2 as rpc
from turnstore_service.operations.metrics import CODE_NAMES, DATABASE_OPERATIONS, DATABASE_OUTCOMES, Metrics
from turnstore_service.replay.values import Reason, Status
from turnstore_service.server import SERVED

SERVICE = history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"]
METHODS = {(service.full_name, method.name) for service in SERVED for method in service.methods} | {
    ("unknown", "unknown")
}


@pytest.fixture
async def service(mongodb_uri: str, database_name: str) -> AsyncIterator[RunningService]:
    async with service_in_process(mongodb_uri=mongodb_uri, mongodb_database=database_name) as service:
        yield service


@pytest.fixture
def driver(service: RunningService) -> ServiceDriver:
    return ServiceDriver(service.channel, "acme")


def _series(metrics: Metrics) -> dict[tuple[Any, ...], float]:
    """All samples by name and labels, but for those of the process, whose number is Python's affair."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if not sample.name.startswith(("process_", "python_"))
    }


def _by_label(metrics: Metrics, name: str, label: str) -> dict[str, float]:
    """The values of a counter that are not 0, by a label."""
    found: Counter[str] = Counter()
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == name and sample.value:
                found[sample.labels[label]] += int(sample.value)
    return dict(found)


def _value(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name)


def _message(item_id: str, role: str = "user", text: str = "hi") -> str:
    kind = "input_text" if role == "user" else "output_text"
    return (
        f'{{"type":"message","id":"{item_id}","role":"{role}","status":"completed",'
        f'"content":[{{"type":"{kind}","text":"{text}"}}]}}'
    )


def _turn(response_id: str, status: str = "COMPLETED", **fields: Any) -> dict[str, Any]:
    items = {
        "input_items": [_message(f"{response_id}-in")],
        "output_items": [_message(f"{response_id}-out", "assistant")],
    }
    return {"id": response_id, "status": status, "conversation_id": "c", **items, **fields}


async def _refusal(call: Any) -> None:
    with pytest.raises(RefusedError):
        await call


LABEL_SETS: dict[str, set[tuple[str, ...]]] = {
    "grpc_server_started": {(service, method) for service, method in METHODS},
    "grpc_server_handling_seconds": {(service, method) for service, method in METHODS},
    "grpc_server_handled": {
        (code, service, method) for service, method in METHODS for code in CODE_NAMES.values()
    },
    "turnstore_database_calls": {(one, other) for one in DATABASE_OPERATIONS for other in DATABASE_OUTCOMES},
    "turnstore_database_call_seconds": {(operation,) for operation in DATABASE_OPERATIONS},
    "turnstore_turns_stored": {(status.name.lower(),) for status in Status},
    "turnstore_items_left_out": {(reason.name.lower(),) for reason in Reason},
    "turnstore_errors": {
        (value.name.removeprefix("ERROR_REASON_").lower(),)
        for value in errors_pb2.DESCRIPTOR.enum_types_by_name["ErrorReason"].values
    },
    **{
        name: {()}
        for name in (
            "turnstore_ready",
            "turnstore_workers",
            "turnstore_database_wait_seconds",
            "turnstore_database_calls_in_progress",
            "turnstore_database_calls_limit",
            "turnstore_appends_retried",
            "turnstore_history_items",
        )
    },
}
"""Every metric but those of the process and the build, with its label values in the order of the labels' names,
without `grpc_type`, which follows from the method, and `le`."""


def test_every_metric_is_there_from_the_start_with_all_its_label_sets() -> None:
    found: dict[str, set[tuple[str, ...]]] = {}
    for family in Metrics(SERVED).registry.collect():
        if family.name.startswith(("process_", "python_")) or family.type == "info":
            continue
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in {"grpc_type", "le"}}
            # grpc_code, grpc_method, grpc_service: the method is told after its service here
            names = sorted(labels, key=lambda name: (name == "grpc_method", name))
            found.setdefault(family.name, set()).add(tuple(labels[name] for name in names))
            assert sample.value == 0, sample
    assert found == LABEL_SETS


def test_statuses_reasons_and_errors_are_those_of_the_contract() -> None:
    statuses = response_pb2.ResponseStatus.keys()
    assert {("unspecified",)} | LABEL_SETS["turnstore_turns_stored"] == {
        (name.removeprefix("RESPONSE_STATUS_").lower(),) for name in statuses
    }


async def test_calls_make_no_series(service: RunningService, driver: ServiceDriver) -> None:
    before = _series(service.metrics)
    for number in range(3):
        caller = ServiceDriver(service.channel, f"namespace-{number}")
        await caller.store(f"user-{number}", _turn(f"r-{number}", "FAILED", conversation_id=f"c-{number}"))
        await caller.resolve(f"user-{number}", conversation_id=f"c-{number}", explain=True, view="FULL")
        await _refusal(caller.get(None, f"none-{number}"))
        await caller.delete_conversation(f"user-{number}", f"c-{number}")
        await caller.delete_user_data(f"user-{number}")
    for path in (
        "/turnstore.v1.HistoryService/MadeUp",
        "/made.up.Service/Method",
        "/turnstore.v1.Other/GetResponse",
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await service.channel.unary_unary(path)(b"", timeout=30)
    for method in SERVICE.methods:
        with pytest.raises(grpc.aio.AioRpcError):
            await service.channel.unary_unary(f"/{SERVICE.full_name}/{method.name}")(b"\xff", timeout=30)
    after = _series(service.metrics)
    assert set(after) == set(before)
    assert after != before


async def test_stored_turns_count_by_the_status_that_they_are_left_in(
    service: RunningService, driver: ServiceDriver
) -> None:
    for status in ("COMPLETED", "COMPLETED", "FAILED", "CANCELLED", "INCOMPLETE", "QUEUED", "IN_PROGRESS"):
        number = _by_label(service.metrics, "turnstore_turns_stored_total", "status")
        await driver.store(None, _turn(f"r{sum(number.values())}", status))
    assert _by_label(service.metrics, "turnstore_turns_stored_total", "status") == {
        "completed": 2,
        **dict.fromkeys(("failed", "cancelled", "incomplete", "queued", "in_progress"), 1),
    }


async def test_writes_that_are_refused_are_not_counted_as_stored(
    service: RunningService, driver: ServiceDriver
) -> None:
    await driver.store(None, _turn("r", "FAILED"))
    await _refusal(driver.store(None, _turn("r", "IN_PROGRESS")))
    await _refusal(driver.store(None, _turn("other", previous_response_id="none", conversation_id="")))
    assert _by_label(service.metrics, "turnstore_turns_stored_total", "status") == {"failed": 1}


async def test_update_counts_by_its_new_status(service: RunningService, driver: ServiceDriver) -> None:
    await driver.store(None, _turn("r", "IN_PROGRESS"))
    await driver.store(None, _turn("r", "COMPLETED"))
    assert _by_label(service.metrics, "turnstore_turns_stored_total", "status") == {
        "in_progress": 1,
        "completed": 1,
    }


async def test_items_left_out_are_those_that_an_explanation_names(
    service: RunningService, driver: ServiceDriver
) -> None:
    await driver.store(None, _turn("good"))
    await driver.store(None, _turn("failed", "FAILED"))
    await driver.store(None, _turn("hidden"))
    await driver.set_replay_exclusion(None, "hidden", True)
    await driver.store(None, _turn("cancelled", "CANCELLED"))
    await driver.store(None, _turn("incomplete", "INCOMPLETE"))
    await driver.store(None, _turn("running", "IN_PROGRESS"))
    call = '{"type":"function_call","id":"call","call_id":"k1","name":"lookup","arguments":"{}"}'
    output = '{"type":"function_call_output","id":"output","call_id":"k2","output":"{}"}'
    await driver.store(None, _turn("tools", input_items=[output, _message("tools-in")], output_items=[call]))
    await driver.store(None, _turn("last"))  # calls of the last turn may still be answered
    policy = Policy("EXCLUDE", "EXCLUDE", "EXCLUDE", "PAIRED", "EXACT")
    history = await driver.resolve(None, conversation_id="c", policy=policy, explain=True, view="FULL")
    explained = Counter[str]()
    for exclusion in history.exclusions:
        explained[exclusion.reason.lower()] += len(exclusion.item_ids)
    assert explained == {
        **dict.fromkeys(("failed", "excluded_by_caller", "cancelled", "incomplete", "in_flight"), 2),
        **dict.fromkeys(("unpaired_call", "unpaired_output"), 1),
    }
    assert _by_label(service.metrics, "turnstore_items_left_out_total", "reason") == explained


@pytest.mark.parametrize("view", ["ITEM_IDS", "FULL"])
async def test_items_left_out_count_without_an_explanation_too(
    service: RunningService, driver: ServiceDriver, view: str
) -> None:
    await driver.store(None, _turn("good"))
    await driver.store(None, _turn("cancelled", "CANCELLED"))
    call = '{"type":"function_call","id":"call","call_id":"k1","name":"lookup","arguments":"{}"}'
    await driver.store(None, _turn("tools", output_items=[call]))
    await driver.store(None, _turn("last"))
    policy = Policy("EXCLUDE", "INCLUDE", "INCLUDE", "PAIRED", "EXACT")
    history = await driver.resolve(None, conversation_id="c", policy=policy, view=view)
    assert len(history.items) == 5
    assert _by_label(service.metrics, "turnstore_items_left_out_total", "reason") == {
        "cancelled": 2,
        "unpaired_call": 1,
    }


async def test_sizes_of_histories_are_counted_once_a_history(mongodb_uri: str, database_name: str) -> None:
    async with service_in_process(
        mongodb_uri=mongodb_uri, mongodb_database=database_name, max_reply_bytes="64KiB"
    ) as service:
        driver = ServiceDriver(service.channel, "acme")
        for number in range(3):
            await driver.store(
                None, _turn(f"r{number}", output_items=[_message(f"o{number}", "assistant", "x" * 40_000)])
            )
        history = await driver.resolve(None, conversation_id="c", view="FULL")
        assert len(history.items) == 6
        assert _by_label(service.metrics, "grpc_server_started_total", "grpc_method")["ResolveHistory"] > 1
        assert _value(service.metrics, "turnstore_history_items_count") == 1
        assert _value(service.metrics, "turnstore_history_items_sum") == 6
        await driver.resolve(None, conversation_id="c", limit=2)
        assert _value(service.metrics, "turnstore_history_items_count") == 2
        assert _value(service.metrics, "turnstore_history_items_sum") == 8


async def test_errors_count_by_their_reason(service: RunningService, driver: ServiceDriver) -> None:
    await driver.store(None, _turn("r", "FAILED"))
    for _ in range(2):
        await _refusal(driver.get(None, "none"))
    await _refusal(driver.store(None, _turn("r", "COMPLETED")))
    await _refusal(driver.store(None, _turn("r", "FAILED", conversation_id="other")))
    await _refusal(driver.store(None, _turn("r", "COMPLETED"), expected_revision=7))
    await _refusal(driver.store(None, _turn("r", "COMPLETED"), expected_revision=0))
    await _refusal(driver.store(None, _turn("other", conversation_id="", previous_response_id="none")))
    await driver.store(None, _turn("first"))
    await _refusal(driver.store(None, _turn("second", input_items=[_message("first-in")])))
    await _refusal(driver.get(None, ""))
    with pytest.raises(grpc.aio.AioRpcError):
        await service.channel.unary_unary(f"/{SERVICE.full_name}/RenewLease")(
            rpc.RenewLeaseRequest().SerializeToString(), timeout=30
        )
    assert _by_label(service.metrics, "turnstore_errors_total", "reason") == {
        "response_not_found": 2,
        "response_finished": 1,
        "link_changed": 1,
        "revision_mismatch": 1,
        "response_exists": 1,
        "parent_not_found": 1,
        "duplicate_item": 1,
        "invalid_field": 1,
        "unspecified": 1,
    }


async def test_append_that_loses_its_place_is_counted(mongodb_uri: str, database_name: str) -> None:
    settings = {"mongodb_uri": mongodb_uri, "mongodb_database": database_name}
    async with service_in_process(**settings) as one, service_in_process(**settings) as other:
        await ServiceDriver(one.channel, "acme").store(None, _turn("first"))
        await ServiceDriver(other.channel, "acme").store(None, _turn("second"))
        assert _value(one.metrics, "turnstore_appends_retried_total") == 0
        # The first service remembers the place that the second one has taken since.
        await ServiceDriver(one.channel, "acme").store(None, _turn("third"))
        assert _value(one.metrics, "turnstore_appends_retried_total") == 1
        assert _value(other.metrics, "turnstore_appends_retried_total") == 0
        conflicts = {("operation", "insert"), ("outcome", "conflict")}
        (lost,) = [value for key, value in _series(one.metrics).items() if conflicts <= set(key[1:])]
        assert lost == 1


async def test_no_database_call_stays_in_progress(mongodb_uri: str, database_name: str) -> None:
    settings = {"mongodb_uri": mongodb_uri, "mongodb_database": database_name, "pool_size": 2}
    async with service_in_process(**settings) as service:
        driver = ServiceDriver(service.channel, "acme")
        await driver.store(None, _turn("r"))
        calls = [asyncio.create_task(driver.resolve(None, conversation_id="c")) for _ in range(40)]
        calls += [asyncio.create_task(_refusal(driver.get(None, "none"))) for _ in range(40)]
        await calls[0]
        for call in calls[1::2]:  # some run, most wait for their turn
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await _settled(service)
        assert _value(service.metrics, "turnstore_database_calls_in_progress") == 0


async def _settled(service: RunningService) -> None:
    """Waits until every call that was begun has ended: that of a caller who goes away ends a moment later."""
    async with asyncio.timeout(30):
        while True:
            series = _series(service.metrics)
            started = sum(value for key, value in series.items() if key[0] == "grpc_server_started_total")
            handled = sum(value for key, value in series.items() if key[0] == "grpc_server_handled_total")
            if started == handled:
                return
            await asyncio.sleep(0.01)


async def test_database_call_is_in_progress_while_it_runs(
    service: RunningService, driver: ServiceDriver
) -> None:
    seen: set[float | None] = set()

    async def look() -> None:
        while True:
            seen.add(_value(service.metrics, "turnstore_database_calls_in_progress"))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await driver.store(None, _turn("r"))
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    assert max(value for value in seen if value is not None) >= 1
    assert _value(service.metrics, "turnstore_database_calls_in_progress") == 0


async def test_database_calls_count_by_operation_and_outcome(
    service: RunningService, driver: ServiceDriver
) -> None:
    before = _series(service.metrics)
    await driver.store(None, _turn("r"))
    await driver.resolve(None, conversation_id="c", policy=MODEL_SAFE)
    after = _series(service.metrics)
    grown = {
        (dict(key[1:])["operation"], dict(key[1:])["outcome"]): value - before[key]
        for key, value in after.items()
        if key[0] == "turnstore_database_calls_total" and value != before[key]
    }
    assert grown[("insert", "ok")] == 1
    assert {outcome for _, outcome in grown} == {"ok"}
    timed = sum(
        after[key] - before[key] for key in after if key[0] == "turnstore_database_call_seconds_count"
    )
    assert timed == sum(grown.values())
    waited = ("turnstore_database_wait_seconds_count",)
    assert after[waited] - before[waited] == timed
