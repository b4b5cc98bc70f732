"""Connections to the service: one for each event loop, or one for all threads."""

from __future__ import annotations

import asyncio
import threading
from weakref import WeakKeyDictionary

import grpc
import grpc.aio

from turnstore.endpoint import Endpoint, awaited_token, call_metadata, plain_token
from turnstore.rpcs import Reply, Request, Rpc

# Without it a channel connects only to instances that say that they can serve; the question whether an
# instance can serve has to get through to one that cannot.
_ANY_HEALTH = ("grpc.inhibit_health_checking", 1)


class AsyncConnection:
    """The channels of an async client. A channel belongs to the event loop that it was made in, and hosts may
    call from several loops, so each loop gets one at its first call.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._channels: WeakKeyDictionary[asyncio.AbstractEventLoop, grpc.aio.Channel] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._closed = False

    async def call(
        self,
        rpc: Rpc[Request, Reply],
        request: Request,
        *,
        call_id: str,
        timeout: float,
        wait: bool,
        channel: grpc.aio.Channel | None = None,
    ) -> Reply:
        """Make one call, on the running loop's channel unless another is given.

        Args:
            rpc: which call.
            request: its request.
            call_id: the id under which the service logs it.
            timeout: seconds that it may take.
            wait: whether to wait for a connection within that time.
            channel: the channel to make it on.

        Raises:
            grpc.RpcError: the call ended in an error.
            RuntimeError: the client is closed.
        """
        token = None if self.endpoint.token is None else await awaited_token(self.endpoint.token)
        method = (channel or self._channel()).unary_unary(
            rpc.path,
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.reply.FromString,
        )
        reply: Reply = await method(
            request, timeout=timeout, metadata=call_metadata(call_id, token), wait_for_ready=wait
        )
        return reply

    def direct_channel(self) -> grpc.aio.Channel:
        """Return a new channel, to be closed by the caller, that reaches an instance whatever its health."""
        return self._open(_ANY_HEALTH)

    async def close(self) -> None:
        """Close all channels: at once in the running loop, and in other loops as soon as they come to it."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.items())
            self._channels.clear()
        running = asyncio.get_running_loop()
        for loop, channel in channels:
            if loop is running:
                await channel.close()
            elif loop.is_running():
                # Not waited for: that loop may be waiting for this one.
                asyncio.run_coroutine_threadsafe(channel.close(None), loop)

    def _channel(self) -> grpc.aio.Channel:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            channel = self._channels.get(loop)
            if channel is None:
                # What belongs to a loop that has ended can never be used again.
                for ended in [other for other in self._channels if other.is_closed()]:
                    del self._channels[ended]
                channel = self._channels[loop] = self._open()
            return channel

    def _open(self, *more_options: tuple[str, int]) -> grpc.aio.Channel:
        endpoint = self.endpoint
        options = [*endpoint.channel_options(), *more_options]
        if endpoint.secure:
            return grpc.aio.secure_channel(endpoint.target, endpoint.credentials(), options=options)
        return grpc.aio.insecure_channel(endpoint.target, options=options)


class Connection:
    """The channel of a plain client, shared by all threads and made at the first call: a process that forks
    before it has no connection to break.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._opened: grpc.Channel | None = None
        self._lock = threading.Lock()
        self._closed = False

    def call(
        self,
        rpc: Rpc[Request, Reply],
        request: Request,
        *,
        call_id: str,
        timeout: float,
        wait: bool,
        channel: grpc.Channel | None = None,
    ) -> Reply:
        """Make one call, on the client's channel unless another is given.

        Args:
            rpc: which call.
            request: its request.
            call_id: the id under which the service logs it.
            timeout: seconds that it may take.
            wait: whether to wait for a connection within that time.
            channel: the channel to make it on.

        Raises:
            grpc.RpcError: the call ended in an error.
            RuntimeError: the client is closed.
        """
        token = None if self.endpoint.token is None else plain_token(self.endpoint.token)
        method = (channel or self._channel()).unary_unary(
            rpc.path,
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.reply.FromString,
        )
        reply: Reply = method(
            request, timeout=timeout, metadata=call_metadata(call_id, token), wait_for_ready=wait
        )
        return reply

    def direct_channel(self) -> grpc.Channel:
        """Return a new channel, to be closed by the caller, that reaches an instance whatever its health."""
        return self._open(_ANY_HEALTH)

    def close(self) -> None:
        """Close the channel. Calls that run end."""
        with self._lock:
            self._closed = True
            channel, self._opened = self._opened, None
        if channel is not None:
            channel.close()

    def _channel(self) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self, *more_options: tuple[str, int]) -> grpc.Channel:
        endpoint = self.endpoint
        options = [*endpoint.channel_options(), *more_options]
        if endpoint.secure:
            return grpc.secure_channel(endpoint.target, endpoint.credentials(), options=options)
        return grpc.insecure_channel(endpoint.target, options=options)
