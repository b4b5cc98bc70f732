"""Tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from turnstore.cli.session import printable
from turnstore.replay import Exclusion, ExclusionReason
from turnstore.response import Item, Response, ResponseStatus, ResponseSummary

_PREVIEW_LENGTH = 60
"""Characters of an item's content in a table: enough to recognise it in a line of a usual terminal."""

STATUS_COLOURS: Mapping[ResponseStatus, str] = {
    ResponseStatus.UNSPECIFIED: "dim",
    ResponseStatus.QUEUED: "cyan",
    ResponseStatus.IN_PROGRESS: "cyan",
    ResponseStatus.COMPLETED: "green",
    ResponseStatus.INCOMPLETE: "yellow",
    ResponseStatus.CANCELLED: "yellow",
    ResponseStatus.FAILED: "red",
}

REASONS: Mapping[ExclusionReason, str] = {
    ExclusionReason.UNSPECIFIED: "for a reason that this version does not know",
    ExclusionReason.FAILED: "the turn failed",
    ExclusionReason.EXCLUDED_BY_CALLER: "the turn was hidden by a caller",
    ExclusionReason.DELETED: "the turn was deleted",
    ExclusionReason.CANCELLED: "the turn was cancelled",
    ExclusionReason.INCOMPLETE: "the turn is incomplete",
    ExclusionReason.IN_FLIGHT: "the turn still runs",
    ExclusionReason.UNPAIRED_CALL: "a call that has no output",
    ExclusionReason.UNPAIRED_OUTPUT: "an output that answers no call",
    ExclusionReason.TIED_REASONING: "reasoning that belongs to an item left out, or to none",
    ExclusionReason.PENDING_REQUEST: "a request that has no answer",
    ExclusionReason.EMPTY_CONTENT: "a message with nothing in it",
    ExclusionReason.DUPLICATE: "it stands at an earlier place already",
    ExclusionReason.SPLIT_UNIT: "the limit cuts off a part that belongs to it",
    ExclusionReason.NO_CONTRIBUTOR: "no turn contributes it any more",
}


def status_text(status: ResponseStatus) -> Text:
    """Return a status in its colour."""
    return Text(status.value, STATUS_COLOURS[status])


def items_table(items: Iterable[Item], *, title: str = "") -> Table:
    """Return a table of items: id, type and the beginning of the content."""
    table = _table(title, "#", "Item", "Type", "Content")
    for number, item in enumerate(items, 1):
        content = Text(printable(preview(item)))
        if item.partial:
            content = Text.assemble(("partial ", "yellow"), content)
        table.add_row(str(number), _plain(item.id), _plain(item.type), content)
    return table


def turns_table(turns: Iterable[ResponseSummary]) -> Table:
    """Return a table of turns."""
    table = _table("", "Place", "Response", "Status", "Items", "Revision", "Updated")
    for turn in turns:
        status = status_text(turn.status)
        if turn.exclude_from_replay:
            status = Text.assemble(status, (" hidden", "magenta"))
        table.add_row(
            str(turn.place),
            _plain(turn.id),
            status,
            counts(turn),
            str(turn.revision),
            moment(turn.update_time),
        )
    return table


def explanation_table(
    turns: Iterable[ResponseSummary], exclusions: Sequence[Exclusion], types: Mapping[str, str]
) -> Table:
    """Return a table of turns in which each item left out stands with the reason.

    Args:
        turns: the turns of the line.
        exclusions: what the history leaves out.
        types: the items' types by their ids, as far as they are known.
    """
    table = _table("", "Place", "Response", "Status", "Items", "Left out", "Why")
    by_response: dict[str, list[Exclusion]] = {}
    for exclusion in exclusions:
        by_response.setdefault(exclusion.response_id, []).append(exclusion)
    for turn in turns:
        head: list[str | Text] = [
            str(turn.place),
            _plain(turn.id),
            status_text(turn.status),
            counts(turn),
        ]
        left_out = by_response.pop(turn.id, [])
        if not left_out:
            table.add_row(*head, Text("nothing", "green"), "")
        for exclusion in left_out:
            for row in _left_out_rows(exclusion, types):
                table.add_row(*head, *row)
                head = ["", "", "", ""]
    for response_id, left_out in by_response.items():
        # No turn of the list: it was deleted, or gave a snapshot.
        head = ["", _plain(response_id), Text("deleted", "dim"), ""]
        if any(exclusion.reason is not ExclusionReason.DELETED for exclusion in left_out):
            head[2] = status_text(left_out[0].status)
        for exclusion in left_out:
            for row in _left_out_rows(exclusion, types):
                table.add_row(*head, *row)
                head = ["", "", "", ""]
    return table


