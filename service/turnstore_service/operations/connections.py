"""How long connections live, as options of a gRPC server."""

from collections.abc import Sequence
from datetime import timedelta

from turnstore_service.operations.settings import Settings


def connection_options(settings: Settings) -> Sequence[tuple[str, int]]:
    """Keepalive in both directions, and the age at which connections end."""
    options = [
        ("grpc.keepalive_time_ms", _milliseconds(settings.keepalive_time)),
        ("grpc.keepalive_timeout_ms", _milliseconds(settings.keepalive_timeout)),
        # A caller whose machine has gone must not keep a connection only because it has no call.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(settings.keepalive_min_interval)),
    ]
    if settings.max_connection_age is not None:
        options.append(("grpc.max_connection_age_ms", _milliseconds(settings.max_connection_age)))
        options.append(("grpc.max_connection_age_grace_ms", _milliseconds(settings.max_connection_age_grace)))
    return options


def _milliseconds(duration: timedelta) -> int:
    # The library takes 32 bits, and the largest of them for "never".
    return min(duration // timedelta(milliseconds=1), 2**31 - 1)
