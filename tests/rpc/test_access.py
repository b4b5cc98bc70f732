"""Who may do what: every RPC of the contract against every kind of credential that must not be enough."""

import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.credentials import (
    AUDIENCE,
    ISSUER,
    Certificates,
    Issuer,
    key_server,
    replace,
    secure_channel,
    tokens_json,
    until,
)
from tests.service_process import service_in_process
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2
from turnstore_service import server
from turnstore_service.operations import live_files
from turnstore_service.operations.metrics import Metrics
from turnstore_service.operations.settings import Settings
from turnstore_service.rpc.access import RIGHTS
from turnstore_service.rpc.service import HistoryService

SERVICE = rpc.DESCRIPTOR.services_by_name["HistoryService"]
METHODS = {method.name: method for method in SERVICE.methods}
_READING = (
    *("ResolveHistory", "GetResponse", "ListInputItems", "BatchGetItems", "ListResponses", "GetMetadata"),
    "ReadStreamEvents",
)
_WRITING = (
    *("StoreResponse", "SetReplayExclusion", "RenewLease", "ReleaseLease", "RequestCancel", "UpdateMetadata"),
    "AppendStreamEvents",
)
NEEDED = {
    **dict.fromkeys(_READING, frozenset({"read"})),
    **dict.fromkeys(_WRITING, frozenset({"write"})),
    "ClaimResponses": frozenset({"read", "write"}),
    **dict.fromkeys(("DeleteResponse", "DeleteConversation", "DeleteUserData"), frozenset({"erase"})),
}
"""The rights that each RPC needs. One that is new has no place here yet, and fails the tests."""
ALL = ("read", "write", "erase")

OTHERS = "others"
"""A namespace in which there is something, and that is not the caller's."""
OWN = "acme"
OTHERS_WORDS = ("secret-response", "secret-conversation", "secret-item", "secret-user", "secret-text")

UNAUTHENTICATED = ("UNAUTHENTICATED", "CREDENTIAL_INVALID")
DENIED = ("PERMISSION_DENIED", "NAMESPACE_DENIED")
NO_CONNECTION = ("UNAVAILABLE", "")


@dataclass(frozen=True)
class Connection:
    """A way to the service, with a credential."""

    channel: grpc.aio.Channel
    token: str | None = None

    async def call(self, method: str, request: bytes) -> "Answer":
        metadata = () if self.token is None else (("authorization", f"Bearer {self.token}"),)
        path = f"/{SERVICE.full_name}/{method}"
        try:
            if METHODS[method].server_streaming:
                call = self.channel.unary_stream(path)(request, metadata=metadata, timeout=30)
                return Answer("OK", "", "", b"".join([reply async for reply in call]))
            return Answer(
                "OK", "", "", await self.channel.unary_unary(path)(request, metadata=metadata, timeout=30)
            )
        except grpc.aio.AioRpcError as error:
            return _answer(error)


@dataclass(frozen=True)
class Answer:
    code: str
    reason: str
    message: str
    details: bytes

    @property
    def kind(self) -> tuple[str, str]:
        return self.code, self.reason


def _answer(error: grpc.aio.AioRpcError) -> Answer:
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(bytes(details)).details:
        detail.Unpack(info)
    return Answer(error.code().name, info.reason, error.details() or "", bytes(details))


def _request(method: str, namespace: str, prefix: str = "secret") -> Any:
    """A request of an RPC that names things, made from its descriptor."""
    request = getattr(rpc, METHODS[method].input_type.name)()
    fields = request.DESCRIPTOR.fields_by_name
    if "scope" in fields:
        request.scope.namespace = namespace
    else:
        request.namespace = namespace
    for name in ("response_id", "conversation_id"):
        if name in fields:
            setattr(request, name, f"{prefix}-{name.removesuffix('_id')}")
    if method == "BatchGetItems":
        request.item_ids.append(f"{prefix}-item")
    if method == "StoreResponse":
        request.response.id = f"{prefix}-response"
    return request


@dataclass(frozen=True)
class Door:
    """A running service that asks for credentials of one kind."""

    caller: Callable[[str, Sequence[str]], Connection]
    """With an accepted credential: of a namespace, with rights."""
    strangers: Mapping[str, tuple[Connection, tuple[str, str]]]
    """By what is wrong with the credential: the connection, and what it must be answered."""


