"""The command line `turnstore-service`."""

import asyncio
import os
import sys
import textwrap
from collections.abc import Coroutine
from typing import Annotated, Any, NoReturn

import typer

from turnstore_service.embedded.binary import find_mongod
from turnstore_service.embedded.errors import EmbeddedMongodError
from turnstore_service.operations.addresses import parse_address
from turnstore_service.operations.live_files import FileError
from turnstore_service.operations.logging import configure_logging
from turnstore_service.operations.settings import Settings, SettingsError, load_settings, rows
from turnstore_service.operations.tracing import open_tracing

EXIT_FAILED = 1
EXIT_BAD_SETTINGS = 2

_WIDTH = 100


def _settings_text() -> str:
    lines = ["Settings (environment variables, with their defaults):"]
    for row in rows():
        lines.append(f"  {row.variable}={row.value}" if row.value else f"  {row.variable} (not set)")
        lines.extend(
            textwrap.wrap(row.description, _WIDTH - 6, initial_indent=" " * 6, subsequent_indent=" " * 6)
        )
    # The mark keeps the lines as they are.
    return "\b\n" + "\n".join(lines)


app = typer.Typer(
    name="turnstore-service",
    help="Keeps agents' turns and decides which items the next turn is given: the turnstore.v1 gRPC service.",
    epilog=_settings_text(),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": _WIDTH},
)


def main() -> None:
    """Runs the command line; ends the process with 0, 1 (it failed) or 2 (bad settings or arguments)."""
    app()


@app.command(epilog=_settings_text())
def serve() -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    settings = _settings()
    from turnstore_service import server  # after the settings, which its imports depend on

    _run(settings, server.serve(settings))


@app.command(hidden=True)
def worker(
    number: Annotated[int, typer.Argument()],
    listen: Annotated[str, typer.Argument()],
    channel: Annotated[int, typer.Option()],
    mongodb_uri: Annotated[str | None, typer.Option()] = None,
) -> None:
    """Run one of several workers; `serve` does, where TURNSTORE_WORKERS tells it to."""
    settings = _settings(worker=number)
    update = {"listen": parse_address(listen), "mongodb_uri": mongodb_uri or settings.mongodb_uri}
    from turnstore_service import server

    _run(settings, server.work(settings.model_copy(update=update), number, channel))


@app.command()
def migrate() -> None:
    """Make the database's indexes. Safe to repeat; the embedded MongoDB gets them at each start."""
    settings = _settings()
    from turnstore_service import server

    _run(settings, server.migrate(settings))
    typer.echo("The indexes stand.")


@app.command("check-config")
def check_config() -> None:
    """Check the settings and show them as they are in effect, secrets masked."""
    settings = _settings()
    for row in rows(settings):
        origin = (
            "set"
            if row.variable.removeprefix("TURNSTORE_").lower() in settings.model_fields_set
            else "default"
        )
        typer.echo(f"{row.variable:<30} {row.value or '(not set)':<40} {origin}")
    if settings.mongodb_uri is None:
        try:
            typer.echo(f"No TURNSTORE_MONGODB_URI: the embedded MongoDB runs {find_mongod(settings.mongod)}")
        except EmbeddedMongodError as error:
            _fail(str(error))
    try:
        asyncio.run(_read_files(settings))
        spans = open_tracing(settings)
    except FileError as error:
        _fail(f"{error}.")
    if spans is not None:
        spans.close()
    typer.echo("The settings are right.")


async def _read_files(settings: Settings) -> None:
    from turnstore_service.operations.credentials.opening import open_access
    from turnstore_service.operations.tls import server_credentials

    open_access(settings)
    server_credentials(settings)


@app.command("settings")
def show_settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """List all settings with defaults and meaning."""
    if not markdown:
        typer.echo(_settings_text().removeprefix("\b\n"))
        return
    typer.echo("| Variable | Default | Meaning |")
    typer.echo("| --- | --- | --- |")
    for row in rows():
        typer.echo(
            f"| `{row.variable}` | {f'`{row.value}`' if row.value else 'not set'} | {row.description} |"
        )


def _settings(worker: int | None = None) -> Settings:
    try:
        settings = load_settings()
    except SettingsError as error:
        typer.echo("turnstore-service: these settings are not right:", err=True)
        for problem in error.problems:
            typer.echo(f"  {problem}", err=True)
        raise typer.Exit(EXIT_BAD_SETTINGS) from None
    configure_logging(settings.log_level, settings.log_format, worker=worker)
    # The driver runs its calls in threads and reads their number when it is imported.
    os.environ["MOTOR_MAX_WORKERS"] = str(settings.pool_size)
    return settings


def _run(settings: Settings, work: Coroutine[Any, Any, None]) -> None:
    from turnstore_service.server import StartError

    loop_factory = None
    if settings.uvloop:
        try:
            import uvloop
        except ImportError:
            pass
        else:
            loop_factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(work)
    except (EmbeddedMongodError, StartError) as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"turnstore-service: {message}\n")
    raise typer.Exit(EXIT_FAILED)
