"""Who may do what: the right that each RPC needs, and how a call's credential becomes a namespace.

This is asked on every call before anything else about it is answered, and fails closed: what is not allowed
here is refused, whatever the reason. Where credentials come from is for `operations.credentials`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from turnstore_service.rpc import parsing
from turnstore_service.rpc.errors import namespace_denied, right_denied

DEFAULT_NAMESPACE = "default"
"""The namespace of a caller who names none, while credentials do not decide it. Contract."""


class Right(StrEnum):
    """What a credential may allow in its namespace."""

    READ = "read"
    """Reading responses, items, histories, metadata and stream events."""

    WRITE = "write"
    """Storing and changing them, and running turns."""

    ERASE = "erase"
    """Deleting responses, conversations and a user's data."""


ALL_RIGHTS = frozenset(Right)
_READ = frozenset({Right.READ})
_WRITE = frozenset({Right.WRITE})
_ERASE = frozenset({Right.ERASE})

RIGHTS: Mapping[str, frozenset[Right]] = {
    "StoreResponse": _WRITE,
    "ResolveHistory": _READ,
    "GetResponse": _READ,
    "SetReplayExclusion": _WRITE,
    "DeleteResponse": _ERASE,
    "ListInputItems": _READ,
    "BatchGetItems": _READ,
    "ListResponses": _READ,
    "DeleteConversation": _ERASE,
    "DeleteUserData": _ERASE,
    "RenewLease": _WRITE,
    "ReleaseLease": _WRITE,
    "RequestCancel": _WRITE,
    # It hands over everything that is stored of the turns it takes.
    "ClaimResponses": _READ | _WRITE,
    "UpdateMetadata": _WRITE,
    "GetMetadata": _READ,
    "AppendStreamEvents": _WRITE,
    "ReadStreamEvents": _READ,
}
"""What each RPC of the contract needs. The service does not start while one is missing here."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller whose credential was accepted."""

    own_namespace: str | None
    """The one namespace that the credential is for. None: any, which is what callers get while there are no
    credentials."""

    rights: frozenset[Right]

    def namespace(self, requested: str, needed: frozenset[Right]) -> str:
        """The namespace that a call works in.

        Args:
            requested: What the request names; empty for the credential's own.
            needed: The rights that the RPC needs.

        Raises:
            ApiError: PERMISSION_DENIED; another namespace than the credential's, or a right that it lacks.
        """
        own = self.own_namespace
        if own is None:
            own = requested or DEFAULT_NAMESPACE
        elif requested and requested != own:
            raise namespace_denied(requested)
        if not needed <= self.rights:
            raise right_denied(own, sorted(needed - self.rights))
        return own


ANYBODY = Principal(None, ALL_RIGHTS)
"""Every caller, while there are no credentials."""


class Access(Protocol):
    """Checks credentials."""

    async def authenticate(self, context: Any) -> Principal:
        """The caller of this call (a `grpc.aio.ServicerContext`).

        Raises:
            ApiError: UNAUTHENTICATED when there is no credential or it is not accepted; UNAVAILABLE when that
                cannot be found out now.
        """


class OpenAccess:
    """Lets everybody into every namespace."""

    async def authenticate(self, context: Any) -> Principal:  # noqa: ARG002 - there is nothing to look at
        """Anybody."""
        return ANYBODY


def namespace_reader(message: Any) -> Callable[[Any], str]:
    """A function that reads the namespace out of requests of this type (a descriptor).

    It raises INVALID_ARGUMENT for a namespace that cannot be one.

    Raises:
        LookupError: The type names no namespace, so nobody could be allowed to send it.
    """
    if "scope" in message.fields_by_name:
        return lambda request: parsing.namespace("scope.namespace", request.scope.namespace)
    if "namespace" in message.fields_by_name:
        return lambda request: parsing.namespace("namespace", request.namespace)
    raise LookupError(f"{message.full_name} has neither a scope nor a namespace")