def _grants() -> list[tuple[str, tuple[str, ...]]]:
    sets = [rights for size in (1, 2, 3) for rights in itertools.combinations(ALL, size)]
    return [(namespace, rights) for namespace in (OWN, OTHERS) for rights in sets]


def _name(namespace: str, rights: Sequence[str]) -> str:
    return f"{namespace}-{'-'.join(right for right in ALL if right in rights)}"


@asynccontextmanager
async def _tokens(base: Mapping[str, Any], directory: Path) -> AsyncIterator[Door]:
    tokens = [(f"token-of-{_name(*grant)}", *grant) for grant in _grants()]
    withdrawn = "token-that-was-withdrawn"
    file = directory / "tokens.json"
    replace(file, tokens_json(*tokens, (withdrawn, OWN, ALL)))
    async with service_in_process(**base, auth="tokens", tokens_file=file) as service:
        expired = Connection(service.channel, withdrawn)
        assert (await expired.call("DeleteUserData", b"")).code == "OK"
        replace(file, tokens_json(*tokens))
        yield Door(
            lambda namespace, rights: Connection(service.channel, f"token-of-{_name(namespace, rights)}"),
            {
                "no credential": (Connection(service.channel), UNAUTHENTICATED),
                "wrong": (Connection(service.channel, "token-that-never-was"), UNAUTHENTICATED),
                "expired": (expired, UNAUTHENTICATED),
            },
        )


@asynccontextmanager
async def _jwts(base: Mapping[str, Any], directory: Path) -> AsyncIterator[Door]:
    issuer, another = Issuer(), Issuer()
    with key_server(issuer) as keys:
        settings = {
            "auth": "jwt",
            "jwt_jwks": keys.url,
            "jwt_issuer": ISSUER,
            "jwt_audience": AUDIENCE,
            "jwt_namespace_claim": "kubernetes.io.namespace",
            "jwt_rights": "read,write,erase",
            "jwt_rights_claim": "rights",
        }
        async with service_in_process(**base, **settings) as service:

            def caller(
                namespace: str, rights: Sequence[str], by: Issuer = issuer, **claims: Any
            ) -> Connection:
                claims |= {"kubernetes.io": {"namespace": namespace}, "rights": list(rights)}
                return Connection(service.channel, by.token(**claims))

            yield Door(
                caller,
                {
                    "no credential": (Connection(service.channel), UNAUTHENTICATED),
                    "wrong": (caller(OWN, ALL, another), UNAUTHENTICATED),
                    "expired": (caller(OWN, ALL, exp=1), UNAUTHENTICATED),
                },
            )


@asynccontextmanager
async def _certificates(base: Mapping[str, Any], directory: Path) -> AsyncIterator[Door]:
    certificates, others = Certificates(), Certificates()
    key, chain = certificates.server()
    for name, content in (("tls.key", key), ("tls.crt", chain), ("ca.crt", certificates.ca)):
        (directory / name).write_bytes(content)
    entries = [
        {
            "spiffe_id": f"spiffe://test/{_name(namespace, rights)}",
            "namespace": namespace,
            "rights": list(rights),
        }
        for namespace, rights in _grants()
    ]
    (directory / "certificates.json").write_text(json.dumps({"certificates": entries}))
    settings = {
        "server_tls_key": directory / "tls.key",
        "server_tls_cert": directory / "tls.crt",
        "server_tls_client_ca": directory / "ca.crt",
        "certificates_file": directory / "certificates.json",
    }
    opened: dict[str, Connection] = {}
    async with service_in_process(**base, **settings) as service:

        def connection(name: str, client: tuple[bytes, bytes] = (b"", b"")) -> Connection:
            if name not in opened:
                opened[name] = Connection(secure_channel(service.target, certificates.ca, client))
            return opened[name]

        def caller(namespace: str, rights: Sequence[str]) -> Connection:
            name = _name(namespace, rights)
            return connection(name, certificates.client(spiffe_ids=[f"spiffe://test/{name}"]))

        acme = [f"spiffe://test/{_name(OWN, ALL)}"]
        yield Door(
            caller,
            {
                "no credential": (connection("none"), NO_CONNECTION),
                "plain text": (Connection(service.channel), NO_CONNECTION),
                "wrong": (
                    connection("unknown", certificates.client(spiffe_ids=["spiffe://test/x"])),
                    UNAUTHENTICATED,
                ),
                "of another authority": (
                    connection("strange", others.client(spiffe_ids=acme)),
                    NO_CONNECTION,
                ),
                "expired": (
                    connection("expired", certificates.client(spiffe_ids=acme, expired=True)),
                    NO_CONNECTION,
                ),
            },
        )
        for one in opened.values():
            await one.channel.close()


