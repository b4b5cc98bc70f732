"""How the first process of a service and its workers talk: lines of JSON over a pair of sockets."""

import asyncio
import socket
from typing import Any

import orjson

_LINE_BYTES = 64 * 1024 * 1024
"""Longest line. One with all metrics has some hundred thousand bytes."""


class Channel:
    """One end. Each message has a kind and a body."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> "Channel":
        """Takes over one socket of a pair."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_LINE_BYTES))

    def send(self, kind: str, body: Any = None) -> None:
        """Sends a message without waiting; to nobody, when the other process is gone."""
        if not self._writer.is_closing():
            self._writer.write(orjson.dumps([kind, body]) + b"\n")

    async def receive(self) -> tuple[str, Any] | None:
        """The next message. None: the other process is gone, or has closed its end."""
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None
        kind, body = orjson.loads(line)
        return kind, body

    async def close(self) -> None:
        """Closes this end once what was sent is delivered."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return
