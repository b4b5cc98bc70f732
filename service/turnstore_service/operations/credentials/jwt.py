"""JSON Web Tokens of an issuer whose public keys are known, those of Kubernetes service accounts included."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
from jwt import exceptions

from turnstore_service.operations.credentials.bearer import bearer_token
from turnstore_service.operations.credentials.key_sets import Key, KeySet, KeySource
from turnstore_service.rpc import parsing
from turnstore_service.rpc.access import Principal, Right
from turnstore_service.rpc.errors import ApiError, credentials_unavailable, unauthenticated

_REMEMBERED = 1024
"""Tokens that were checked. A signature takes a tenth of a millisecond, and callers send the same token with
every call for minutes or hours."""

_PROBLEMS: Sequence[tuple[type[Exception], str]] = (
    (exceptions.ExpiredSignatureError, "the token has expired"),
    (exceptions.ImmatureSignatureError, "the token is not valid yet"),
    (exceptions.InvalidIssuerError, "the token is of another issuer"),
    (exceptions.InvalidAudienceError, "the token is for another audience"),
    (exceptions.MissingRequiredClaimError, "the token lacks one of the claims exp, iss and aud"),
    (exceptions.InvalidSignatureError, "the token's signature is not right"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtRules:
    """What tokens must be like."""

    issuer: str
    audience: str
    algorithms: Collection[str]
    leeway_seconds: float
    namespace_claim: str
    """The path of the claim with the namespace; see `claim_at`."""
    rights: frozenset[Right]
    """The most that any token gives."""
    rights_claim: str | None
    """The path of the claim with the rights; None: every token gives `rights`."""


class JwtAccess:
    """Accepts the tokens of one issuer."""

    def __init__(self, keys: KeySource, rules: JwtRules) -> None:
        self._keys = keys
        self._rules = rules
        # By token: when it expires, and whose it is. Of one key set: another one forgets them all.
        self._checked: dict[str, tuple[float, Principal]] = {}
        self._checked_with: KeySet | None = None
        keys.current()  # has it fetched

    async def authenticate(self, context: Any) -> Principal:
        """The holder of the call's token.

        Raises:
            ApiError: UNAUTHENTICATED; there is no token, or it is not accepted. UNAVAILABLE; no key set could
                be fetched yet.
        """
        token = bearer_token(context)
        key_set = self._keys.current()
        if key_set is not self._checked_with:
            self._checked.clear()
            self._checked_with = key_set
        known = self._checked.get(token)
        if known is not None and time.time() < known[0]:
            return known[1]
        key_id, algorithm = _header(token)
        key = None if key_set is None else key_set.find(key_id)
        if key is None:
            await self._keys.refresh()
            key_set = self._keys.current()
            if key_set is None:
                raise credentials_unavailable()
            key = key_set.find(key_id)
        if key is None:
            raise unauthenticated("the token is signed with a key that is not known")
        claims = self._verified(token, key, algorithm)
        principal = self._principal(claims)
        if key_set is self._checked_with:
            self._remember(token, float(claims["exp"]) + self._rules.leeway_seconds, principal)
        return principal

    def _verified(self, token: str, key: Key, algorithm: str) -> Mapping[str, Any]:
        if algorithm not in key.algorithms or algorithm not in self._rules.algorithms:
            raise unauthenticated("the token is signed in a way that is not accepted")
        try:
            return jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                leeway=self._rules.leeway_seconds,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (exceptions.PyJWTError, ArithmeticError, ValueError, TypeError) as error:
            raise unauthenticated(_problem(error)) from None

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        namespace = claim_at(claims, self._rules.namespace_claim)
        if not isinstance(namespace, str) or not namespace:
            raise unauthenticated("the token does not tell a namespace")
        try:
            parsing.namespace("namespace", namespace)
        except ApiError:
            raise unauthenticated("the token tells a namespace that cannot be one") from None
        rights = self._rules.rights
        if self._rules.rights_claim is not None:
            claimed = claim_at(claims, self._rules.rights_claim)
            words = claimed.split() if isinstance(claimed, str) else claimed
            rights = frozenset(right for right in rights if isinstance(words, list) and right in words)
        return Principal(namespace, rights)

    def _remember(self, token: str, expires: float, principal: Principal) -> None:
        if len(self._checked) >= _REMEMBERED:
            del self._checked[next(iter(self._checked))]
        self._checked[token] = expires, principal


def claim_at(claims: Any, path: str) -> Any:
    """What a token says at a path; None if there is nothing.

    Dots lead into nested objects. Names may have dots themselves: of several readings, the one with the longest
    name first counts.

    >>> claim_at({"kubernetes.io": {"namespace": "agents"}}, "kubernetes.io.namespace")
    'agents'
    """
    if not isinstance(claims, dict):
        return None
    if path in claims:
        return claims[path]
    end = len(path)
    while (end := path.rfind(".", 0, end)) > 0:
        if path[:end] in claims:
            found = claim_at(claims[path[:end]], path[end + 1 :])
            if found is not None:
                return found
    return None


def _header(token: str) -> tuple[str | None, str]:
    try:
        header = jwt.get_unverified_header(token)
    except (exceptions.PyJWTError, ValueError):
        raise unauthenticated("the token is no JWT") from None
    key_id, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(key_id, str | None) or not isinstance(algorithm, str):
        raise unauthenticated("the token is no JWT")
    return key_id, algorithm


def _problem(error: Exception) -> str:
    for kind, problem in _PROBLEMS:
        if isinstance(error, kind):
            return problem
    return "the token is not accepted"
