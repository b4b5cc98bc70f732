"""The check of credentials that the settings ask for."""

from pathlib import Path

from turnstore_service.operations.credentials.certificates import BothAccess, CertificateAccess
from turnstore_service.operations.credentials.tokens import TokenAccess
from turnstore_service.operations.live_files import FileError
from turnstore_service.operations.settings import Settings, is_url
from turnstore_service.rpc.access import Access, OpenAccess, Right


def open_access(settings: Settings) -> Access:
    """What checks the credentials of calls. To be called in the event loop, where keys are fetched.

    Raises:
        FileError: A file cannot be used, or a package is missing.
    """
    access: Access = OpenAccess()
    if settings.tokens_file is not None:
        access = TokenAccess(settings.tokens_file)
    elif settings.auth == "jwt":
        access = _jwt_access(settings)
    if settings.certificates_file is None:
        return access
    certificates = CertificateAccess(settings.certificates_file)
    return certificates if settings.auth == "none" else BothAccess(certificates, access)


def _jwt_access(settings: Settings) -> Access:
    try:
        from turnstore_service.operations.credentials.jwt import JwtAccess, JwtRules
        from turnstore_service.operations.credentials.key_sets import KeyFile, KeySource, KeyUrl
    except ImportError as error:
        raise FileError(
            "TURNSTORE_AUTH=jwt needs PyJWT with cryptography: install turnstore-service with its extra `jwt`"
        ) from error
    where = settings.jwt_jwks or ""  # the settings are refused without it, the issuer and the audience
    keys: KeySource
    if is_url(where):
        keys = KeyUrl(
            where,
            refresh_seconds=settings.jwt_jwks_refresh.total_seconds(),
            ca=settings.jwt_jwks_ca,
            token_file=settings.jwt_jwks_token_file,
        )
    else:
        keys = KeyFile(Path(where))
    rules = JwtRules(
        issuer=settings.jwt_issuer or "",
        audience=settings.jwt_audience or "",
        algorithms=settings.jwt_algorithms,
        leeway_seconds=settings.jwt_leeway.total_seconds(),
        namespace_claim=settings.jwt_namespace_claim,
        rights=frozenset(map(Right, settings.jwt_rights)),
        rights_claim=settings.jwt_rights_claim,
    )
    return JwtAccess(keys, rules)
