"""A port that the processes of one service share, and nobody else gets."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from turnstore_service.operations.addresses import Address
from turnstore_service.operations.shared_port import shared_port

LOOPBACK = Address("127.0.0.1", 0)


@contextmanager
def _listener(address: Address, *options: int) -> Iterator[socket.socket]:
    """Listens as a gRPC server does, which always sets SO_REUSEADDR."""
    with socket.socket() as listener:
        for option in (socket.SO_REUSEADDR, *options):
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        listener.bind((address.host, address.port))
        listener.listen()
        yield listener


def test_free_port_is_chosen() -> None:
    with shared_port(LOOPBACK) as held:
        assert held.host == "127.0.0.1"
        assert held.port > 0


def test_processes_of_the_service_may_listen() -> None:
    with (
        shared_port(LOOPBACK) as held,
        _listener(held, socket.SO_REUSEPORT) as one,
        _listener(held, socket.SO_REUSEPORT) as other,
    ):
        assert one.getsockname() == other.getsockname() == tuple(held)


def test_connections_come_to_those_who_listen() -> None:
    with (
        shared_port(LOOPBACK) as held,
        _listener(held, socket.SO_REUSEPORT) as listener,
        socket.create_connection(held, timeout=10) as caller,
    ):
        listener.settimeout(10)
        _, address = listener.accept()
        assert address == caller.getsockname()


def test_nobody_is_connected_while_nobody_listens() -> None:
    with shared_port(LOOPBACK) as held, pytest.raises(ConnectionRefusedError):
        socket.create_connection(held, timeout=10)


def test_second_service_is_refused() -> None:
    with shared_port(LOOPBACK) as held, pytest.raises(OSError, match="in use"), shared_port(held):
        pass


def test_second_service_is_refused_once_processes_listen() -> None:
    with (
        shared_port(LOOPBACK) as held,
        _listener(held, socket.SO_REUSEPORT),
        pytest.raises(OSError, match="in use"),
        shared_port(held),
    ):
        pass


def test_server_that_does_not_share_is_refused() -> None:
    with shared_port(LOOPBACK) as held, pytest.raises(OSError, match="in use"), _listener(held):
        pass


def test_port_of_a_server_that_would_share_is_refused() -> None:
    with _listener(LOOPBACK, socket.SO_REUSEPORT) as listener:
        taken = Address(*listener.getsockname())
        with pytest.raises(OSError, match="in use"), shared_port(taken):
            pass


def test_port_is_free_afterwards() -> None:
    with shared_port(LOOPBACK) as held:
        pass
    with shared_port(held) as again:
        assert again == held


def test_port_with_connections_that_have_just_closed_is_taken() -> None:
    with shared_port(LOOPBACK) as held, _listener(held, socket.SO_REUSEPORT) as listener:
        caller = socket.create_connection(held, timeout=10)
        accepted, _ = listener.accept()
        # The end that closes first is the one that waits, on the port, for what may still be under way.
        accepted.close()
        assert caller.recv(1) == b""
        caller.close()
    with shared_port(held) as again:
        assert again == held


def test_name_is_held_on_every_address_that_there_is() -> None:
    with shared_port(Address("localhost", 0)) as held:
        with pytest.raises(OSError, match="in use"), _listener(Address("127.0.0.1", held.port)):
            pass
        assert held.host == "localhost"


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match="assign"), shared_port(Address("192.0.2.1", 0)):
        pass
