"""The keys that JWTs are checked with: a JSON Web Key Set (RFC 7517) from a file or from a URL."""

import asyncio
import json
import re
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

import jwt
import structlog
from jwt.exceptions import PyJWTError

from turnstore_service.operations.live_files import FileError, LiveFiles

LEAST_RSA_BITS = 2048
_COOL_DOWN_SECONDS = 5.0
"""Between two fetches. Callers can ask for one by naming a key that is not known."""
_FETCH_SECONDS = 5.0
_MOST_BYTES = 1024 * 1024

_PUBLIC = ("kty", "crv", "x", "y", "n", "e")
"""The members of a key that are public and needed. A private part, published by mistake, is left alone."""

_OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVES = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",)}

_log = structlog.get_logger("turnstore_service.keys")


@dataclass(frozen=True, slots=True)
class Key:
    """A public key."""

    key: Any
    """As PyJWT takes it."""
    algorithms: Sequence[str]
    """What it may be used with: of its kind, and if the set says one, that alone."""


@dataclass(frozen=True, slots=True, eq=False)
class KeySet:
    """Keys by their id. A token without a key id is checked with the only key, if there is just one."""

    keys: Mapping[str | None, Key]

    def find(self, key_id: str | None) -> Key | None:
        """The key of this id."""
        if key_id is None and len(self.keys) == 1:
            return next(iter(self.keys.values()))
        return self.keys.get(key_id)


class KeySource(Protocol):
    """Where a key set comes from."""

    def current(self) -> KeySet | None:
        """The set as it was last read; None: it never was."""

    async def refresh(self) -> None:
        """Looks for a newer set, because a key is missing. Not at once again."""


class KeyFile:
    """A key set in a file, read again when that changes."""

    def __init__(self, path: Path) -> None:
        """Reads it at once.

        Raises:
            FileError: It cannot be used.
        """
        self._set = LiveFiles("the file of keys", [path], lambda: parse_key_set(path.read_bytes(), str(path)))

    def current(self) -> KeySet:
        """The set as the file has it."""
        return self._set.current()

    async def refresh(self) -> None:
        """Does nothing: a change is seen at once."""


class KeyUrl:
    """A key set behind a URL. It is fetched in the background; a set that was fetched stays until there is
    another one, also while the URL does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        refresh_seconds: float,
        ca: Path | None = None,
        token_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Fetches nothing yet.

        Args:
            url: Where the set is.
            refresh_seconds: After what time it is fetched again.
            ca: Certificates that the server's is checked against; None: those of the system.
            token_file: Holds a bearer token to ask with.
            clock: Tells seconds.

        Raises:
            FileError: The certificates cannot be used.
        """
        self._url = url
        self._refresh_seconds = refresh_seconds
        self._token_file = token_file
        self._clock = clock
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise FileError(f"{ca} cannot be used: {error.strerror or error}") from error
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirects()
        )
        self._set: KeySet | None = None
        self._fetch: asyncio.Task[None] | None = None
        self._began = float("-inf")

    def current(self) -> KeySet | None:
        """The set as it was last fetched. Has it fetched when that is due; must be called in the event loop."""
        due = self._refresh_seconds if self._set is not None else _COOL_DOWN_SECONDS
        if self._clock() - self._began >= due:
            self._start()
        return self._set

    async def refresh(self) -> None:
        """Waits for a fetch, unless the last one was begun and ended just before."""
        if not self._is_fetching() and self._clock() - self._began >= _COOL_DOWN_SECONDS:
            self._start()
        if self._fetch is not None and self._is_fetching():
            await asyncio.shield(self._fetch)  # others wait for it too

    def _is_fetching(self) -> bool:
        return self._fetch is not None and not self._fetch.done()

    def _start(self) -> None:
        if not self._is_fetching():
            self._began = self._clock()
            self._fetch = asyncio.create_task(self._load())

    async def _load(self) -> None:
        try:
            found = parse_key_set(await asyncio.to_thread(self._download), self._url)
        except (FileError, OSError, HTTPException) as error:
            kept = "what was fetched before stays" if self._set else "no token can be checked until it is"
            _log.error(f"the keys for credentials cannot be fetched; {kept}", url=self._url, cause=str(error))
            return
        if self._set is None or found.keys.keys() != self._set.keys.keys():
            _log.info("keys for credentials fetched", url=self._url, keys=sorted(map(str, found.keys)))
        self._set = found

    def _download(self) -> bytes:
        request = urllib.request.Request(self._url)  # noqa: S310 - settings allow https, and http on loopback
        if self._token_file is not None:
            request.add_header("Authorization", f"Bearer {_token(self._token_file)}")
        with self._opener.open(request, timeout=_FETCH_SECONDS) as reply:
            data: bytes = reply.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise FileError(f"more than {_MOST_BYTES} bytes")
        return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """They would take the token along, and could lead to a place without TLS."""

    def redirect_request(self, *_: Any) -> None:
        """None: the redirection becomes an error."""


def _token(path: Path) -> str:
    token = path.read_bytes().strip()
    if not re.fullmatch(rb"[!-~]+", token):  # said here, because the library would repeat it
        raise FileError(f"{path} does not hold a token")
    return token.decode()


def parse_key_set(data: bytes, where: str) -> KeySet:
    """The keys of a set that are for signatures and of a kind that is safe to use; others are left out.

    Raises:
        FileError: The data is no key set, or no such key is in it.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise FileError(f"{where} is not JSON") from None
    found = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise FileError(f'{where} is no key set, which is an object with a list "keys"')
    keys: dict[str | None, Key] = {}
    for entry in found:
        key = _key(entry) if isinstance(entry, dict) else None
        if key is not None:
            keys[entry.get("kid")] = key
    if not keys:
        raise FileError(f"{where} has no key for signatures of a kind that can be used")
    return KeySet(keys)


def _key(entry: Mapping[str, Any]) -> Key | None:
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    if not isinstance(entry.get("kid"), str | None):
        return None
    if entry.get("kty") == "RSA":
        kinds: Sequence[str] = _OF_RSA
    else:
        kinds = _OF_CURVES.get(str(entry.get("crv")), ())
    if "alg" in entry:
        kinds = [kind for kind in kinds if kind == entry["alg"]]
    if not kinds:
        return None
    try:
        key = jwt.PyJWK({name: entry[name] for name in _PUBLIC if name in entry}, kinds[0]).key
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    if getattr(key, "key_size", LEAST_RSA_BITS) < LEAST_RSA_BITS and kinds[0] in _OF_RSA:
        return None
    return Key(key, kinds)
