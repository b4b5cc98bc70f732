"""The service's side of TLS."""

import ssl
from pathlib import Path
from typing import Any

import grpc

from turnstore_service.operations.live_files import FileError, LiveFiles
from turnstore_service.operations.settings import Settings


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What connections are secured with, None for plain text. New connections get the files as they are then.

    Raises:
        FileError: A file cannot be used.
    """
    cert, key, client_ca = settings.server_tls_cert, settings.server_tls_key, settings.server_tls_client_ca
    if cert is None or key is None:
        return None
    paths = [cert, key] if client_ca is None else [cert, key, client_ca]
    files = LiveFiles("a file of TLS", paths, lambda: _configuration(cert, key, client_ca))
    first = last = files.current()

    def changed() -> Any:
        nonlocal last
        configuration = files.current()
        if configuration is last:
            return None  # stay with what there is
        last = configuration
        return configuration

    return grpc.dynamic_ssl_server_credentials(
        first, changed, require_client_authentication=client_ca is not None
    )


def _configuration(cert: Path, key: Path, client_ca: Path | None) -> Any:
    certificates, private_key = cert.read_bytes(), key.read_bytes()
    roots = None if client_ca is None else client_ca.read_bytes()
    # The library takes anything and fails at each handshake, so what is wrong has to be found out before.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With a password, so that a key that needs one is refused; otherwise it would be asked for.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        raise FileError(
            f"{cert} and {key} are not a certificate and its key, as PEM without a password ({error.reason})"
        ) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise FileError(f"{client_ca} has no certificates as PEM ({error.reason})") from error
    return grpc.ssl_server_certificate_configuration([(private_key, certificates)], roots)
