"""Bearer tokens from a file.

    {"tokens": [
      {"token": "6f0c…", "namespace": "acme", "rights": ["read", "write"]},
      {"sha256": "2bb8…", "namespace": "ops", "rights": ["read", "write", "erase"]}
    ]}

`sha256` is the hexadecimal SHA-256 of a token, so that the file need not hold it. Several tokens may be for one
namespace: to exchange one, add the new one, hand it out, and take the old one away.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnstore_service.operations.credentials.bearer import bearer_token
from turnstore_service.operations.credentials.grants import read_grants
from turnstore_service.operations.live_files import FileError, LiveFiles
from turnstore_service.rpc.access import Principal
from turnstore_service.rpc.errors import unauthenticated

SHORTEST_TOKEN = 16
"""Characters. Shorter ones can be guessed, and found out from their SHA-256."""

_Entries = Mapping[bytes, tuple[bytes, Principal]]


class TokenAccess:
    """Accepts the tokens of a file."""

    def __init__(self, path: Path) -> None:
        """Reads the file at once.

        Raises:
            FileError: It cannot be used.
        """
        # Entries are looked up by a hash under a key that only this process knows: how long that takes tells
        # nothing about them.
        self._key = secrets.token_bytes(32)
        self._entries = LiveFiles("the file of tokens", [path], lambda: self._read(path))

    async def authenticate(self, context: Any) -> Principal:
        """The holder of the call's token.

        Raises:
            ApiError: UNAUTHENTICATED; there is no token, or the file does not have it.
        """
        digest = hashlib.sha256(bearer_token(context).encode("utf-8", "surrogatepass")).digest()
        hidden = self._hidden(digest)
        # A new token counts at once; one that was taken away may be taken for a moment longer.
        found = self._entries.recent().get(hidden) or self._entries.current().get(hidden)
        if found is None or not hmac.compare_digest(found[0], digest):
            raise unauthenticated("the token is not accepted")
        return found[1]

    def _read(self, path: Path) -> _Entries:
        entries: dict[bytes, tuple[bytes, Principal]] = {}
        for where, holder, text, principal in read_grants(path, "tokens", ("token", "sha256")):
            if holder == "sha256":
                if not re.fullmatch(r"[0-9A-Fa-f]{64}", text):
                    raise FileError(f"{where}.sha256 must be 64 hexadecimal digits")
                digest = bytes.fromhex(text)
            else:
                if len(text) < SHORTEST_TOKEN or not re.fullmatch(r"[!-~]+", text):
                    raise FileError(
                        f"{where}.token must be {SHORTEST_TOKEN} or more printable ASCII characters without "
                        "spaces"
                    )
                digest = hashlib.sha256(text.encode()).digest()
            hidden = self._hidden(digest)
            if hidden in entries:
                raise FileError(f"{where} is the same token as an entry before it")
            entries[hidden] = digest, principal
        return entries

    def _hidden(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._key, digest_size=16).digest()
