"""The subcommands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from turnstore.cli.documents import DocumentError, response_document, response_from
from turnstore.cli.exit_codes import ExitCode
from turnstore.cli.session import Session, UsageError, connected, printable
from turnstore.cli.views import counted, explanation_table, items_table, response_table, turns_table
from turnstore.replay import (
    AS_STORED,
    MODEL_SAFE,
    DuplicateItems,
    History,
    HistoryView,
    LimitUnit,
)
from turnstore.response import DeleteReceipt, Response, ResponseSummary

_MOST_TYPES_LOOKED_UP = 200
"""Items left out whose types `explain` fetches. Their bodies come along: thousands of them are told by id."""

_CODES = "".join(
    f"\n  {code.value}  {text}"
    for code, text in (
        (ExitCode.OK, "done"),
        (ExitCode.FAILED, "a fault of the service, or anything that is none of these"),
        (ExitCode.USAGE, "the command line, a file or a setting is wrong; nothing was sent"),
        (ExitCode.NOT_FOUND, "what was named does not exist, or was deleted"),
        (ExitCode.CONFLICT, "it exists already, or does not fit what is stored"),
        (ExitCode.INVALID, "the service refused the request as malformed"),
        (ExitCode.DENIED, "no credential, or none that may do this"),
        (ExitCode.UNAVAILABLE, "no service or database answered in time: try again"),
    )
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=f"""Look into a turnstore service: what it keeps, and what the next turn is given.

The service is named by --target, or once for all commands:

  export TURNSTORE_TARGET=127.0.0.1:50051

Examples:

  turnstore ping
  turnstore list --conversation conv_1
  turnstore explain --conversation conv_1
  turnstore resolve --previous resp_9 --policy model-safe --json