def response_table(response: Response) -> Table:
    """Return a table of what a response's envelope says."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    status = status_text(response.status)
    if response.exclude_from_replay:
        status = Text.assemble(status, (" hidden from replay", "magenta"))
    table.add_row("Response", _plain(response.id))
    table.add_row("Status", status)
    if response.error is not None:
        table.add_row("Error", Text(printable(f"{response.error.code}: {response.error.message}"), "red"))
    if response.conversation_id:
        table.add_row("Conversation", _plain(response.conversation_id))
    if response.previous_response_id:
        table.add_row("Previous", _plain(response.previous_response_id))
    table.add_row("Revision", str(response.revision))
    table.add_row("Created", moment(response.create_time))
    table.add_row("Updated", moment(response.update_time))
    if response.payload_json:
        table.add_row("Payload", _plain(shortened(response.payload_json)))
    return table


def counts(turn: ResponseSummary) -> str:
    """Return how many items a turn has, input and output."""
    return f"{turn.input_item_count} in, {turn.output_item_count} out"


def counted(number: int, name: str) -> str:
    """Return a number with its noun: `1 item`, `2 items`."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def moment(time: datetime | None) -> str:
    """Return a time in UTC to the second, or a sign for none."""
    return "-" if time is None else time.strftime("%Y-%m-%d %H:%M:%S UTC")


def preview(item: Item) -> str:
    """Return the beginning of what a person would read of an item."""
    if not item.json:
        return "(body not stored)"
    try:
        data = item.data
    except ValueError:
        return shortened(item.json)
    return shortened(_content(data) or item.json)


def shortened(text: str) -> str:
    """Return a text in one line, cut where a table would grow too wide."""
    # A long text is cut before it is searched for spaces.
    line = " ".join(text[: 4 * _PREVIEW_LENGTH].split())
    return line if len(line) <= _PREVIEW_LENGTH else line[: _PREVIEW_LENGTH - 1] + "…"


def _content(data: Mapping[str, Any]) -> str:
    kind = data.get("type")
    if kind == "function_call":
        return f"{data.get('name', '')}({data.get('arguments', '')})"
    if isinstance(kind, str) and kind.endswith("_output"):
        return str(data.get("output", ""))
    content = data.get("content")
    text = content if isinstance(content, str) else _first_text(content) or _first_text(data.get("summary"))
    role = data.get("role")
    return f"{role}: {text}" if text and isinstance(role, str) else text


def _first_text(parts: object) -> str:
    if isinstance(parts, list):
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else None
            if isinstance(text, str) and text:
                return text
    return ""


def _left_out_rows(exclusion: Exclusion, types: Mapping[str, str]) -> Iterable[tuple[Text, Text]]:
    why = Text.assemble((exclusion.reason.name, "bold red"), f" {REASONS[exclusion.reason]}")
    if not exclusion.item_ids:
        yield Text("everything", "dim"), why
    for item_id in exclusion.item_ids:
        kind = types.get(item_id, "")
        yield Text.assemble(printable(item_id), (f" ({printable(kind)})" if kind else "", "dim")), why


def _plain(text: str) -> Text:
    # A str would be read for markup, which ids may look like.
    return Text(printable(text))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in {"#", "Place"} else "left")
    return table
