"""Whether calls are traced, and what it takes: the extra `otel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstore_service.operations.live_files import FileError
from turnstore_service.operations.settings import Settings

if TYPE_CHECKING:
    from turnstore_service.operations.spans import Spans


def open_tracing(settings: Settings) -> Spans | None:
    """What makes spans and sends them; None when calls are not traced.

    Everything but whether they are is configured by the variables that OpenTelemetry defines (OTEL_*).

    Raises:
        FileError: The extra is missing, or a variable asks for what there is not.
    """
    if settings.otel == "off":
        return None
    try:
        import opentelemetry.exporter.otlp.proto.grpc  # noqa: F401 - it needs all the others
    except ImportError as error:
        raise FileError(
            "TURNSTORE_OTEL=on needs OpenTelemetry: install turnstore-service with its extra `otel`"
        ) from error
    try:
        from turnstore_service.operations.spans import Spans, provider_of_environment

        return Spans(provider_of_environment(), settings.mongodb_database)
    except Exception as error:
        # The library has an exception of its own for nearly every variable.
        cause = str(error).rstrip(".")
        raise FileError(
            f"TURNSTORE_OTEL=on, but OpenTelemetry cannot be set up by its variables (OTEL_*): {cause}"
        ) from error
