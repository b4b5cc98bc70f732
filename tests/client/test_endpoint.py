"""Where the service is, and what goes with a call."""

import os
from pathlib import Path
from typing import Any

import pytest

from turnstore import AsyncHistoryClient, HistoryClient
from turnstore.endpoint import TokenFile, call_metadata

CLIENTS = [AsyncHistoryClient, HistoryClient]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("localhost:50051", "dns:///localhost:50051"),
        ("  turnstore.svc:50051 ", "dns:///turnstore.svc:50051"),
        ("[::1]:50051", "dns:///[::1]:50051"),
        ("dns:///turnstore:50051", "dns:///turnstore:50051"),
        ("unix:/run/turnstore.sock", "unix:/run/turnstore.sock"),
        ("ipv4:127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
    ],
)
def test_plain_address_is_looked_up_by_dns(client: Any, given: str, target: str) -> None:
    assert client(given).target == target


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"target": " "}, "target is empty"),
    ({"tls_cert": "c.pem"}, "needs both tls_cert and tls_key"),
    ({"tls_key": "k.pem"}, "needs both tls_cert and tls_key"),
    ({"token": "t", "token_file": "f"}, "either token or token_file"),
    ({"target": "example.com:1", "token": "t"}, "in clear text"),
    ({"target": "ipv4:127.0.0.1:1,10.0.0.1:1", "token": "t"}, "in clear text"),
    ({"target": "localhost.example.com:1", "token": "t"}, "in clear text"),
    ({"timeout": 0}, "above zero"),
]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[row[1] for row in REFUSED])
def test_arguments_that_do_not_fit_are_refused(client: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client(**arguments)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "arguments",
    [
        {"target": "127.0.0.1:1"},
        {"target": "127.8.9.1:1"},
        {"target": "[::1]:1"},
        {"target": "localhost:1"},
        {"target": "unix:/run/turnstore.sock"},
        {"target": "ipv4:127.0.0.1:1,127.0.0.2:2"},
        {"target": "example.com:1", "tls": True},
        {"target": "example.com:1", "tls_ca": "ca.pem"},
        {"target": "example.com:1", "plaintext_token": True},
    ],
)
def test_token_goes_where_nobody_listens_or_where_told(client: Any, arguments: dict[str, Any]) -> None:
    client(**arguments, token="t")


def test_token_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    token = TokenFile(path)
    assert token.read() == "first"
    # Written beside it and moved over it, as mounted secrets are exchanged.
    other = tmp_path / "other"
    other.write_text("second\n")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)
    assert token.read() == "second"


def test_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"token file .*/token cannot be read"):
        TokenFile(tmp_path / "token").read()


def test_token_file_that_is_empty_is_named(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(" \n")
    with pytest.raises(ValueError, match=r"token file .*/token is empty"):
        TokenFile(path).read()


@pytest.mark.parametrize("token", ["a\nb", "a\x00", "ü"])
def test_token_that_cannot_stand_in_a_header_is_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent") as caught:
        call_metadata("id", token)
    assert token not in str(caught.value)