Exit codes:
{_CODES}
""",
)
delete_app = typer.Typer(
    no_args_is_help=True,
    help="Erase a response, a conversation, or all data of a user. It cannot be taken back.",
)
app.add_typer(delete_app, name="delete")


class Policy(StrEnum):
    """The policies that have a name."""

    AS_STORED = "as-stored"
    MODEL_SAFE = "model-safe"


_POLICIES = {Policy.AS_STORED: AS_STORED, Policy.MODEL_SAFE: MODEL_SAFE}

Conversation = Annotated[
    str, typer.Option("--conversation", "-c", help="The conversation's id.", show_default=False)
]
Previous = Annotated[
    str,
    typer.Option(
        "--previous", "-p", help="The id of the response that the next turn follows.", show_default=False
    ),
]
Before = Annotated[
    str,
    typer.Option(
        "--before",
        help="Instead of a line: the history that this stored response was given, as it stands now.",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=0, help="Only the newest so many items.", show_default=False),
]
Turns = Annotated[bool, typer.Option("--turns", help="The limit counts turns, not items.")]
ChosenPolicy = Annotated[
    Policy | None,
    typer.Option("--policy", help="How the history is put together. Not given: the service's default."),
]
Answered = Annotated[
    list[str] | None,
    typer.Option(
        "--answered", help="A call's id that the next input answers. May be given again.", show_default=False
    ),
]
ResponseId = Annotated[str, typer.Argument(help="The response's id.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
@connected
def resolve(
    session: Session,
    conversation: Conversation = "",
    previous: Previous = "",
    before: Before = "",
    limit: Limit = None,
    turns: Turns = False,
    policy: ChosenPolicy = None,
    answered: Answered = None,
    ids: Annotated[bool, typer.Option("--ids", help="Only the items' ids, one on a line.")] = False,
) -> None:
    """Show the items that the next turn is given.

    Examples:
      turnstore resolve --conversation conv_1
      turnstore resolve --previous resp_9 --limit 20 --ids
      turnstore resolve -c conv_1 --policy model-safe --answered call_7
    """
    _require_line(conversation, previous, before)
    history = session.client.resolve_history(
        conversation_id=conversation,
        previous_response_id=previous,
        before_response_id=before,
        view=HistoryView.ITEM_IDS if ids else HistoryView.FULL,
        limit=limit,
        limit_unit=LimitUnit.TURNS if turns else LimitUnit.ITEMS,
        policy=None if policy is None else _POLICIES[policy],
        answered_call_ids=answered or (),
    )
    if session.as_json:
        session.write(
            {
                "item_ids": history.item_ids,
                **({} if ids else {"items": history.items}),
                "ancestor_deleted": history.ancestor_deleted,
                "truncated": history.truncated,
            }
        )
    elif ids:
        session.show(*(Text(printable(item_id)) for item_id in history.item_ids))
    else:
        if history.items:
            session.show(items_table(history.items))
        _show_result(session, history)


@app.command()
@connected
def explain(
    session: Session,
    conversation: Conversation = "",
    previous: Previous = "",
    before: Before = "",
    limit: Limit = None,
    turns: Turns = False,
    policy: ChosenPolicy = None,
    answered: Answered = None,
) -> None:
    """Show the turns of a line and, for each item that the next turn is not given, why.

    With a limit, only turns from the oldest that the answer reaches are explained.

    Examples:
      turnstore explain --conversation conv_1
      turnstore explain --previous resp_9 --policy model-safe
    """
    _require_line(conversation, previous, before)
    client = session.client
    history = client.resolve_history(
        conversation_id=conversation,
        previous_response_id=previous,
        before_response_id=before,
        explain=True,
        limit=limit,
        limit_unit=LimitUnit.TURNS if turns else LimitUnit.ITEMS,
        policy=None if policy is None else _POLICIES[policy],
        answered_call_ids=answered or (),
    )
    summaries: list[ResponseSummary] = []
    if before:
        response = client.get_response(before)
        conversation, previous = response.conversation_id, response.previous_response_id
    if previous:
        summaries += client.list_responses(previous_response_id=previous)
    if conversation:
        summaries += _until(before, client.list_responses(conversation_id=conversation))
    if session.as_json:
        session.write(_explanation(summaries, history))
        return
    left_out = [item_id for exclusion in history.exclusions for item_id in exclusion.item_ids]
    types = {}
    if len(left_out) <= _MOST_TYPES_LOOKED_UP:
        found = zip(left_out, client.batch_get_items(left_out), strict=True)
        types = {item_id: item.type for item_id, item in found if item is not None}
    if summaries or history.exclusions:
        session.show(explanation_table(summaries, history.exclusions, types))
    elif conversation and not previous:
        session.show("This conversation has no turns in this namespace and of this user (see --user).")
    _show_result(session, history)


@app.command()
@connected
def get(session: Session, response_id: ResponseId) -> None:
    """Show a response with all its items, a failed one included.

    What --json writes, `turnstore store` can read: items stand in it byte for byte.

    Examples:
      turnstore get resp_1
      turnstore get resp_1 --json > resp_1.json
    """
    response = session.client.get_response(response_id)
    if session.as_json:
        session.write(response_document(response))
        return
    session.show(response_table(response))
    for title, items in (("Input items", response.input_items), ("Output items", response.output_items)):
        if items:
            session.show("", items_table(items, title=title))


@app.command("list")
@connected
def list_turns(session: Session, conversation: Conversation = "", previous: Previous = "") -> None:
    """List the turns of a conversation or a chain, oldest first.

    Examples:
      turnstore list --conversation conv_1
      turnstore list --previous resp_9
    """
    if bool(conversation) == bool(previous):
        raise UsageError("give a line: either --conversation or --previous")
    summaries = list(
        session.client.list_responses(conversation_id=conversation, previous_response_id=previous)
    )
    if session.as_json:
        session.write([_summary(summary) for summary in summaries])
    elif summaries:
        session.show(turns_table(summaries))
    else:
        session.show("No turns.")


@app.command()
@connected
def store(
    session: Session,
    file: Annotated[str, typer.Argument(help="A JSON file, or - for the standard input.")] = "-",
    expected_revision: Annotated[
        int | None,
        typer.Option(min=0, help="0: it must not exist. n: it must be at revision n.", show_default=False),
    ] = None,
    keep_first: Annotated[
        bool, typer.Option("--keep-first", help="Take input items that stand in the history already.")
    ] = False,
    inherited: Annotated[
        list[str] | None,
        typer.Option(
            help="An id of the history that the turn was given. May be given again.", show_default=False
        ),
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(help="The write's UUID, to repeat one whose outcome is not known.", show_default=False),
    ] = None,
) -> None:
    """Create a response from a JSON document, or replace what it holds.

    The document has the keys id, status (completed when not given), conversation_id,
    previous_response_id, input_items, output_items, payload, error (code, message) and
    exclude_from_replay; id alone is required. Items are JSON objects.

    Examples:
      turnstore store turn.json
      turnstore get resp_1 --json | jq '.status = "failed"' | turnstore store --expected-revision 1
    """
    response = _read(file)
    stored = session.client.store_response(
        response,
        expected_revision=expected_revision,
        duplicate_items=DuplicateItems.KEEP_FIRST if keep_first else DuplicateItems.REJECT,
        inherited_item_ids=inherited or (),
        request_id=request_id,
    )
    if session.as_json:
        session.write(
            {
                "id": stored.id,
                "status": stored.status,
                "revision": stored.revision,
                "input_item_ids": [item.id for item in stored.input_items],
                "output_item_ids": [item.id for item in stored.output_items],
            }
        )
    else:
        session.show(Text(f"Stored {printable(stored.id)} ({stored.status}) at revision {stored.revision}."))


@app.command()
@connected
def exclude(
    session: Session,
    response_id: ResponseId,
    undo: Annotated[bool, typer.Option("--undo", help="Show the turn again.")] = False,
) -> None:
    """Hide a turn from every history, whatever its status, or show it again.

    Examples:
      turnstore exclude resp_1
      turnstore exclude resp_1 --undo
    """
    revision = session.client.set_replay_exclusion(response_id, not undo)
    if session.as_json:
        session.write({"id": response_id, "excluded": not undo, "revision": revision})
    else:
        done = "is shown in histories as its status says" if undo else "is hidden from every history"
        session.show(Text(f"{printable(response_id)} {done} (revision {revision})."))


@delete_app.command("response")
@connected
def delete_response(session: Session, response_id: ResponseId, yes: Yes = False) -> None:
    """Erase a response's content and items.

    Example:
      turnstore delete response resp_1 --yes
    """
    _confirm(f"Erase response {response_id}?", yes=yes)
    _show_receipt(session, session.client.delete_response(response_id))


@delete_app.command("conversation")
@connected
def delete_conversation(
    session: Session,
    conversation_id: Annotated[str, typer.Argument(help="The conversation's id.", show_default=False)],
    yes: Yes = False,
) -> None:
    """Erase all responses of a conversation.

    Example:
      turnstore delete conversation conv_1
    """
    _confirm(f"Erase all of conversation {conversation_id}?", yes=yes)
    _show_receipt(session, session.client.delete_conversation(conversation_id))


@delete_app.command("user-data")
@connected
def delete_user_data(
    session: Session,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="What was stored without a user, instead of a user's data.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Erase everything that is stored for a user: all conversations and chains.

    Examples:
      turnstore delete user-data --user anna
      turnstore delete user-data --anonymous --yes
    """
    scope = session.client.scope
    if anonymous == (scope.user is not None):
        raise UsageError("say whose data goes: either --user NAME or --anonymous")
    whose = "stored without a user" if scope.user is None else f"of user {scope.user!r}"
    namespace = repr(scope.namespace) if scope.namespace else "of the credential"
    _confirm(f"Erase all data {whose} in the namespace {namespace}?", yes=yes)
    _show_receipt(session, session.client.delete_user_data())


