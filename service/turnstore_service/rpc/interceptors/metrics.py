"""Counts and times calls."""

import time
from typing import Any

import grpc

from turnstore_service.operations.metrics import MethodMetrics, Metrics
from turnstore_service.rpc.interceptors.around import Around


class CallMetrics(Around[tuple[MethodMetrics, float]]):
    """Keeps the `grpc_server_*` metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def begin(self, method: str, _context: Any) -> tuple[MethodMetrics, float]:
        """Counts the start."""
        series = self._metrics.methods.get(method, self._metrics.unknown_method)
        series.started.inc()
        return series, time.perf_counter()

    def end(
        self,
        call: tuple[MethodMetrics, float],
        code: grpc.StatusCode,
        _error: BaseException | None,
    ) -> None:
        """Counts the end and the time between."""
        series, began = call
        series.handled[code].inc()
        series.handling.observe(time.perf_counter() - began)

    def unknown(self) -> None:
        """Counts it with all others of its kind."""
        self._metrics.unknown_method.started.inc()
        self._metrics.unknown_method.handled[grpc.StatusCode.UNIMPLEMENTED].inc()
