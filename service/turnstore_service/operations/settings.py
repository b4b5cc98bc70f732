"""The settings: environment variables that begin with TURNSTORE_.

This module is their one list. The command line's help, the table in the documentation and the checks at the
start are made from it.
"""

import difflib
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from turnstore_service.operations.addresses import Address, is_loopback, parse_address
from turnstore_service.operations.quantities import format_duration, format_size, parse_duration, parse_size

PREFIX = "TURNSTORE_"
KIB = 1024
MIB = 1024 * KIB

MAX_ITEM_BYTES = 16 * MIB
"""Largest JSON text of one item. Part of the contract, so no setting."""

JWT_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""What tokens may be signed with. Asymmetric ones alone: whoever can check a symmetric one can also make it."""

RIGHTS = ("read", "write", "erase")
"""What a credential may allow."""

_OTHERS = re.compile(
    # What the project's clients read, and what the tests read.
    r"TURNSTORE_((TARGET|NAMESPACE|USER|TOKEN|TOKEN_FILE|TIMEOUT|TLS|TLS_.*|CLIENT_.*|TEST_.*)"
    # What Kubernetes tells every pod about a Service whose name begins with `turnstore`.
    r"|(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_\d+_.*))"
)
"""Variables that begin like the service's, and are none of its business."""


_WORDING = {"int_parsing": "must be a whole number", "bool_parsing": "must be true or false"}
"""Better words than pydantic's, by its type of error."""


class SettingsError(Exception):
    """The settings cannot be used. `problems` has one sentence for each variable, fit to be shown."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _text(parse: Any) -> Any:
    """Applies a parser to text; values that the program itself gives pass."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _or_off(parse: Any) -> Any:
    return _text(lambda text: None if text.strip().lower() == "off" else parse(text))


def _shown(form: Any) -> Any:
    return PlainSerializer(lambda value: "off" if value is None else form(value), return_type=str)


def _between(parse: Any, least: str, most: str) -> Any:
    """Bounds, told as they are written here."""

    def check(value: Any) -> Any:
        if value is not None and not parse(least) <= value <= parse(most):
            raise ValueError(f"must be from {least} to {most}")
        return value

    return AfterValidator(check)


Size = Annotated[int, _text(parse_size), _shown(format_size)]
Duration = Annotated[timedelta, _text(parse_duration), _shown(format_duration)]
OptionalDuration = Annotated[timedelta | None, _or_off(parse_duration), _shown(format_duration)]
ListenAddress = Annotated[Address, NoDecode, _text(parse_address), _shown(str)]
OptionalListenAddress = Annotated[Address | None, NoDecode, _or_off(parse_address), _shown(str)]


def mask_uri(uri: str) -> str:
    """The URI without what is secret in it, fit to be shown."""
    scheme, separator, rest = uri.partition("://") if "://" in uri else ("", "", uri)
    # Up to the last @: an unescaped @ or / in a password makes the URI invalid, yet it is a password.
    _, at, rest = rest.rpartition("@")
    rest = re.sub(r"(?i)\b(authMechanismProperties|tlsCertificateKeyFilePassword)=[^&]*", r"\1=***", rest)
    return f"{scheme}{separator}{'***@' if at else ''}{rest}"


def _check_uri(uri: str) -> str:
    if not uri.startswith(("mongodb://", "mongodb+srv://")):
        raise ValueError("must begin with mongodb:// or mongodb+srv://; unset it for the embedded MongoDB")
    if uri.startswith("mongodb://"):  # the other form is resolved by DNS, which is for the connection to do
        try:
            parse_uri(uri)
        except OSError as error:
            raise ValueError(f"names a file that cannot be used: {error.strerror}") from None
        except (PyMongoError, ValueError):
            # The driver's words could repeat a part of a password, so they are not passed on.
            raise ValueError(
                "must be mongodb://[user:password@]host[:port],.../?replicaSet=... with user and password "
                "percent-encoded"
            ) from None
    return uri


def _check_database(name: str) -> str:
    if not name or len(name.encode()) > 63 or re.search(r'[/\\. "$*<>:|?\x00]', name):
        raise ValueError('must be 1 to 63 bytes without any of / \\ . " $ * < > : | ? and spaces')
    if name in {"admin", "config", "local"}:
        raise ValueError("is a database of MongoDB's own")
    return name


