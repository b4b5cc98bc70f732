"""The metadata that a call came with, read once: the library reads it anew for everyone who asks."""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

call_metadata: ContextVar[Iterable[tuple[str, str | bytes]] | None] = ContextVar(
    "call_metadata", default=None
)
"""That of the present call, set before its handler runs. None outside of calls."""


def metadata_of(context: Any) -> Iterable[tuple[str, str | bytes]]:
    """Keys and values of a call (a `grpc.aio.ServicerContext`)."""
    known = call_metadata.get()
    return known if known is not None else context.invocation_metadata() or ()
