"""Page tokens and pages.

A token is opaque and carries no authority: it says where the next page begins, of which request, and by a digest
of what. Any replica can continue from it, and it is refused when the other arguments change (AIP-158).
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson
from google.protobuf.message import Message

from turnstore_service.rpc.errors import ApiError, history_changed, invalid
from turnstore_service.storage.values import Scope

ITEM_OVERHEAD_BYTES = 32
"""Tags and lengths around an item in a reply."""
_CHECK_BYTES = 8
_MOST_NUMBER = 1 << 53

_BAD_TOKEN = "is none that this service gave"  # noqa: S105 - not a password
_OTHER_CALL = "belongs to a call with other arguments: repeat them, or begin again without a token"


class Cursor:
    """Where a page begins."""

    __slots__ = ("_arguments", "digest", "numbers")

    def __init__(self, arguments: Callable[[], bytes], numbers: Sequence[int], digest: bytes) -> None:
        self._arguments = arguments
        self.numbers = numbers
        """Positions, as the RPC that made the token counts them."""
        self.digest = digest
        """Of what is read page by page; empty on a first page."""

    @property
    def is_first(self) -> bool:
        """Whether the call has no token."""
        return not self.numbers

    def check(self, digest: bytes) -> None:
        """Raises HISTORY_CHANGED when what is read is no longer what the first page was of."""
        if self.numbers and digest != self.digest:
            raise history_changed()

    def next(self, numbers: Sequence[int], digest: bytes) -> str:
        """The token of the page that begins there."""
        body = orjson.dumps([list(numbers), digest.hex()])
        arguments = self._arguments()
        return base64.urlsafe_b64encode(_seal(arguments, body) + arguments + body).decode().rstrip("=")


def cursor(request: Message, scope: Scope, token: str, count: int) -> Cursor:
    """The cursor of a call whose tokens have `count` numbers. Raises INVALID_ARGUMENT for a bad token."""
    arguments = partial(_arguments, request, scope)  # most calls never need it
    if not token:
        return Cursor(arguments, (), b"")
    if len(token) > 1024:
        raise _bad()
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _bad() from None
    seal, given, body = data[:_CHECK_BYTES], data[_CHECK_BYTES : 2 * _CHECK_BYTES], data[2 * _CHECK_BYTES :]
    if seal != _seal(given, body):
        raise _bad()
    if given != arguments():
        raise invalid("page_token", _OTHER_CALL)
    return Cursor(arguments, *_content(body, count))


def _content(body: bytes, count: int) -> tuple[list[int], bytes]:
    try:
        numbers, digest = orjson.loads(body)
        if len(numbers) == count and all(type(n) is int and 0 <= n < _MOST_NUMBER for n in numbers):
            return numbers, bytes.fromhex(digest)
    except (ValueError, TypeError):
        pass
    raise _bad()


def _bad() -> ApiError:
    return invalid("page_token", _BAD_TOKEN)


def _seal(arguments: bytes, body: bytes) -> bytes:
    # Tells a token from something that only looks like one. It is no signature: a token grants nothing.
    return hashlib.blake2b(arguments + body, digest_size=_CHECK_BYTES, person=b"page token").digest()


def _arguments(request: Message, scope: Scope) -> bytes:
    """Digest of everything in a request but the token and the page size, which may differ from page to page."""
    same: Any = type(request)()
    same.CopyFrom(request)
    for name in ("page_token", "page_size", "scope"):
        if name in same.DESCRIPTOR.fields_by_name:
            same.ClearField(name)
    digest = hashlib.blake2b(digest_size=_CHECK_BYTES)
    digest.update(f"{same.DESCRIPTOR.name}\n{scope.key}\n".encode())
    digest.update(same.SerializeToString(deterministic=True))
    return digest.digest()


class Page:
    """Room in a reply. The first thing always has room, so that every page gets on."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._empty = True
        self.is_full = False

    @property
    def room(self) -> int:
        """Bytes left."""
        return max(self._room, 1)

    def takes_all(self, sizes: int, count: int) -> bool:
        """Takes room for many things at once, if there is room for all of them; else for none."""
        if self.is_full or sizes + count * ITEM_OVERHEAD_BYTES > self._room:
            return False
        self._room -= sizes + count * ITEM_OVERHEAD_BYTES
        self._empty = self._empty and not count
        return True

    def takes(self, size: int) -> bool:
        """Takes room for something; False, from then on, when there is none."""
        size += ITEM_OVERHEAD_BYTES
        if self.is_full or (size > self._room and not self._empty):
            self.is_full = True
            return False
        self._room -= size
        self._empty = False
        return True