def _check_path(path: str) -> str:
    if not path.strip():
        raise ValueError("must be a path")
    return path


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _words(known: tuple[str, ...]) -> Any:
    """A list of known words with commas between."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(","))
        if len(set(words)) != len(words) or not set(words) <= set(known):
            raise ValueError(f"must be one or more of {', '.join(known)}, with commas between")
        return words

    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


Words = PlainSerializer(",".join, return_type=str)
OptionalPath = Annotated[Path | None, _text(_check_path)]
OptionalText = Annotated[str | None, _text(_check_text)]


def is_url(text: str) -> bool:
    """Whether a setting that may be a path is a URL."""
    return "://" in text


def _check_key_set(text: str) -> str:
    if not is_url(text):
        return _check_path(text)
    url = urlsplit(text)
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
        raise ValueError("must be a path or a URL with https; with http only on this machine")
    if url.username is not None or url.password is not None:
        raise ValueError("must be a URL without a user; TURNSTORE_JWT_JWKS_TOKEN_FILE is for credentials")
    return text


class Settings(BaseSettings):
    """All settings of the service. Values are read from the environment; arguments take precedence.

    Use `load_settings`, which also looks for variables that are no settings.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    listen: ListenAddress = Field(
        default=Address("127.0.0.1", 50051),
        description="Where the gRPC service listens, host:port. Port 0: any free one.",
    )
    metrics_listen: OptionalListenAddress = Field(
        default=Address("127.0.0.1", 9464),
        description="Where /metrics is served over HTTP, host:port, or off. Port 0: any free one.",
    )
    health_listen: OptionalListenAddress = Field(
        default=None,
        description="Where health is served once more, alone and without TLS, host:port, or off: for probes that "
        "can show no certificate, such as those of Kubernetes. Port 0: any free one.",
    )
    auth: Annotated[Literal["none", "tokens", "jwt"], _text(str.lower)] = Field(
        default="none",
        description="How callers show who they are: none, tokens (TURNSTORE_TOKENS_FILE) or jwt "
        "(TURNSTORE_JWT_*). With none, whoever reaches the service may do everything, so it listens on "
        "loopback only.",
    )
    allow_unauthenticated: bool = Field(
        default=False,
        description="Whether the service may listen on other addresses than loopback although callers show no "
        "credentials: true or false.",
    )
    tokens_file: OptionalPath = Field(
        default=None,
        description="File of the tokens that are accepted, as JSON, each with its namespace and rights. Read "
        "again when it changes.",
    )
    jwt_jwks: Annotated[str | None, _text(_check_key_set)] = Field(
        default=None,
        description="Key set (JWKS) that JWTs are checked with: a URL with https, or a file, which is read again "
        "when it changes.",
    )
    jwt_jwks_ca: OptionalPath = Field(
        default=None,
        description="Certificates, as PEM, that the key set's server is checked against. Not set: those of "
        "the system.",
    )
    jwt_jwks_token_file: OptionalPath = Field(
        default=None, description="File of a bearer token that the key set is asked for with."
    )
    jwt_jwks_refresh: Annotated[Duration, _between(parse_duration, "1s", "24h")] = Field(
        default=timedelta(minutes=5),
        description="After what time the key set is fetched again from its URL. A token with an unknown key "
        "has it fetched sooner.",
    )
    jwt_issuer: OptionalText = Field(default=None, description="Issuer (`iss`) that JWTs must have.")
    jwt_audience: OptionalText = Field(
        default=None, description="Audience (`aud`) that JWTs must have, if among others."
    )
    jwt_algorithms: Annotated[tuple[str, ...], NoDecode, _words(JWT_ALGORITHMS), Words] = Field(
        default=("RS256", "ES256"),
        description=f"What JWTs may be signed with, of {', '.join(JWT_ALGORITHMS)}.",
    )
    jwt_leeway: Annotated[Duration, _between(parse_duration, "0s", "10m")] = Field(
        default=timedelta(seconds=30),
        description="How far the clock of whoever issues JWTs may be off.",
    )
    jwt_namespace_claim: Annotated[str, _text(_check_text)] = Field(
        default="namespace",
        description="Claim of JWTs that tells the namespace; dots lead into nested ones. Of Kubernetes "
        "service accounts: kubernetes.io.namespace.",
    )
    jwt_rights: Annotated[tuple[str, ...], NoDecode, _words(RIGHTS), Words] = Field(
        default=("read", "write"),
        description="Rights of callers with a JWT, of read, write, erase.",
    )
    jwt_rights_claim: OptionalText = Field(
        default=None,
        description="Claim of JWTs, a list or words with spaces between, that tells which of TURNSTORE_JWT_RIGHTS "
        "the caller has. Not set: all of them.",
    )
    server_tls_cert: OptionalPath = Field(
        default=None,
        description="The service's certificate chain, as PEM; TLS is on when it is set. Read again when it changes.",
    )
    server_tls_key: OptionalPath = Field(
        default=None, description="Key of the service's certificate, as PEM without a password."
    )
    server_tls_client_ca: OptionalPath = Field(
        default=None,
        description="Certificates, as PEM, that those of callers are checked against (mutual TLS). When it is "
        "set, every caller must have one. Read again when it changes.",
    )
    certificates_file: OptionalPath = Field(
        default=None,
        description="File that tells, as JSON, the namespace and rights of callers by their certificate's SPIFFE "
        "id or name. Beside tokens or JWTs, both must agree. Read again when it changes.",
    )
    mongodb_uri: Annotated[
        str | None,
        _text(_check_uri),
        PlainSerializer(lambda uri: None if uri is None else mask_uri(uri), return_type=str | None),
    ] = Field(
        default=None,
        repr=False,
        description="Connection string of a MongoDB replica set or sharded cluster. Not set: the service "
        "runs a MongoDB of its own, with its data under TURNSTORE_DATA_DIR.",
    )
    mongodb_uri_file: Annotated[Path | None, _text(_check_path)] = Field(
        default=None,
        description="File that holds the connection string, instead of TURNSTORE_MONGODB_URI: for a secret "
        "that is mounted. Read once, at the start.",
    )
    mongodb_database: Annotated[str, _text(_check_database)] = Field(
        default="turnstore", description="Name of the database."
    )
    data_dir: Annotated[Path, _text(_check_path)] = Field(
        default=Path(".turnstore"),
        description="Directory of the embedded MongoDB; made when it is not there.",
    )
    mongod: Annotated[str | None, _text(_check_path)] = Field(
        default=None,
        description="The mongod program of the embedded MongoDB, a path or a name. Not set: mongod on "
        "the PATH, else the one that the extra `embedded` installs.",
    )
    mongod_cache: Annotated[Size, _between(parse_size, "256MiB", "1024GiB")] = Field(
        default=256 * MIB,
        description="Cache of the embedded MongoDB's storage engine, in bytes; 256MiB or more.",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _text(str.lower)] = Field(
        default="info", description="The least severity that is logged: debug, info, warning or error."
    )
    log_format: Annotated[Literal["auto", "json", "console"], _text(str.lower)] = Field(
        default="auto",
        description="How log lines look: json, console, or auto (console on a terminal, else json). They go "
        "to standard error.",
    )
    max_request_bytes: Annotated[Size, _between(parse_size, "64KiB", "1GiB")] = Field(
        default=64 * MIB,
        description="Largest request, in bytes, from 64KiB to 1GiB.",
    )
    max_reply_bytes: Annotated[Size, _between(parse_size, "64KiB", "1GiB")] = Field(
        default=3584 * KIB,
        description="Size, in bytes, under which a reply is kept by paging, from 64KiB to 1GiB. gRPC clients "
        "refuse replies above 4MiB unless told otherwise. A single larger item still comes whole.",
    )
    default_policy: Annotated[Literal["as_stored", "model_safe"], _text(str.lower)] = Field(
        default="as_stored",
        description="The replay policy for fields that a request leaves unset: as_stored or model_safe.",
    )
    abandon_after: Annotated[OptionalDuration, _between(parse_duration, "1s", "3650d")] = Field(
        default=None,
        description="Queued and running turns without a lease that have not changed for so long count as "
        "failed; a duration, or off.",
    )
    erase_grace: Annotated[Duration, _between(parse_duration, "0s", "3650d")] = Field(
        default=timedelta(hours=24),
        description="How long after the deletion of a user's data the places of the deleted turns are kept.",
    )
    default_deadline: Annotated[Duration, _between(parse_duration, "100ms", "1h")] = Field(
        default=timedelta(seconds=30),
        description="Deadline of calls whose caller set none.",
    )
    max_deadline: Annotated[Duration, _between(parse_duration, "100ms", "1h")] = Field(
        default=timedelta(minutes=5),
        description="Longest deadline of a call; longer ones are lowered to it.",
    )
    pool_size: Annotated[int, _between(int, "1", "512")] = Field(
        default=24,
        description="Database calls at one time, and calls that run at one time; more wait for their turn. "
        "One namespace runs eleven twelfths of them at the most, a sixth while others have calls too, and one in "
        "24 if it then has more calls than its limit.",
    )
    max_calls: Annotated[int, _between(int, "2", "1000000")] = Field(
        default=1000,
        description="Calls at one time in all, running and waiting. Beyond it, calls of the namespace that "
        "has the most waiting are answered RESOURCE_EXHAUSTED, with the time to come back at.",
    )
    max_calls_per_namespace: Annotated[int, _between(int, "1", "1000000")] = Field(
        default=500,
        description="Calls of one namespace at one time, running and waiting; below TURNSTORE_MAX_CALLS. More "
        "are answered RESOURCE_EXHAUSTED, with the time to come back at.",
    )
    keepalive_time: Annotated[Duration, _between(parse_duration, "1s", "24h")] = Field(
        default=timedelta(minutes=2),
        description="How long a connection may be silent before the service asks whether the caller is still "
        "there.",
    )
    keepalive_timeout: Annotated[Duration, _between(parse_duration, "100ms", "10m")] = Field(
        default=timedelta(seconds=20),
        description="How long the service waits for that answer before it closes the connection.",
    )
    keepalive_min_interval: Annotated[Duration, _between(parse_duration, "1ms", "24h")] = Field(
        default=timedelta(seconds=30),
        description="How often callers may ask whether the service is still there; who asks more often is "
        "disconnected.",
    )
    max_connection_age: Annotated[OptionalDuration, _between(parse_duration, "1s", "3650d")] = Field(
        default=timedelta(minutes=5),
        description="After what time a connection is ended once its calls are done, so that callers find new "
        "instances and show new certificates; a duration, or off.",
    )
    max_connection_age_grace: Annotated[Duration, _between(parse_duration, "1s", "24h")] = Field(
        default=timedelta(minutes=5),
        description="How long calls may then go on.",
    )
    health_interval: Annotated[Duration, _between(parse_duration, "100ms", "1m")] = Field(
        default=timedelta(seconds=1),
        description="Time between two checks of the database, which readiness follows.",
    )
    shutdown_pause: Annotated[Duration, _between(parse_duration, "0s", "10m")] = Field(
        default=timedelta(seconds=0),
        description="On SIGTERM, how long calls are still taken after health has turned, so that load "
        "balancers notice first.",
    )
    shutdown_grace: Annotated[Duration, _between(parse_duration, "0s", "10m")] = Field(
        default=timedelta(seconds=20),
        description="On SIGTERM, after the pause, how long running calls may take to end.",
    )
    reflection: bool = Field(default=True, description="Whether server reflection is served: true or false.")
    otel: Annotated[Literal["off", "on"], _text(str.lower)] = Field(
        default="off",
        description="Whether calls are traced with OpenTelemetry: off or on. Needs the extra `otel`; where spans "
        "are sent to is for the variables OTEL_EXPORTER_OTLP_* to say.",
    )
    workers: Annotated[int, _between(int, "1", "64")] = Field(
        default=1,
        description="Processes that take calls, from 1 to 64. Several share the port, each connection being "
        "one's; their metrics are added up, and each has the limits and TURNSTORE_POOL_SIZE for itself. When "
        "one ends by itself, the service ends, with status 1.",
    )
    uvloop: bool = Field(
        default=True,
        description="Whether the event loop of uvloop is used where it is installed: true or false.",
    )
    ready_file: Annotated[Path | None, _text(_check_path)] = Field(
        default=None,
        description="File to write once the ports are open, as JSON with pid, listen, metrics_listen and "
        "mongodb_uri. Removed at the end.",
    )

    @property
    def max_item_bytes(self) -> int:
        """Largest JSON text of one item."""
        return MAX_ITEM_BYTES

    @model_validator(mode="before")
    @classmethod
    def _read_uri_file(cls, values: Any) -> Any:
        """From here on it makes no difference where the connection string came from."""
        path = values.get("mongodb_uri_file")
        if path is None or not str(path).strip():  # an empty path is refused with the others
            return values
        if values.get("mongodb_uri") is not None:
            raise ValueError(f"{PREFIX}MONGODB_URI and {PREFIX}MONGODB_URI_FILE are both set: one is enough")
        try:
            # What an editor or `kubectl create secret` leaves at the end is not part of it.
            uri = _check_uri(Path(path).read_text(encoding="utf-8").strip())
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ValueError(f"{PREFIX}MONGODB_URI_FILE={path} cannot be read: {reason}") from None
        except ValueError as error:
            raise ValueError(f"{PREFIX}MONGODB_URI_FILE={path}: its text {error}") from None
        return {**values, "mongodb_uri": uri}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.default_deadline > self.max_deadline:
            raise ValueError(
                f"{PREFIX}DEFAULT_DEADLINE ({format_duration(self.default_deadline)}) is above "
                f"{PREFIX}MAX_DEADLINE ({format_duration(self.max_deadline)})"
            )
        if self.max_calls_per_namespace >= self.max_calls:
            raise ValueError(
                f"{PREFIX}MAX_CALLS_PER_NAMESPACE ({self.max_calls_per_namespace}) is not below "
                f"{PREFIX}MAX_CALLS ({self.max_calls}), so that one namespace could shut out all others"
            )
        if problem := self._access_problem() or self._tls_problem():
            raise ValueError(problem)
        addresses = {
            "LISTEN": self.listen,
            "METRICS_LISTEN": self.metrics_listen,
            "HEALTH_LISTEN": self.health_listen,
        }
        for (name, address), (other, same) in combinations(addresses.items(), 2):
            if address is not None and address == same and address.port:
                raise ValueError(f"{PREFIX}{name} and {PREFIX}{other} are the same address")
        return self

    def _access_problem(self) -> str | None:
        # What protects nothing must not look as if it did.
        for name in sorted(self.model_fields_set):
            owner = "tokens" if name == "tokens_file" else name.partition("_")[0]
            if owner in {"tokens", "jwt"} and owner != self.auth and getattr(self, name) is not None:
                return f"{PREFIX}{name.upper()} is of no effect without {PREFIX}AUTH={owner}"
        needed = {
            "none": (),
            "tokens": ("tokens_file",),
            "jwt": ("jwt_jwks", "jwt_issuer", "jwt_audience"),
        }[self.auth]
        for name in needed:
            if getattr(self, name) is None:
                return f"{PREFIX}AUTH={self.auth} needs {PREFIX}{name.upper()}"
        is_open = self.auth == "none" and self.certificates_file is None
        if is_open and not self.listen.is_loopback and not self.allow_unauthenticated:
            return (
                f"{PREFIX}LISTEN={self.listen} can be reached by others, who could read and erase everything "
                f"while {PREFIX}AUTH=none: choose {PREFIX}AUTH=tokens or jwt, or {PREFIX}CERTIFICATES_FILE, or "
                f"say {PREFIX}ALLOW_UNAUTHENTICATED=true"
            )
        return None

    def _tls_problem(self) -> str | None:
        for name, other in (
            ("server_tls_cert", "server_tls_key"),
            ("server_tls_key", "server_tls_cert"),
            ("server_tls_client_ca", "server_tls_cert"),
            ("certificates_file", "server_tls_client_ca"),
        ):
            if getattr(self, name) is not None and getattr(self, other) is None:
                return f"{PREFIX}{name.upper()} needs {PREFIX}{other.upper()}"
        return None


