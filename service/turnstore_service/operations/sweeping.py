"""Removes, in the background, what crashed writes have left behind."""

import asyncio
from typing import Protocol

import structlog

FIRST_SECONDS = 3600.0
"""From the start to the first sweep, so that a service which restarts often still sweeps, but not at once."""
BETWEEN_SECONDS = 24 * 3600.0
"""Only crashes leave something, and a sweep reads the heads of all large bodies: once a day is often
enough."""

_log = structlog.get_logger("turnstore_service.sweeping")


class SweptStore(Protocol):
    """What of a store is swept."""

    async def sweep(self) -> int:
        """Removes what no response refers to; how many chunks."""


async def sweep_forever(
    store: SweptStore, first: float = FIRST_SECONDS, between: float = BETWEEN_SECONDS
) -> None:
    """Sweeps until cancelled. Several services may do so on one database. Times are in seconds."""
    wait = first
    while True:
        await asyncio.sleep(wait)
        wait = between
        try:
            removed = await store.sweep()
        except Exception as error:  # noqa: BLE001  # the next sweep does what this one could not
            _log.warning("sweep failed", error=str(error))
        else:
            if removed:
                _log.info("swept", chunks=removed)