Opener = Callable[[Mapping[str, Any], Path], AbstractAsyncContextManager[Door]]
KINDS: Mapping[str, Opener] = {"tokens": _tokens, "jwt": _jwts, "certificates": _certificates}


@pytest.fixture(autouse=True)
def files_are_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a token that was taken away is refused at once."""
    monkeypatch.setattr(live_files, "LOOK_SECONDS", 0.0)


@pytest.fixture
def base(mongodb_uri: str, database_name: str) -> Mapping[str, Any]:
    return {"mongodb_uri": mongodb_uri, "mongodb_database": database_name}


@pytest.fixture(params=KINDS)
async def door(
    request: pytest.FixtureRequest, base: Mapping[str, Any], tmp_path: Path
) -> AsyncIterator[Door]:
    async with KINDS[request.param](base, tmp_path) as opened:
        yield opened


@pytest.fixture
async def tokens(base: Mapping[str, Any], tmp_path: Path) -> AsyncIterator[Door]:
    async with _tokens(base, tmp_path) as opened:
        yield opened


async def _kinds(
    connection: Callable[[str], Connection], request: Callable[[str], bytes]
) -> dict[str, tuple[str, str]]:
    return {method: (await connection(method).call(method, request(method))).kind for method in METHODS}


def test_every_rpc_of_the_contract_is_covered() -> None:
    assert set(NEEDED) == set(METHODS)


def test_every_rpc_needs_what_it_should() -> None:
    assert {name: set(map(str, rights)) for name, rights in RIGHTS.items()} == NEEDED


async def test_credential_that_is_not_accepted_is_not_enough_for_any_rpc(door: Door) -> None:
    """No credential, a wrong one, an expired one."""
    for what, (connection, answer) in door.strangers.items():
        found = await _kinds(lambda _, of=connection: of, lambda m: _request(m, OWN).SerializeToString())
        assert found == dict.fromkeys(METHODS, answer), what


async def test_credential_of_another_namespace_is_not_enough_for_any_rpc(door: Door) -> None:
    found = await _kinds(lambda _: door.caller(OWN, ALL), lambda m: _request(m, OTHERS).SerializeToString())
    assert found == dict.fromkeys(METHODS, DENIED)


async def test_right_that_is_missing_is_missed_by_every_rpc_that_needs_it(door: Door) -> None:
    for missing in ALL:
        rest = [right for right in ALL if right != missing]
        found = await _kinds(
            lambda _, rights=rest: door.caller(OWN, rights), lambda m: _request(m, OWN).SerializeToString()
        )
        refused = {method for method, kind in found.items() if kind == DENIED}
        assert refused == {method for method, needed in NEEDED.items() if missing in needed}, missing


async def test_rights_that_an_rpc_needs_are_enough(door: Door) -> None:
    """In the own namespace, named or not."""
    for namespace in (OWN, ""):
        found = await _kinds(
            lambda m: door.caller(OWN, tuple(NEEDED[m])),
            lambda m, named=namespace: _request(m, named).SerializeToString(),
        )
        assert {code for code, _ in found.values()} <= {
            "OK",
            "NOT_FOUND",
            "INVALID_ARGUMENT",
            "UNIMPLEMENTED",
        }


@pytest.mark.parametrize("request_bytes", [b"\xff", b"x" * 70_000], ids=["no message", "too large"])
async def test_nothing_is_answered_before_the_credential_is(
    base: Mapping[str, Any], tmp_path: Path, request_bytes: bytes
) -> None:
    async with _tokens({**base, "max_request_bytes": 65536}, tmp_path) as door:
        connection, answer = door.strangers["no credential"]
        assert await _kinds(lambda _: connection, lambda _: request_bytes) == dict.fromkeys(METHODS, answer)
        kinds = await _kinds(lambda _: door.caller(OWN, ALL), lambda _: request_bytes)
        assert set(kinds.values()) <= {
            ("INVALID_ARGUMENT", "INVALID_FIELD"),
            ("RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE"),
        }


async def _store_secrets(connection: Connection) -> None:
    stored = await connection.call(
        "StoreResponse",
        rpc.StoreResponseRequest(
            scope=response_pb2.Scope(namespace=OTHERS),
            response=response_pb2.Response(
                id="secret-response",
                status=response_pb2.RESPONSE_STATUS_COMPLETED,
                conversation_id="secret-conversation",
                input_items=[response_pb2.Item(json='{"id":"secret-item","text":"secret-text"}')],
            ),
        ).SerializeToString(),
    )
    assert stored.code == "OK"


def _calls(lines: Sequence[Any]) -> list[Any]:
    return [line for line in lines if line["event"] == "call"]


async def test_refusal_tells_nothing_of_what_exists(tokens: Door) -> None:
    caller = tokens.caller(OWN, ALL)
    before = {m: await caller.call(m, _request(m, OTHERS).SerializeToString()) for m in METHODS}
    await _store_secrets(tokens.caller(OTHERS, ALL))
    with structlog.testing.capture_logs() as lines:
        after = {m: await caller.call(m, _request(m, OTHERS).SerializeToString()) for m in METHODS}
        await until(lambda: len(_calls(lines)) == len(METHODS), "every call is logged")
    assert after == before
    told = f"{after} {lines}"
    assert [word for word in OTHERS_WORDS if word in told] == []


async def test_own_namespace_tells_nothing_of_what_exists_in_another(tokens: Door) -> None:
    """Asked for by its ids, it is answered like what exists nowhere."""
    await _store_secrets(tokens.caller(OTHERS, ALL))
    caller = tokens.caller(OWN, ALL)
    for method in METHODS.keys() - {"StoreResponse"}:
        existing = await caller.call(method, _request(method, OWN).SerializeToString())
        nowhere = await caller.call(method, _request(method, OWN, "nobody").SerializeToString())
        assert existing.kind == nowhere.kind, method
        assert existing.message == nowhere.message.replace("nobody-", "secret-"), method
        assert b"secret-text" not in existing.details
    # And the id is free in the caller's own namespace.
    assert (
        await caller.call("StoreResponse", _request("StoreResponse", OWN).SerializeToString())
    ).code == "OK"


async def test_empty_namespace_is_the_credentials_own(tokens: Door) -> None:
    own, others = tokens.caller(OWN, ALL), tokens.caller(OTHERS, ALL)
    request = _request("StoreResponse", "", "mine").SerializeToString()
    assert (await own.call("StoreResponse", request)).code == "OK"
    for connection, namespace, code in ((own, OWN, "OK"), (own, "", "OK"), (others, "", "NOT_FOUND")):
        answer = await connection.call(
            "GetResponse", _request("GetResponse", namespace, "mine").SerializeToString()
        )
        assert answer.code == code


async def test_refused_call_is_logged_with_the_cause_and_without_the_credential(tokens: Door) -> None:
    with structlog.testing.capture_logs() as lines:
        for connection in (
            tokens.strangers["wrong"][0],
            tokens.caller(OWN, ["read"]),
            tokens.caller(OWN, ALL),
        ):
            await connection.call("StoreResponse", _request("StoreResponse", OTHERS).SerializeToString())
        await until(lambda: len(_calls(lines)) == 3, "every call is logged")
    refused = _calls(lines)
    assert [line["code"] for line in refused] == ["UNAUTHENTICATED", "PERMISSION_DENIED", "PERMISSION_DENIED"]
    assert refused[0]["refusal"] == "the token is not accepted"
    assert "token-" not in str(lines)


async def test_health_needs_no_credential(base: Mapping[str, Any], tmp_path: Path) -> None:
    replace(tmp_path / "tokens.json", tokens_json())
    async with service_in_process(**base, auth="tokens", tokens_file=tmp_path / "tokens.json") as service:
        service.health.set_ready(True)
        reply = await health_pb2_grpc.HealthStub(service.channel).Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("served", [True, False])
async def test_reflection_follows_its_setting(base: Mapping[str, Any], tmp_path: Path, served: bool) -> None:
    replace(tmp_path / "tokens.json", tokens_json())
    settings = {**base, "auth": "tokens", "tokens_file": tmp_path / "tokens.json", "reflection": served}
    async with service_in_process(**settings) as service:
        call = reflection_pb2_grpc.ServerReflectionStub(service.channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        try:
            answer = "OK" if [reply async for reply in call] else "nothing"
        except grpc.aio.AioRpcError as error:
            answer = error.code().name
        assert answer == ("OK" if served else "UNIMPLEMENTED")


async def test_both_a_certificate_and_a_token_are_asked_for(base: Mapping[str, Any], tmp_path: Path) -> None:
    certificates = Certificates()
    key, chain = certificates.server()
    for name, content in (("tls.key", key), ("tls.crt", chain), ("ca.crt", certificates.ca)):
        (tmp_path / name).write_bytes(content)
    entries = [
        {"name": "host.example", "namespace": OWN, "rights": ["read", "write"]},
        {"name": "other.example", "namespace": OTHERS, "rights": ["read", "write"]},
    ]
    (tmp_path / "certificates.json").write_text(json.dumps({"certificates": entries}))
    (tmp_path / "tokens.json").write_text(tokens_json(("token-of-acme-0001", OWN, ["read", "erase"])))
    settings = {
        "auth": "tokens",
        "tokens_file": tmp_path / "tokens.json",
        "server_tls_key": tmp_path / "tls.key",
        "server_tls_cert": tmp_path / "tls.crt",
        "server_tls_client_ca": tmp_path / "ca.crt",
        "certificates_file": tmp_path / "certificates.json",
    }
    async with service_in_process(**base, **settings) as service:
        host, other = (
            secure_channel(service.target, certificates.ca, certificates.client(name))
            for name in ("host.example", "other.example")
        )
        async with host, other:
            token = "token-of-acme-0001"

            async def kind(connection: Connection, method: str) -> tuple[str, str]:
                return (await connection.call(method, _request(method, OWN).SerializeToString())).kind

            assert await kind(Connection(host, token), "GetResponse") == ("NOT_FOUND", "RESPONSE_NOT_FOUND")
            assert await kind(Connection(host, token), "StoreResponse") == DENIED
            assert await kind(Connection(host, token), "DeleteResponse") == DENIED
            assert await kind(Connection(host), "GetResponse") == UNAUTHENTICATED
            assert await kind(Connection(other, token), "GetResponse") == UNAUTHENTICATED


class _Broken:
    """An access with a defect."""

    async def authenticate(self, context: Any) -> Any:
        raise RuntimeError("what went wrong")


async def test_defect_in_the_check_lets_nobody_in(base: Mapping[str, Any]) -> None:
    settings = Settings(**base, listen="127.0.0.1:0")
    grpc_server = server.make_server(settings, Metrics(server.SERVED))
    address = server.bind(grpc_server, settings.listen)
    store = await server.open_store(settings.mongodb_uri or "", settings)
    try:
        HistoryService(store, settings, _Broken()).add_to_server(grpc_server)
        await grpc_server.start()
        async with grpc.aio.insecure_channel(str(address)) as channel:
            found = await _kinds(
                lambda _: Connection(channel), lambda m: _request(m, OWN).SerializeToString()
            )
        assert found == dict.fromkeys(METHODS, ("INTERNAL", "INTERNAL_ERROR"))
    finally:
        await grpc_server.stop(None)
        await store.close()


async def test_without_credentials_every_namespace_is_open_and_the_empty_one_is_default(
    history_channel: grpc.aio.Channel,
) -> None:
    stub = history_service_pb2_grpc.HistoryServiceStub(history_channel)
    for namespace in ("", "acme"):
        await stub.StoreResponse(
            rpc.StoreResponseRequest(
                scope=response_pb2.Scope(namespace=namespace),
                response=response_pb2.Response(id=f"of-{namespace}"),
            )
        )
    for namespace, response_id in (("default", "of-"), ("acme", "of-acme")):
        scope = response_pb2.Scope(namespace=namespace)
        reply = await stub.GetResponse(rpc.GetResponseRequest(scope=scope, response_id=response_id))
        assert reply.response.id == response_id
