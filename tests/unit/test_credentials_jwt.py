"""JWTs, and the key sets that they are checked with."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.credentials import (
    AUDIENCE,
    ISSUER,
    Caller,
    Certificates,
    Issuer,
    KeyServer,
    accepted,
    key_server,
    new_key,
    public_jwk,
    refusal,
    replace,
    until,
)
from turnstore_service.operations.credentials.jwt import JwtAccess, JwtRules, claim_at
from turnstore_service.operations.credentials.key_sets import KeyFile, KeyUrl, parse_key_set
from turnstore_service.operations.live_files import FileError
from turnstore_service.rpc.access import ALL_RIGHTS, Principal, Right
from turnstore_service.rpc.errors import ApiError

ACME = Principal("acme", ALL_RIGHTS)
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def _rules(**changes: Any) -> JwtRules:
    rules = {
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "algorithms": ("ES256", "RS256"),
        "leeway_seconds": 30,
        "namespace_claim": "namespace",
        "rights": ALL_RIGHTS,
        "rights_claim": None,
        **changes,
    }
    return JwtRules(**rules)


def _bearer(token: str) -> Caller:
    return Caller(f"Bearer {token}")


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def file(tmp_path: Path, issuer: Issuer) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(issuer.key_set()))
    return path


@pytest.fixture
def server(issuer: Issuer) -> Iterator[KeyServer]:
    with key_server(issuer) as running:
        yield running


@pytest.mark.parametrize("kind", ["ES256", "RS256"])
async def test_token_of_the_issuer_is_accepted(tmp_path: Path, kind: str) -> None:
    issuer = Issuer(kind)
    path = tmp_path / "jwks.json"
    replace(path, json.dumps(issuer.key_set()))
    access = JwtAccess(KeyFile(path), _rules())
    for audience in (AUDIENCE, ["others", AUDIENCE]):
        assert await accepted(access, _bearer(issuer.token(aud=audience))) == ACME


CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "exp": 2**33, "namespace": "acme"}


def _joined(header: Mapping[str, Any], claims: Mapping[str, Any], signature: bytes) -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def _signed_with_a_secret(secret: bytes, key_id: str) -> str:
    header = {"alg": "HS256", "kid": key_id}
    signed = _joined(header, CLAIMS, b"").rstrip(".")
    return _joined(header, CLAIMS, hmac.digest(secret, signed.encode(), "sha256"))


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": int(time.time()) - 60}, "has expired"),
        ({"nbf": int(time.time()) + 600}, "is not valid yet"),
        ({"iat": int(time.time()) + 600}, "is not valid yet"),
        ({"iss": "https://issuer.example/"}, "of another issuer"),
        ({"aud": "turnstore2"}, "for another audience"),
        ({"aud": []}, "lacks one of the claims"),
        ({"exp": None}, "lacks one of the claims"),
        ({"iss": None}, "lacks one of the claims"),
        ({"aud": None}, "lacks one of the claims"),
        ({"exp": "soon"}, "not accepted"),
        ({"exp": float("inf")}, "not accepted"),
        ({"namespace": None}, "does not tell a namespace"),
        ({"namespace": ""}, "does not tell a namespace"),
        ({"namespace": ["acme"]}, "does not tell a namespace"),
        ({"namespace": "x" * 257}, "a namespace that cannot be one"),
        ({"namespace": "a\nb"}, "a namespace that cannot be one"),
    ],
)
async def test_token_with_other_claims_is_refused(
    file: Path, issuer: Issuer, claims: Mapping[str, Any], problem: str
) -> None:
    error = await refusal(JwtAccess(KeyFile(file), _rules()), _bearer(issuer.token(**claims)))
    assert (error.code, error.reason) == (UNAUTHENTICATED, "CREDENTIAL_INVALID")
    assert problem in error.message


@pytest.mark.parametrize("claim", ["exp", "nbf"])
async def test_clocks_may_differ_by_the_leeway(file: Path, issuer: Issuer, claim: str) -> None:
    access = JwtAccess(KeyFile(file), _rules())
    off = int(time.time()) + (10 if claim == "nbf" else -10)
    assert await accepted(access, _bearer(issuer.token(**{claim: off}))) == ACME
    await refusal(JwtAccess(KeyFile(file), _rules(leeway_seconds=0)), _bearer(issuer.token(**{claim: off})))


async def test_token_that_is_not_signed_by_the_issuer_is_refused(file: Path, issuer: Issuer) -> None:
    access = JwtAccess(KeyFile(file), _rules())
    good = issuer.token()
    head, claims, signature = good.split(".")
    another = Issuer()
    public = json.dumps(issuer.key_set()).encode()
    for token, problem in {
        _joined({"alg": "none"}, CLAIMS, b""): "in a way that is not accepted",
        _joined({"alg": "none", "kid": issuer.key_id}, CLAIMS, b""): "in a way that is not accepted",
        "no.jwt": "is no JWT",
        "....": "is no JWT",
        f"{head}.{claims}.": "signature is not right",
        f"{head}.{claims}.{signature[:-4]}AAAA": "signature is not right",
        f"{head}.{issuer.token(namespace='other').split('.')[1]}.{signature}": "signature is not right",
        another.token(): "signature is not right",  # the same key id
        another.token(key_id="another"): "a key that is not known",
        # The public key as the secret of a symmetric signature.
        _signed_with_a_secret(public, issuer.key_id): "in a way that is not accepted",
    }.items():
        error = await refusal(access, _bearer(token))
        assert error.code is UNAUTHENTICATED
        assert problem in error.message
    assert await accepted(access, _bearer(good)) == ACME


async def test_algorithm_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    issuer = Issuer("RS256")
    path = tmp_path / "jwks.json"
    replace(path, json.dumps(issuer.key_set()))
    caller = _bearer(issuer.token(algorithm="PS256"))
    assert "not accepted" in (await refusal(JwtAccess(KeyFile(path), _rules()), caller)).message
    assert await accepted(JwtAccess(KeyFile(path), _rules(algorithms=("PS256",))), caller) == ACME


async def test_key_is_used_for_its_algorithm_alone(tmp_path: Path) -> None:
    issuer = Issuer("RS256")
    (entry,) = issuer.key_set()["keys"]
    path = tmp_path / "jwks.json"
    replace(path, json.dumps({"keys": [{**entry, "alg": "RS512"}]}))
    access = JwtAccess(KeyFile(path), _rules(algorithms=("RS256", "RS512")))
    await refusal(access, _bearer(issuer.token()))
    assert await accepted(access, _bearer(issuer.token(algorithm="RS512"))) == ACME


async def test_token_without_a_key_id_is_checked_with_the_only_key(file: Path, issuer: Issuer) -> None:
    access = JwtAccess(KeyFile(file), _rules())
    key = new_key("ES256")
    replace(file, json.dumps({"keys": [public_jwk(key)]}))
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 60, "namespace": "acme"}
    caller = _bearer(jwt.encode(claims, key, "ES256"))
    assert await accepted(access, caller) == ACME
    replace(file, json.dumps({"keys": [public_jwk(key, kid="one"), *issuer.key_set()["keys"]]}))
    await refusal(access, caller)


@pytest.mark.parametrize(
    ("path", "namespace"),
    [
        ("kubernetes.io.namespace", "agents"),
        ("kubernetes.io.pod.name", "host-0"),
        ("https://acme.example/namespace", "tenant"),
        ("kubernetes.io", None),
        ("kubernetes.io.namespace.more", None),
        ("io.namespace", None),
        ("namespace", None),
    ],
)
async def test_namespace_is_found_at_its_path(
    file: Path, issuer: Issuer, path: str, namespace: str | None
) -> None:
    caller = _bearer(
        issuer.token(
            namespace=None,
            **{
                "kubernetes.io": {"namespace": "agents", "pod": {"name": "host-0"}},
                "https://acme.example/namespace": "tenant",
            },
        )
    )
    access = JwtAccess(KeyFile(file), _rules(namespace_claim=path))
    if namespace is None:
        assert "does not tell a namespace" in (await refusal(access, caller)).message
    else:
        assert (await accepted(access, caller)).own_namespace == namespace


def test_longest_name_at_a_path_counts() -> None:
    claims = {"a": {"b": {"c": 1}}, "a.b": {"c": 2}}
    assert claim_at(claims, "a.b.c") == 2
    assert claim_at({**claims, "a.b.c": 3}, "a.b.c") == 3
    assert claim_at({"a": {"b": {"c": 1}}, "a.b": {}}, "a.b.c") == 1


@pytest.mark.parametrize(
    ("claim", "rights"),
    [
        (["read", "erase"], {Right.READ}),
        ("openid read write", {Right.READ, Right.WRITE}),
        (["read write"], set()),
        ("readwrite", set()),
        ([], set()),
        (None, set()),
        (7, set()),
        ({"read": True}, set()),
        ([["read"]], set()),
    ],
)
async def test_rights_are_those_of_the_claim_within_those_of_the_setting(
    file: Path, issuer: Issuer, claim: Any, rights: set[Right]
) -> None:
    rules = _rules(rights=frozenset({Right.READ, Right.WRITE}), rights_claim="access.rights")
    access = JwtAccess(KeyFile(file), rules)
    assert (await accepted(access, _bearer(issuer.token(access={"rights": claim})))).rights == rights


async def test_rights_are_those_of_the_setting_without_a_claim(file: Path, issuer: Issuer) -> None:
    access = JwtAccess(KeyFile(file), _rules(rights=frozenset({Right.READ})))
    assert (await accepted(access, _bearer(issuer.token(rights=["erase"])))).rights == {Right.READ}


async def test_token_that_was_accepted_expires(file: Path, issuer: Issuer) -> None:
    access = JwtAccess(KeyFile(file), _rules(leeway_seconds=0))
    caller = _bearer(issuer.token(exp=int(time.time()) + 2))
    assert await accepted(access, caller) == ACME
    await until(lambda: _is_refused(access, caller), "the token is not accepted any more")
    assert "has expired" in (await refusal(access, caller)).message


async def _is_refused(access: JwtAccess, caller: Caller) -> bool:
    try:
        await access.authenticate(caller)
    except ApiError:
        return True
    return False


async def test_key_that_is_taken_away_takes_accepted_tokens_along(file: Path, issuer: Issuer) -> None:
    access = JwtAccess(KeyFile(file), _rules())
    caller = _bearer(issuer.token())
    assert await accepted(access, caller) == ACME
    issuer.rotate()
    replace(file, json.dumps(issuer.key_set()))
    assert "a key that is not known" in (await refusal(access, caller)).message
    assert await accepted(access, _bearer(issuer.token())) == ACME


async def test_many_tokens_are_accepted(file: Path, issuer: Issuer) -> None:
    """More than are remembered."""
    access = JwtAccess(KeyFile(file), _rules())
    callers = [_bearer(issuer.token(jti=str(number))) for number in range(1100)]
    for caller in [*callers, callers[0]]:
        assert await accepted(access, caller) == ACME
    assert len(access._checked) <= 1024


# Key sets


def test_keys_that_are_not_safe_are_left_out() -> None:
    weak = rsa.generate_private_key(65537, 1024)
    good = new_key("ES256")
    entries: list[Any] = [
        public_jwk(weak, kid="weak"),
        {"kty": "oct", "kid": "symmetric", "k": "c2VjcmV0"},
        public_jwk(new_key("ES256"), kid="encryption", use="enc"),
        public_jwk(new_key("ES256"), kid="operation", key_ops=["encrypt"]),
        public_jwk(new_key("ES256"), kid="operations", key_ops="verify"),
        public_jwk(new_key("ES256"), kid="symmetric-algorithm", alg="HS256"),
        public_jwk(new_key("ES256"), kid="wrong-algorithm", alg="RS256"),
        {"kty": "EC", "kid": "no-point", "crv": "P-256"},
        {"kty": "EC", "kid": "bad-point", "crv": "P-256", "x": "AAAA", "y": "AAAA"},
        {"kty": "RSA", "kid": "no-number"},
        {"kty": 5, "crv": ["P-256"], "kid": "kinds"},
        public_jwk(new_key("ES256"), kid=5),
        "no object",
        public_jwk(good, kid="good"),
    ]
    assert list(parse_key_set(json.dumps({"keys": entries}).encode(), "here").keys) == ["good"]


def test_private_part_of_a_key_is_left_alone() -> None:
    key = new_key("RS256")
    with_private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key)) | {"kid": "k", "key_ops": ["verify"]}
    assert "d" in with_private
    found = parse_key_set(json.dumps({"keys": [with_private]}).encode(), "here").find("k")
    assert found is not None
    assert isinstance(found.key, rsa.RSAPublicKey)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"keys": 1}', '{"keys": []}', '{"keys": [{"kty": "oct"}]}']
)
def test_what_is_no_key_set_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(text)
    with pytest.raises(FileError) as told:
        KeyFile(path)
    assert str(path) in str(told.value)


# From a URL


async def test_keys_are_fetched_before_the_first_call(issuer: Issuer, server: KeyServer) -> None:
    access = JwtAccess(KeyUrl(server.url, refresh_seconds=300), _rules())
    await until(lambda: server.requests == 1, "the keys are fetched")
    assert await accepted(access, _bearer(issuer.token())) == ACME
    assert server.requests == 1


async def test_calls_at_one_time_wait_for_one_fetch(issuer: Issuer, server: KeyServer) -> None:
    access = JwtAccess(KeyUrl(server.url, refresh_seconds=300), _rules())
    callers = [_bearer(issuer.token(jti=str(number))) for number in range(20)]
    assert await asyncio.gather(*(accepted(access, caller) for caller in callers)) == [ACME] * 20
    assert server.requests == 1


async def test_unknown_key_has_the_set_fetched_but_not_again_and_again(
    issuer: Issuer, server: KeyServer
) -> None:
    clock = Clock()
    access = JwtAccess(KeyUrl(server.url, refresh_seconds=300, clock=clock), _rules())
    assert await accepted(access, _bearer(issuer.token())) == ACME
    issuer.rotate(keep=True)
    for number in range(5):
        await refusal(access, _bearer(issuer.token(key_id=f"made-up-{number}")))
    assert server.requests == 1
    clock.now += 6
    assert await accepted(access, _bearer(issuer.token())) == ACME
    assert server.requests == 2


async def test_set_is_fetched_again_when_it_is_old(issuer: Issuer, server: KeyServer) -> None:
    clock = Clock()
    access = JwtAccess(KeyUrl(server.url, refresh_seconds=300, clock=clock), _rules())
    caller = _bearer(issuer.token())
    assert await accepted(access, caller) == ACME
    issuer.rotate()
    clock.now += 301
    assert await accepted(access, caller) == ACME  # does not wait for it

    await until(lambda: _is_refused(access, caller), "the old key is not accepted any more")
    assert server.requests == 2


ANSWERS: Mapping[str, tuple[int, Mapping[str, str], bytes]] = {
    "error": (500, {}, b"out of order"),
    "no JSON": (200, {}, b"<html>"),
    "too large": (200, {}, b" " * 2**20 + b"{}"),
    "redirection": (302, {"location": "/elsewhere"}, b""),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_without_keys_nobody_gets_in_and_is_told_to_try_again(
    issuer: Issuer, server: KeyServer, answer: str
) -> None:
    server.answer = ANSWERS[answer]
    clock = Clock()
    with structlog.testing.capture_logs() as lines:
        access = JwtAccess(KeyUrl(server.url, refresh_seconds=300, clock=clock), _rules())
        error = await refusal(access, _bearer(issuer.token()))
    assert (error.code, error.retry_seconds) == (UNAVAILABLE, 1.0)
    assert [line["log_level"] for line in lines] == ["error"]
    assert server.requests == 1
    server.answer = None
    clock.now += 6
    assert await accepted(access, _bearer(issuer.token())) == ACME


@pytest.mark.parametrize("answer", ANSWERS)
async def test_keys_stay_while_they_cannot_be_fetched(issuer: Issuer, server: KeyServer, answer: str) -> None:
    clock = Clock()
    access = JwtAccess(KeyUrl(server.url, refresh_seconds=300, clock=clock), _rules())
    assert await accepted(access, _bearer(issuer.token())) == ACME
    server.answer = ANSWERS[answer]
    clock.now += 301
    error = await refusal(access, _bearer(issuer.token(key_id="unknown")))  # waits for the fetch
    assert error.code is UNAUTHENTICATED
    assert server.requests == 2
    assert await accepted(access, _bearer(issuer.token(jti="another"))) == ACME


async def test_server_that_is_not_there(issuer: Issuer) -> None:
    with key_server(issuer) as gone:
        pass
    access = JwtAccess(KeyUrl(gone.url, refresh_seconds=300), _rules())
    assert (await refusal(access, _bearer(issuer.token()))).code is UNAVAILABLE


async def test_keys_are_asked_for_with_the_token_that_the_file_holds_now(
    tmp_path: Path, issuer: Issuer, server: KeyServer
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("first-token\n")
    clock = Clock()
    keys = KeyUrl(server.url, refresh_seconds=300, token_file=token_file, clock=clock)
    await keys.refresh()
    replace(token_file, "second-token")
    clock.now += 6
    await keys.refresh()
    assert server.asked_with == ["Bearer first-token", "Bearer second-token"]


async def test_token_file_that_cannot_be_used_is_told_without_its_text(
    tmp_path: Path, issuer: Issuer, server: KeyServer
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("secret\nX-Other: header")
    with structlog.testing.capture_logs() as lines:
        await KeyUrl(server.url, refresh_seconds=300, token_file=token_file).refresh()
    assert str(token_file) in lines[0]["cause"]
    assert "secret" not in str(lines)
    assert server.requests == 0


async def test_keys_come_from_a_server_with_a_certificate_of_the_authority(
    tmp_path: Path, issuer: Issuer
) -> None:
    certificates, others = Certificates(), Certificates()
    for authority, name in ((certificates, "ca.crt"), (others, "others.crt")):
        (tmp_path / name).write_bytes(authority.ca)
    with key_server(issuer, certificates.authority.issue_cert("127.0.0.1")) as server:
        trusting = JwtAccess(KeyUrl(server.url, refresh_seconds=300, ca=tmp_path / "ca.crt"), _rules())
        assert await accepted(trusting, _bearer(issuer.token())) == ACME
        for ca in (tmp_path / "others.crt", None):
            access = JwtAccess(KeyUrl(server.url, refresh_seconds=300, ca=ca), _rules())
            assert (await refusal(access, _bearer(issuer.token()))).code is UNAVAILABLE


def test_authority_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.crt"):
        KeyUrl("https://issuer.example/", refresh_seconds=300, ca=tmp_path / "none.crt")
