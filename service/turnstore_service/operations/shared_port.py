"""A port that several processes of one service listen on, and nobody else."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from turnstore_service.operations.addresses import Address


@contextmanager
def shared_port(address: Address) -> Iterator[Address]:
    """Holds the port until the end, without listening; gives the address with the real port.

    Other processes of the same user may then listen on it with SO_REUSEPORT; the kernel gives each connection
    to one of them. A name with several addresses is held on each that this machine has.

    Raises:
        OSError: The address is in use, or is no address of this machine.
    """
    with ExitStack() as stack:
        port = address.port
        failure: OSError | None = None
        found = socket.getaddrinfo(
            address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
        held = 0
        for family, kind, protocol, _, (host, *_) in found:
            holder = stack.enter_context(socket.socket(family, kind, protocol))
            try:
                port = _hold(holder, str(host), port)
            except OSError as error:
                # Such as the IPv6 address of `localhost` where there is no IPv6.
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                failure = error
            else:
                held += 1
        if not held:
            raise failure or OSError(errno.EADDRNOTAVAIL, "no address")
        yield Address(address.host, port)


def _hold(holder: socket.socket, host: str, port: int) -> int:
    # Closed connections of a service that has just ended must not keep the next one from the port.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Bound without SO_REUSEPORT, so that a port which anybody else has is refused, also when they would share
    # it; and from here on shared with SO_REUSEPORT alone, so that no second service gets it.
    holder.bind((host, port))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound: int = holder.getsockname()[1]
    return bound
