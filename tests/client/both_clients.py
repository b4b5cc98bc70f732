"""The async and the plain client behind one face, so that one set of tests runs on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self

from turnstore import AsyncHistoryClient, HistoryClient

KINDS = ("async", "plain")

_END = object()


class PlainClient:
    """A plain client whose methods are awaited. Each runs in a thread of its own, as it would in a program."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = HistoryClient(*args, **options)

    async def __aenter__(self) -> Self:
        self._client.__enter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._client.close)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if not callable(attribute):
            return attribute
        return _stepped(attribute) if name.startswith("list_") else _in_thread(attribute)


def _in_thread(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, *args, **options)

    return call


def _stepped(method: Callable[..., Iterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    async def iterate(*args: Any, **options: Any) -> AsyncIterator[Any]:
        values = method(*args, **options)
        while (value := await asyncio.to_thread(next, values, _END)) is not _END:
            yield value

    return iterate


def client_of(kind: str, *args: Any, **options: Any) -> Any:
    """A client of that kind. Both kinds are used as an AsyncHistoryClient is."""
    return AsyncHistoryClient(*args, **options) if kind == "async" else PlainClient(*args, **options)
