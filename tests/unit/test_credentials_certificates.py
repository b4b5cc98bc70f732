"""Client certificates by SPIFFE id and name, and two credentials at one time."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.credentials import Caller, accepted, refusal, replace
from turnstore_service.operations.credentials.certificates import BothAccess, CertificateAccess
from turnstore_service.operations.live_files import FileError
from turnstore_service.rpc.access import Principal, Right
from turnstore_service.rpc.errors import ApiError, unauthenticated

SPIFFE_ID = "spiffe://cluster.local/ns/agents/sa/host"
READ = frozenset({Right.READ})
HOST = Principal("by-id", READ)
NAMED = Principal("by-name", READ)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "certificates.json"
    entries: list[Mapping[str, Any]] = [
        {"spiffe_id": SPIFFE_ID, "namespace": "by-id", "rights": ["read"]},
        {"name": "host.example", "namespace": "by-name", "rights": ["read"]},
        {"name": "other.example", "namespace": "other", "rights": ["read"]},
    ]
    path.write_text(json.dumps({"certificates": entries}))
    return path


def _peer(spiffe: str = "", dns: tuple[str, ...] = (), common_name: str = "") -> Caller:
    """What the library tells of a verified certificate."""
    peer = {"transport_security_type": [b"ssl"], "x509_common_name": [common_name.encode()]}
    alternatives = [*([spiffe] if spiffe else []), *dns]
    if alternatives:
        peer["x509_subject_alternative_name"] = [name.encode() for name in alternatives]
    if dns:
        peer["peer_dns"] = [name.encode() for name in dns]
    if spiffe:
        peer["peer_spiffe_id"] = [spiffe.encode()]
    return Caller(peer=peer)


@pytest.mark.parametrize(
    ("caller", "principal"),
    [
        (_peer(spiffe=SPIFFE_ID), HOST),
        (_peer(spiffe=SPIFFE_ID, dns=("other.example",)), HOST),
        (_peer(dns=("host.example",)), NAMED),
        (_peer(dns=("HOST.Example",)), NAMED),
        (_peer(dns=("unknown.example", "host.example")), NAMED),
        (_peer(common_name="host.example"), NAMED),
    ],
)
async def test_certificate_is_known_by_its_identity(file: Path, caller: Caller, principal: Principal) -> None:
    assert await accepted(CertificateAccess(file), caller) == principal


@pytest.mark.parametrize(
    "caller",
    [
        Caller(),
        Caller("Bearer something-else-than-a-certificate"),
        _peer(),
        _peer(spiffe=f"{SPIFFE_ID}/more"),
        _peer(spiffe=SPIFFE_ID.upper()),
        _peer(spiffe="spiffe://other/x", dns=("host.example",)),
        _peer(dns=(SPIFFE_ID,)),
        _peer(common_name=SPIFFE_ID),
        _peer(dns=("unknown.example",), common_name="host.example"),
        _peer(dns=("host.example", "other.example")),
    ],
    ids=[
        *("plain text", "token", "no name", "longer id", "other case", "id counts before name"),
        *("id as DNS name", "id as common name", "common name beside others", "two entries"),
    ],
)
async def test_anything_else_is_refused(file: Path, caller: Caller) -> None:
    error = await refusal(CertificateAccess(file), caller)
    assert (error.code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID")


async def test_certificates_are_those_that_the_file_has_now(file: Path) -> None:
    access = CertificateAccess(file)
    replace(
        file, json.dumps({"certificates": [{"name": "new.example", "namespace": "n", "rights": ["read"]}]})
    )
    assert await accepted(access, _peer(dns=("new.example",))) == Principal("n", READ)
    await refusal(access, _peer(spiffe=SPIFFE_ID))


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (
            [{"spiffe_id": "cluster.local/x", "namespace": "n", "rights": ["read"]}],
            "must begin with spiffe://",
        ),
        (
            [
                {"name": "a.example", "namespace": "n", "rights": ["read"]},
                {"name": "A.example", "namespace": "m", "rights": ["read"]},
            ],
            "certificates[1] names the same certificate",
        ),
        ([{"dns": "a.example", "namespace": "n", "rights": ["read"]}], "must have one of spiffe_id, name"),
    ],
)
def test_file_of_another_form_is_refused(file: Path, entries: list[Any], problem: str) -> None:
    replace(file, json.dumps({"certificates": entries}))
    with pytest.raises(FileError) as told:
        CertificateAccess(file)
    assert problem in str(told.value)


class _Fixed:
    """Accepts everybody as one, or refuses everybody."""

    def __init__(self, answer: Principal | ApiError) -> None:
        self._answer = answer

    async def authenticate(self, context: Any) -> Principal:
        if isinstance(self._answer, ApiError):
            raise self._answer
        return self._answer


async def test_two_credentials_give_the_rights_that_both_give() -> None:
    first = Principal("acme", frozenset({Right.READ, Right.WRITE}))
    second = Principal("acme", frozenset({Right.READ, Right.ERASE}))
    access = BothAccess(_Fixed(first), _Fixed(second))
    assert await accepted(access, Caller()) == Principal("acme", READ)


NOBODY = unauthenticated("nobody")


@pytest.mark.parametrize(
    ("first", "second"),
    [(NOBODY, HOST), (HOST, NOBODY), (HOST, NAMED)],
    ids=["no first", "no second", "two namespaces"],
)
async def test_two_credentials_must_agree(first: Principal | ApiError, second: Principal | ApiError) -> None:
    error = await refusal(BothAccess(_Fixed(first), _Fixed(second)), Caller())
    assert error.code is grpc.StatusCode.UNAUTHENTICATED
