"""Client certificates, by their SPIFFE id or their name.

    {"certificates": [
      {"spiffe_id": "spiffe://cluster.local/ns/agents/sa/host", "namespace": "acme", "rights": ["read", "write"]},
      {"name": "reports.acme.example", "namespace": "acme", "rights": ["read"]}
    ]}

A name is a DNS name of the certificate, or its common name if it has no alternative names. A certificate with a
SPIFFE id is known by that alone. That it is genuine was checked when the connection was made, against
TURNSTORE_SERVER_TLS_CLIENT_CA.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnstore_service.operations.credentials.grants import read_grants
from turnstore_service.operations.live_files import FileError, LiveFiles
from turnstore_service.rpc.access import Access, Principal
from turnstore_service.rpc.errors import unauthenticated


class CertificateAccess:
    """Accepts callers with the certificates that a file names."""

    def __init__(self, path: Path) -> None:
        """Reads the file at once.

        Raises:
            FileError: It cannot be used.
        """
        self._entries = LiveFiles("the file of certificates", [path], lambda: _read(path))

    async def authenticate(self, context: Any) -> Principal:
        """The holder of the connection's certificate.

        Raises:
            ApiError: UNAUTHENTICATED; there is no certificate, the file does not name it, or it names it twice
                with different grants.
        """
        entries = self._entries.current()
        found = {entries[identity] for identity in _identities(context.auth_context()) if identity in entries}
        if len(found) != 1:
            raise unauthenticated("the client certificate is not accepted")
        return found.pop()


class BothAccess:
    """Asks for two credentials of one namespace; the caller has the rights that both give."""

    def __init__(self, first: Access, second: Access) -> None:
        self._first = first
        self._second = second

    async def authenticate(self, context: Any) -> Principal:
        """The holder of both.

        Raises:
            ApiError: One of them is not accepted, or they are for different namespaces.
        """
        first = await self._first.authenticate(context)
        second = await self._second.authenticate(context)
        if first.own_namespace != second.own_namespace:
            raise unauthenticated("the client certificate and the token are not for the same namespace")
        return Principal(first.own_namespace, first.rights & second.rights)


_Identity = tuple[str, str]


def _identities(peer: Mapping[str, Any]) -> list[_Identity]:
    """What a certificate can be named by. Kinds are kept apart, so no name can pass for a SPIFFE id."""

    def texts(key: str) -> list[str]:
        return [value.decode("utf-8", "replace") for value in peer.get(key, ())]

    if spiffe_ids := texts("peer_spiffe_id"):
        return [("spiffe_id", spiffe_id) for spiffe_id in spiffe_ids]
    if texts("x509_subject_alternative_name"):
        return [("name", name.lower()) for name in texts("peer_dns")]
    return [("name", name.lower()) for name in texts("x509_common_name")]


def _read(path: Path) -> Mapping[_Identity, Principal]:
    entries: dict[_Identity, Principal] = {}
    for where, holder, text, principal in read_grants(path, "certificates", ("spiffe_id", "name")):
        if holder == "spiffe_id" and not text.startswith("spiffe://"):
            raise FileError(f"{where}.spiffe_id must begin with spiffe://")
        identity = holder, text if holder == "spiffe_id" else text.lower()
        if identity in entries:
            raise FileError(f"{where} names the same certificate as an entry before it")
        entries[identity] = principal
    return entries
