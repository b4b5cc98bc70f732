"""Whose data a call is about."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Scope:
    """A namespace, and an end user in it. Nothing of one scope is visible from another.

    A client has a scope of its own, which its calls use unless they are given another one::

        client.get_response("resp_1", scope=client.scope.for_user("anna"))
    """

    namespace: str
    """The agent host or tenant, at most 256 characters. Empty: the credential's own namespace, which is
    `default` when the service runs without authentication."""

    user: str | None = None
    """The end user, at most 256 characters. None: the anonymous partition, never "all users". `""` and `" "`
    are users of their own."""

    def for_user(self, user: str | None) -> Scope:
        """Return the scope of another user (None: the anonymous partition) in the same namespace."""
        return replace(self, user=user)
