"""The bearer token of a call."""

from typing import Any

from turnstore_service.rpc.errors import unauthenticated
from turnstore_service.rpc.metadata import metadata_of

_SCHEME = "bearer "


def bearer_token(context: Any) -> str:
    """What follows `Bearer` in the metadata `authorization`.

    Raises:
        ApiError: UNAUTHENTICATED; there is none, or more than one, or something else.
    """
    found = [value for key, value in metadata_of(context) if key == "authorization"]
    if not found:
        raise unauthenticated(
            "no credential: send a token in the metadata, as `authorization: Bearer <token>`"
        )
    if len(found) > 1:
        raise unauthenticated("more than one `authorization` in the metadata")
    value = str(found[0])
    token = value[len(_SCHEME) :].strip(" ") if value[: len(_SCHEME)].lower() == _SCHEME else ""
    if not token or not token.isascii():
        raise unauthenticated("the metadata `authorization` is not of the form `Bearer <token>`")
    return token
