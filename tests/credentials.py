"""Credentials of every kind, made for a test, and the servers and files that they come from."""

import asyncio
import datetime as dt
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import jwt
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from turnstore_service.rpc.access import Access, Principal
from turnstore_service.rpc.errors import ApiError

ISSUER = "https://issuer.example"
AUDIENCE = "turnstore"


class Caller:
    """What an access sees of a call: its metadata, and who is at the other end of the connection."""

    def __init__(
        self, authorization: str | Sequence[str] = (), peer: Mapping[str, list[bytes]] | None = None
    ) -> None:
        sent = [authorization] if isinstance(authorization, str) else authorization
        self._metadata = (
            ("user-agent", "a test"),
            *(("authorization", value) for value in sent),
        )
        self._peer = peer or {}

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self._metadata

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self._peer


async def accepted(access: Access, caller: Caller) -> Principal:
    return await access.authenticate(caller)


async def refusal(access: Access, caller: Caller) -> ApiError:
    """The refusal of a caller who must not be accepted."""
    try:
        principal = await access.authenticate(caller)
    except ApiError as error:
        return error
    raise AssertionError(f"accepted as {principal}")


def replace(path: Path, content: str | bytes) -> None:
    """Puts a new file in the place of the old one, in one step."""
    written = path.with_name(f"{path.name}.new")
    written.write_bytes(content.encode() if isinstance(content, str) else content)
    written.replace(path)


def tokens_json(*entries: tuple[str, str, Sequence[str]]) -> str:
    """A file of tokens: token, namespace, rights of each."""
    return json.dumps(
        {
            "tokens": [
                {"token": token, "namespace": namespace, "rights": list(rights)}
                for token, namespace, rights in entries
            ]
        }
    )


class Issuer:
    """Makes JWTs, and tells the keys that they are checked with."""

    def __init__(self, kind: str = "ES256") -> None:
        self._kind = kind
        self._made = 0
        self._keys: dict[str, Any] = {}
        self.rotate()

    def rotate(self, *, keep: bool = False) -> None:
        """Signs with a new key from here on, and forgets those before unless told to keep them."""
        if not keep:
            self._keys.clear()
        self._made += 1
        self.key_id = f"key-{self._made}"
        self._keys[self.key_id] = new_key(self._kind)

    def token(self, *, key_id: str | None = None, algorithm: str | None = None, **claims: Any) -> str:
        """A token. Claims have defaults that are accepted; None leaves one out."""
        now = int(time.time())
        wanted = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 600, "iat": now, "namespace": "acme", **claims}
        return jwt.encode(
            {name: value for name, value in wanted.items() if value is not None},
            self._keys[self.key_id],
            algorithm=algorithm or self._kind,
            headers={"kid": self.key_id if key_id is None else key_id},
        )

    def key_set(self) -> dict[str, Any]:
        return {"keys": [public_jwk(key, kid=key_id, use="sig") for key_id, key in self._keys.items()]}


def new_key(kind: str) -> Any:
    if kind.startswith("ES"):
        return ec.generate_private_key({"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}[kind])
    return rsa.generate_private_key(65537, 2048)


def public_jwk(key: Any, **members: Any) -> dict[str, Any]:
    """The public part of a key, as a key set has it."""
    algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), **members}


class KeyServer:
    """Serves a key set over HTTP on loopback, as it is when it is asked for."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.asked_with: list[str | None] = []
        """The `authorization` of each request."""
        self.answer: tuple[int, Mapping[str, str], bytes] | None = None
        """Instead of the key set."""
        self.url = ""

    @property
    def requests(self) -> int:
        return len(self.asked_with)


@contextmanager
def key_server(issuer: Issuer, leaf: trustme.LeafCert | None = None) -> Iterator[KeyServer]:
    """A running server; over TLS if there is a certificate for it."""
    keys = KeyServer(issuer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.asked_with.append(self.headers["authorization"])
            status, headers, body = keys.answer or (200, {}, json.dumps(issuer.key_set()).encode())
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if leaf is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        leaf.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    keys.url = f"{'http' if leaf is None else 'https'}://127.0.0.1:{server.server_port}/keys"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield keys
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Certificates:
    """An authority, and certificates that it issues."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        self.ca = self.authority.cert_pem.bytes()

    def server(self, *names: str) -> tuple[bytes, bytes]:
        """Key and chain of a server on loopback."""
        leaf = self.authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
        chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        return leaf.private_key_pem.bytes(), chain

    def client(
        self,
        *names: str,
        spiffe_ids: Sequence[str] = (),
        common_name: str = "",
        expired: bool = False,
    ) -> tuple[bytes, bytes]:
        """Key and chain of a caller. Names are DNS names."""
        authority = x509.load_pem_x509_certificate(self.ca)
        signer: Any = serialization.load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=2))
            .not_valid_after(now + dt.timedelta(days=-1 if expired else 1))
        )
        alternatives: list[x509.GeneralName] = [x509.UniformResourceIdentifier(name) for name in spiffe_ids]
        alternatives += [x509.DNSName(name) for name in names]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(signer, hashes.SHA256())
        return (
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            certificate.public_bytes(serialization.Encoding.PEM),
        )


def secure_channel(target: str, ca: bytes, client: tuple[bytes, bytes] = (b"", b"")) -> grpc.aio.Channel:
    """A channel with TLS, and with a connection of its own: channels of one process share them otherwise."""
    key, chain = client
    return grpc.aio.secure_channel(
        target,
        grpc.ssl_channel_credentials(ca, key or None, chain or None),
        options=[("grpc.use_local_subchannel_pool", 1)],
    )


async def until(condition: Any, what: str, seconds: float = 20) -> None:
    """Returns as soon as the condition (a function, or one that is awaited) holds."""
    ends = time.monotonic() + seconds
    while True:
        held = condition()
        if asyncio.iscoroutine(held):
            held = await held
        if held:
            return
        assert time.monotonic() < ends, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.005)
