"""The settings: environment variables that begin with TURNSTORE_.

This module is their one list. The command line's help, the table in the documentation and the checks at the
start are made from it.
"""

import difflib
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from turnstore_service.operations.addresses import Address, parse_address
from turnstore_service.operations.quantities import format_duration, format_size, parse_duration, parse_size

PREFIX = "TURNSTORE_"
KIB = 1024
MIB = 1024 * KIB

MAX_ITEM_BYTES = 16 * MIB
"""Largest JSON text of one item. Part of the contract, so no setting."""

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
        "One namespace runs three quarters of them at the most.",
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

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.default_deadline > self.max_deadline:
            raise ValueError(
                f"{PREFIX}DEFAULT_DEADLINE ({format_duration(self.default_deadline)}) is above "
                f"{PREFIX}MAX_DEADLINE ({format_duration(self.max_deadline)})"
            )
        if self.listen == self.metrics_listen and self.listen.port:
            raise ValueError(f"{PREFIX}LISTEN and {PREFIX}METRICS_LISTEN are the same address")
        return self


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
            value = mask_uri(value) if variable == f"{PREFIX}MONGODB_URI" else value
            message = f"{variable}={value if len(value) <= 100 else value[:100] + '...'}: {message}"
        problems.append(f"{message}.")
    return problems
