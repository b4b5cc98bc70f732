"""Where the service is, and how a connection to it is made: the part that needs no connection."""

from __future__ import annotations

import inspect
import ipaddress
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

import grpc

from turnstore.errors import REQUEST_ID_KEY

HISTORY_SERVICE = "turnstore.v1.HistoryService"
"""The service's full name, which is also the name that its health is asked under."""

DEFAULT_TARGET = "127.0.0.1:50051"
"""Where a service that is started without settings listens."""

TokenSource = str | Callable[[], str] | Callable[[], Awaitable[str]]
"""A token, or what returns the present one. It is asked before every try, so it keeps a cache of its own."""

_SCHEMES = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p", "passthrough")

_MAX_REPLY_BYTES = 65 * 2**20
"""A reply holds at least one item (16 MiB) or one payload whole, and a payload may be as large as a request:
64 MiB. One more for what stands around it. gRPC's own default is 4 MiB."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A service to connect to, checked when it is made."""

    target: str
    """The target with its scheme, as gRPC takes it."""

    secure: bool
    """Whether the connection is made over TLS."""

    ca_file: Path | None
    """The certificates that the service's own is checked against. None: those of the system."""

    cert_file: Path | None
    """The client's certificate chain, for mutual TLS."""

    key_file: Path | None
    """The key of the client's certificate."""

    server_name: str
    """The name that the service's certificate must be for. Empty: the target's."""

    token: TokenSource | None
    """The bearer token, or where it comes from."""

    @classmethod
    def of(
        cls,
        target: str,
        *,
        tls: bool,
        tls_ca: str | PathLike[str] | None,
        tls_cert: str | PathLike[str] | None,
        tls_key: str | PathLike[str] | None,
        tls_server_name: str,
        token: TokenSource | None,
        token_file: str | PathLike[str] | None,
        plaintext_token: bool,
    ) -> Endpoint:
        """Return the endpoint that these arguments of a client mean.

        Raises:
            ValueError: the arguments do not fit together. The message tells which and what to do.
        """
        if not target.strip():
            raise ValueError("target is empty: give HOST:PORT, for example 127.0.0.1:50051")
        if (tls_cert is None) != (tls_key is None):
            raise ValueError("mutual TLS needs both tls_cert and tls_key")
        if token is not None and token_file is not None:
            raise ValueError("give either token or token_file")
        full_target = _with_scheme(target.strip())
        secure = tls or any(part is not None for part in (tls_ca, tls_cert)) or bool(tls_server_name)
        source = TokenFile(Path(token_file)).read if token_file is not None else token
        if source is not None and not (secure or plaintext_token or _is_local(full_target)):
            raise ValueError(
                f"a token would travel to {target} in clear text: turn TLS on (tls=True or tls_ca=...), or "
                "say plaintext_token=True where the network itself encrypts, as a service mesh does"
            )
        return cls(
            target=full_target,
            secure=secure,
            ca_file=None if tls_ca is None else Path(tls_ca),
            cert_file=None if tls_cert is None else Path(tls_cert),
            key_file=None if tls_key is None else Path(tls_key),
            server_name=tls_server_name,
            token=source,
        )

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the TLS credentials, with the files as they are now.

        Raises:
            ValueError: a file cannot be read.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=_contents(self.ca_file, "tls_ca"),
            private_key=_contents(self.key_file, "tls_key"),
            certificate_chain=_contents(self.cert_file, "tls_cert"),
        )

    def channel_options(self) -> list[tuple[str, Any]]:
        """Return the channel's options."""
        options: list[tuple[str, Any]] = [
            ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
            ("grpc.max_receive_message_length", _MAX_REPLY_BYTES),
            # A service that is back is found within a second. gRPC's own backoff grows to two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # In spite of its name, how long making a connection may take, handshakes included. Enough for a
            # busy machine, and short enough to be tried again within a call's deadline.
            ("grpc.min_reconnect_backoff_ms", 5000),
            # gRPC looks a name up again only every 30 seconds, longer than a call may take; the address of a
            # replaced pod would be found too late.
            ("grpc.dns_min_time_between_resolutions_ms", 1000),
            # Servers take pings that come more often than every 5 minutes for an attack. What matters is the
            # timeout: with keepalive on, data that the peer does not acknowledge within it ends the
            # connection, so that a peer that has vanished is noticed within a call's deadline.
            ("grpc.keepalive_time_ms", 330_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.primary_user_agent", f"turnstore-python/{_version()}"),
        ]
        if self.server_name:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        return options


_SERVICE_CONFIG = {
    # Calls go round all addresses of a name, and only to instances that say that they can serve.
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": HISTORY_SERVICE},
}


class TokenFile:
    """A token in a file, read again when the file has changed: mounted secrets are exchanged while in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def read(self) -> str:
        """Return the token that the file holds now.

        Raises:
            ValueError: the file cannot be read, or is empty.
        """
        try:
            found = self._path.stat()
            state = (found.st_ino, found.st_mtime_ns, found.st_size)
            if state != self._seen:
                self._token = self._path.read_text("utf-8").strip()
                self._seen = state
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the token file {self._path} cannot be read: {error}") from error
        if not self._token:
            raise ValueError(f"the token file {self._path} is empty")
        return self._token


def call_metadata(call_id: str, token: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that goes with a call: its id, and the token where there is one.

    Raises:
        ValueError: the token has characters that cannot stand in a header (a line break, for example).
    """
    if token is None:
        return ((REQUEST_ID_KEY, call_id),)
    if not token.isascii() or not token.isprintable():
        # The token itself stays out of the message: messages end up in logs.
        raise ValueError("the token holds characters that cannot be sent; is there a line break in it?")
    return ((REQUEST_ID_KEY, call_id), ("authorization", f"Bearer {token}"))


def plain_token(source: TokenSource) -> str:
    """Return the token for a call that cannot wait for a coroutine.

    Raises:
        TypeError: the source is an async function.
    """
    token = source if isinstance(source, str) else source()
    if inspect.isawaitable(token):
        if inspect.iscoroutine(token):
            token.close()
        raise TypeError(
            "HistoryClient takes a token from a plain function; AsyncHistoryClient from async ones too"
        )
    return token


async def awaited_token(source: TokenSource) -> str:
    """Return the token, waiting for it where its source is an async function."""
    token = source if isinstance(source, str) else source()
    return await token if inspect.isawaitable(token) else token


def _with_scheme(target: str) -> str:
    scheme, separator, _ = target.partition(":")
    return target if separator and scheme in _SCHEMES else f"dns:///{target}"


def _is_local(target: str) -> bool:
    """Tell whether what is sent to the target stays on this machine."""
    scheme, _, rest = target.partition(":")
    if scheme in {"unix", "unix-abstract"}:
        return True
    addresses = rest.lstrip("/").split(",")
    return all(_is_loopback(address) for address in addresses)


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0] or address
    host = host.strip("[]").removesuffix(".")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _contents(path: Path | None, argument: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{argument} {path} cannot be read: {error.strerror or error}") from error


def _version() -> str:
    try:
        return version("turnstore")
    except PackageNotFoundError:
        return "source"