@app.command()
@connected
def ping(session: Session) -> None:
    """Ask whether the service is there and can serve. With --wait: until it can.

    Examples:
      turnstore ping
      turnstore ping --wait --timeout 60
    """
    target = session.client.target
    answer = session.client.ping(wait=session.wait)
    if session.as_json:
        session.write({"target": target, "serving": answer.serving, "seconds": round(answer.seconds, 6)})
    elif answer.serving:
        session.show(Text.assemble(("serving", "green"), f" at {target} ({answer.seconds * 1000:.1f} ms)"))
    else:
        session.show(
            Text.assemble(
                ("not serving", "red"),
                f" at {target}: the service runs but is not ready. Its log tells why; most often its "
                "database is away, or its indexes are missing.",
            )
        )
    if not answer.serving:
        raise typer.Exit(ExitCode.UNAVAILABLE)


def _require_line(conversation: str, previous: str, before: str) -> None:
    if before and (conversation or previous):
        raise UsageError("--before stands alone, without --conversation and --previous")
    if not (conversation or previous or before):
        raise UsageError("give a line: --conversation, --previous (or both), or --before")


def _until(before: str, summaries: Iterator[ResponseSummary]) -> Iterator[ResponseSummary]:
    for summary in summaries:
        if before and summary.id == before:
            return
        yield summary


def _show_result(session: Session, history: History) -> None:
    session.show(Text(f"The next turn is given {counted(len(history.item_ids), 'item')}.", "bold"))
    if history.truncated:
        session.show("The limit left older items out.")
    if history.ancestor_deleted:
        session.show("A turn of this line was deleted, so that something may be missing.")


def _summary(summary: ResponseSummary) -> dict[str, object]:
    return {field: getattr(summary, field) for field in ResponseSummary.__slots__}


def _explanation(summaries: list[ResponseSummary], history: History) -> dict[str, object]:
    return {
        "turns": [_summary(summary) for summary in summaries],
        "exclusions": [
            {
                "response_id": exclusion.response_id,
                "status": exclusion.status,
                "reason": exclusion.reason.name,
                "item_ids": exclusion.item_ids,
            }
            for exclusion in history.exclusions
        ],
        "item_ids": history.item_ids,
        "ancestor_deleted": history.ancestor_deleted,
        "truncated": history.truncated,
    }


def _read(file: str) -> Response:
    name = "the standard input" if file == "-" else file
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return response_from(content.decode())
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, DocumentError) as error:
        raise UsageError(f"{name} is no document of a response: {error}") from error


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("nothing was erased: there is nobody to ask, so say --yes")
    typer.confirm(printable(question), abort=True, err=True)


def _show_receipt(session: Session, receipt: DeleteReceipt) -> None:
    if session.as_json:
        session.write({"responses": receipt.responses, "items": receipt.items})
    else:
        responses, items = counted(receipt.responses, "response"), counted(receipt.items, "item")
        session.show(f"Erased {responses} with {items}.")
