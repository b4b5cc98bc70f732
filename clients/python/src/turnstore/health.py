"""Whether a service is there and can serve."""

from __future__ import annotations

from dataclasses import dataclass

SERVING = 1
"""The health protocol's number for "can serve"."""


@dataclass(frozen=True, slots=True)
class Ping:
    """What a service answered when it was asked for its health."""

    serving: bool
    """True when it can serve. False: it runs, but is not ready, for example because its database is away."""

    seconds: float
    """How long the answer took, the making of the connection included."""
