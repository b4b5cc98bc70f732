"""What every subcommand shares: the options of the connection, the two ways of output, and how errors end."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from turnstore.cli.documents import written
from turnstore.cli.exit_codes import ExitCode, exit_code
from turnstore.endpoint import DEFAULT_TARGET
from turnstore.errors import ServiceUnreachableError, TurnstoreError
from turnstore.synchronous.client import HistoryClient

_PANEL = "Connection"


class UsageError(Exception):
    """Something on the command line, in a file or in a setting is wrong. The message tells what to do."""


@dataclass(frozen=True, slots=True)
class Session:
    """A client that is connected as the options say, and the place for output."""

    client: HistoryClient
    """The client."""

    as_json: bool
    """Whether output is one JSON document instead of what people read."""

    wait: bool
    """Whether a service that cannot be reached yet is waited for."""

    def show(self, *parts: RenderableType) -> None:
        """Print for people."""
        console = _console(stderr=False)
        for part in parts:
            console.print(part)

    def write(self, document: object) -> None:
        """Print a JSON document on one line."""
        # As bytes, since a terminal's encoding may not have every character of an item.
        sys.stdout.buffer.write(written(document).encode() + b"\n")
        sys.stdout.buffer.flush()


@contextmanager
def opened(
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            envvar="TURNSTORE_TARGET",
            help="HOST:PORT of the service.",
            rich_help_panel=_PANEL,
        ),
    ] = DEFAULT_TARGET,
    namespace: Annotated[
        str,
        typer.Option(
            envvar="TURNSTORE_NAMESPACE",
            help="Whose data. Empty: the credential's own namespace.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = "",
    user: Annotated[
        str | None,
        typer.Option(
            envvar="TURNSTORE_USER",
            help="The end user. Not given: the anonymous partition.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TURNSTORE_TOKEN",
            help="The bearer token. Others on this machine can see it on a command line: prefer the variable "
            "or --token-file.",
            show_default=False,
            show_envvar=True,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            envvar="TURNSTORE_TOKEN_FILE",
            help="A file with the bearer token.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    plaintext_token: Annotated[
        bool,
        typer.Option(
            "--plaintext-token",
            help="Send the token also over a connection that is not encrypted.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            envvar="TURNSTORE_TLS",
            help="Connect over TLS.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = False,
    tls_ca: Annotated[
        str | None,
        typer.Option(
            envvar="TURNSTORE_TLS_CA",
            help="PEM file to check the service's certificate against.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(
            envvar="TURNSTORE_TLS_CERT",
            help="PEM file with the client's certificate, for mutual TLS.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    tls_key: Annotated[
        str | None,
        typer.Option(
            envvar="TURNSTORE_TLS_KEY",
            help="PEM file with the key of that certificate.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    tls_server_name: Annotated[
        str,
        typer.Option(
            envvar="TURNSTORE_TLS_SERVER_NAME",
            help="The name that the service's certificate is for, when it is not the target's.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(
            envvar="TURNSTORE_TIMEOUT",
            help="Seconds that a call may take, tries and pages included.",
            min=0.001,
            rich_help_panel=_PANEL,
        ),
    ] = 15.0,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait for a service that cannot be reached yet, as long as the timeout allows.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON document, also for an error (on stderr).")
    ] = False,
) -> Iterator[Session]:
    """Connect as the options say."""
    try:
        with HistoryClient(
            target,
            namespace=namespace,
            user=user,
            timeout=timeout,
            wait_for_ready=wait,
            token=token,
            token_file=token_file,
            plaintext_token=plaintext_token,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_server_name=tls_server_name,
        ) as client:
            yield Session(client, as_json, wait)
    except TurnstoreError as error:
        _report(error, as_json=as_json)
        raise typer.Exit(exit_code(error)) from error
    except (UsageError, ValueError) as error:
        _report(error, as_json=as_json)
        raise typer.Exit(ExitCode.USAGE) from error


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a subcommand the options of the connection. It gets a `Session` as its first argument instead."""
    own = inspect.signature(command, eval_str=True)
    shared = inspect.signature(opened, eval_str=True)
    options = list(shared.parameters.values())

    def run(**arguments: Any) -> None:
        connection = {name: arguments.pop(name) for name in shared.parameters}
        with opened(**connection) as session:
            command(session, **arguments)

    parameters = [*list(own.parameters.values())[1:], *options]
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def printable(text: str) -> str:
    """Return a text that cannot steer the terminal: what is no character to be seen becomes a sign."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        # A file or a pipe has no width: nothing needs to be folded.
        console.width = 400
    return console


def _report(error: Exception, *, as_json: bool) -> None:
    if as_json:
        told: dict[str, object] = {"message": str(error)}
        if isinstance(error, TurnstoreError):
            told.update(code=error.code.name, reason=error.reason, metadata=error.metadata)
            if error.request_id:
                told["request_id"] = error.request_id
        sys.stderr.write(written({"error": told}) + "\n")
        return
    console = _console(stderr=True)
    console.print(Text.assemble(("error: ", "bold red"), printable(str(error))), soft_wrap=True)
    if isinstance(error, ServiceUnreachableError):
        hint = "The target is told by --target or TURNSTORE_TARGET; --wait waits for a service that starts."
        console.print(Text(hint, "dim"), soft_wrap=True)
    elif isinstance(error, TurnstoreError) and error.request_id:
        told_under = f"The service's log has it under request {printable(error.request_id)}."
        console.print(Text(told_under, "dim"), soft_wrap=True)