class SettingRow(NamedTuple):
    """One setting, as people are told about it."""

    variable: str
    value: str
    """Empty: not set."""
    description: str


def load_settings() -> Settings:
    """The settings that the environment gives.

    Raises:
        SettingsError: With one sentence for each variable that is wrong or unknown.
    """
    problems = unknown_variables(os.environ)
    try:
        settings = Settings()
    except ValidationError as error:
        problems = [*_problems_of(error, os.environ), *problems]
    if problems:
        raise SettingsError(problems)
    return settings


def variables() -> list[str]:
    """The names of all settings."""
    return [PREFIX + name.upper() for name in Settings.model_fields]


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that begins like a setting and is none, with the nearest name."""
    known = variables()
    problems = []
    for name in sorted(environment):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in known or _OTHERS.fullmatch(upper):
            continue
        # Compared without the prefix, which alone would make any two names alike.
        near = difflib.get_close_matches(
            upper.removeprefix(PREFIX), [n.upper() for n in Settings.model_fields], n=1
        )
        advice = f"did you mean {PREFIX}{near[0]}?" if near else "`turnstore-service --help` lists all."
        problems.append(f"{name} is no setting; {advice}")
    return problems


def rows(settings: Settings | None = None) -> list[SettingRow]:
    """All settings with their values, or without an argument with their defaults. Secrets are masked."""
    shown = (Settings.model_construct() if settings is None else settings).model_dump(mode="json")
    return [
        SettingRow(PREFIX + name.upper(), _as_text(shown[name]), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problems_of(error: ValidationError, environment: Mapping[str, str]) -> list[str]:
    given = {name.upper(): value for name, value in environment.items()}
    problems = []
    for detail in error.errors(include_url=False):
        message = _WORDING.get(detail["type"], detail["msg"])
        message = message.removeprefix("Value error, ").replace("Input should be", "must be")
        if detail["loc"]:
            variable = f"{PREFIX}{detail['loc'][0]}".upper()
            value = given.get(variable, "")
            # A connection string without its scheme is a mistake with the same password in it.
            value = mask_uri(value) if variable == f"{PREFIX}MONGODB_URI" or is_url(value) else value
            message = f"{variable}={value if len(value) <= 100 else value[:100] + '...'}: {message}"
        problems.append(f"{message}.")
    return problems
