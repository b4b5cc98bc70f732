"""Metrics of several processes, added up."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from turnstore.v1 import history_service_pb2
from turnstore_service.operations.metrics import Metrics
from turnstore_service.operations.metrics_sum import Snapshot, add_up, snapshot
from turnstore_service.replay.values import Status

SERVICE = history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"]


class _Given(Collector):
    def __init__(self, snapshots: list[Snapshot]) -> None:
        self._snapshots = snapshots

    def collect(self):  # type: ignore[no-untyped-def]
        return add_up(self._snapshots)


def _registry(*of_processes: Metrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Given([snapshot(metrics.registry) for metrics in of_processes]))
    return registry


def _value(name: str, *of_processes: Metrics, **labels: str) -> float | None:
    return _registry(*of_processes).get_sample_value(name, labels)


def _two() -> tuple[Metrics, Metrics]:
    return Metrics([SERVICE]), Metrics([SERVICE])


def test_counters_are_added_up_by_their_labels() -> None:
    one, other = _two()
    one.turn_stored(Status.FAILED)
    other.turn_stored(Status.FAILED)
    other.turn_stored(Status.COMPLETED)
    assert _value("turnstore_turns_stored_total", one, other, status="failed") == 2
    assert _value("turnstore_turns_stored_total", one, other, status="completed") == 1
    assert _value("turnstore_turns_stored_total", one, other, status="queued") == 0


def test_histograms_are_added_up_bucket_by_bucket() -> None:
    one, other = _two()
    one.database_call("find", "ok", 0.0004, 0.0)
    other.database_call("find", "ok", 0.002, 0.0)
    name = "turnstore_database_call_seconds"
    assert _value(f"{name}_bucket", one, other, operation="find", le="0.0005") == 1
    assert _value(f"{name}_bucket", one, other, operation="find", le="0.0025") == 2
    assert _value(f"{name}_bucket", one, other, operation="find", le="+Inf") == 2
    assert _value(f"{name}_count", one, other, operation="find") == 2


def test_gauges_are_added_up() -> None:
    one, other = _two()
    one.database_call_began()
    other.database_call_began()
    assert _value("turnstore_database_calls_in_progress", one, other) == 2


def test_service_is_ready_when_every_process_is() -> None:
    one, other = _two()
    one.ready.set(1)
    assert _value("turnstore_ready", one, other) == 0
    other.ready.set(1)
    assert _value("turnstore_ready", one, other) == 1


def test_service_began_with_its_first_process() -> None:
    began = [
        ["process_start_time_seconds", "gauge", "h", [["process_start_time_seconds", {}, at]]]
        for at in (7, 5)
    ]
    registry = CollectorRegistry()
    registry.register(_Given([[family] for family in began]))
    assert registry.get_sample_value("process_start_time_seconds") == 5


def test_what_is_running_is_told_once() -> None:
    text = generate_latest(_registry(*_two())).decode()
    (build,) = [line for line in text.splitlines() if line.startswith("turnstore_build_info{")]
    assert build.endswith(" 1.0")


def test_one_process_reads_as_if_it_were_asked_itself() -> None:
    one, _ = _two()
    one.turn_stored(Status.FAILED)
    asked = generate_latest(one.registry).decode().splitlines()
    summed = generate_latest(_registry(one)).decode().splitlines()
    moving = ("process_", "python_gc_")
    assert [line for line in summed if not line.startswith(moving)] == [
        line for line in asked if not line.startswith(moving)
    ]
