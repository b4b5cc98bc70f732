"""Addresses to listen on, as `host:port`."""

import ipaddress
from typing import NamedTuple


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    """0: any free one."""

    @property
    def is_loopback(self) -> bool:
        """Whether nobody can reach it but this machine. False for names other than localhost."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether a host stands for this machine alone. Names are not looked up: only localhost counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_address(text: str) -> Address:
    """Reads `host:port`, where the host is a name, an IPv4 address, or an IPv6 address in brackets.

    Raises:
        ValueError: The text is no such thing.
    """
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or any(character.isspace() or character in "[]/" for character in host):
        raise ValueError("must be host:port, such as 127.0.0.1:50051, 0.0.0.0:50051 or [::1]:50051")
    if ":" in host and not bracketed:
        raise ValueError("must have an IPv6 address in brackets, such as [::1]:50051")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("must end in a port from 0 to 65535 (0: any free one)")
    return Address(host, int(port))
