"""What the service's TLS is made from, and what is said of files that cannot be used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

from tests.credentials import Certificates
from turnstore_service.operations.live_files import FileError
from turnstore_service.operations.settings import Settings
from turnstore_service.operations.tls import server_credentials


@pytest.fixture
def files(tmp_path: Path) -> Mapping[str, Path]:
    certificates, others = Certificates(), Certificates()
    key, chain = certificates.server()
    private: Any = serialization.load_pem_private_key(key, None)
    encrypted = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"a password"),
    )
    contents = {
        "key": key,
        "chain": chain,
        "ca": certificates.ca,
        "other_key": others.server()[0],
        "encrypted_key": encrypted,
        "garbage": b"no PEM",
        "empty": b"",
    }
    paths = {name: tmp_path / name for name in (*contents, "missing")}
    for name, content in contents.items():
        paths[name].write_bytes(content)
    return paths


def _settings(files: Mapping[str, Path], cert: str, key: str, client_ca: str | None = None) -> Settings:
    return Settings(
        server_tls_cert=files[cert],
        server_tls_key=files[key],
        server_tls_client_ca=None if client_ca is None else files[client_ca],
    )


def test_without_a_certificate_there_is_no_tls() -> None:
    assert server_credentials(Settings()) is None


@pytest.mark.parametrize("client_ca", [None, "ca"])
def test_with_a_certificate_there_is(files: Mapping[str, Path], client_ca: str | None) -> None:
    found = server_credentials(_settings(files, "chain", "key", client_ca))
    assert isinstance(found, grpc.ServerCredentials)


@pytest.mark.parametrize(
    ("cert", "key", "client_ca", "named"),
    [
        ("missing", "key", None, "missing"),
        ("chain", "missing", None, "missing"),
        ("chain", "key", "missing", "missing"),
        ("chain", "other_key", None, "other_key"),
        ("chain", "encrypted_key", None, "encrypted_key"),
        ("garbage", "key", None, "garbage"),
        ("chain", "garbage", None, "garbage"),
        ("chain", "key", "garbage", "garbage"),
        ("chain", "key", "empty", "empty"),
        ("chain", "key", "key", "key"),
    ],
)
def test_file_that_cannot_be_used_is_named(
    files: Mapping[str, Path], cert: str, key: str, client_ca: str | None, named: str
) -> None:
    with pytest.raises(FileError) as told:
        server_credentials(_settings(files, cert, key, client_ca))
    assert str(files[named]) in str(told.value)
