"""ResolveHistory, ListInputItems, BatchGetItems and ListResponses."""

import hashlib
from collections.abc import Sequence
from typing import Any

from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import replay_pb2, response_pb2
from turnstore_service.history.resolving import (
    History,
    PlainHistory,
    Resolution,
    resolve,
)
from turnstore_service.replay.rules import gather
from turnstore_service.replay.values import AS_STORED, BodyRef, Entry, Head, Holder, Part, Question, Status
from turnstore_service.rpc import pages, parsing, rendering
from turnstore_service.rpc.calls import Backend
from turnstore_service.rpc.errors import history_changed, invalid
from turnstore_service.storage.errors import ChangedError
from turnstore_service.storage.values import NO_END, Line, Scope, Texts

_ATTEMPTS = 5
"""Tries to read what others keep changing, before the caller is told."""


async def resolve_history(
    backend: Backend, scope: Scope, request: rpc.ResolveHistoryRequest
) -> rpc.ResolveHistoryResponse:
    """What the next turn may replay."""
    _check_line(request)
    question = parsing.question(request, backend.default_policy)
    full = request.view == replay_pb2.HISTORY_VIEW_FULL
    cursor = pages.cursor(request, scope, request.page_token, 2)
    pinned, begin = cursor.numbers or (NO_END, 0)
    for _ in range(1 if cursor.numbers else _ATTEMPTS):
        lines = await _lines(backend, scope, request, pinned)
        resolution = Resolution(backend.store.reading, lines, question, explained=request.explain, full=full)
        await resolution.begin()
        if cursor.is_first and (plain := resolution.plain()) and (short := _plain_reply(backend, plain)):
            return short
        history = await resolution.history()
        try:
            reply = await _history_page(backend, history, cursor, begin, full=full)
        except ChangedError:
            continue
        if cursor.is_first:  # a history counts once, however many pages and tries it takes
            backend.observer.history_resolved(len(history.entries), history.left_out)
        return reply
    raise history_changed()


def _plain_reply(backend: Backend, history: PlainHistory) -> rpc.ResolveHistoryResponse | None:
    """A plain history in one page; None when it needs more."""
    ids, types, texts = history.item_ids, history.types, history.texts
    most = _most_bytes(ids)
    if texts:
        most += most + _most_bytes(types) + _most_bytes(texts)
    if not pages.Page(backend.page_bytes).takes_all(most, len(ids)):
        return None
    backend.observer.history_resolved(len(ids), {})
    return rpc.ResolveHistoryResponse(
        item_ids=ids,
        items=map(_item, ids, types, texts),
        truncated=history.truncated,
        ancestor_deleted=history.ancestor_deleted,
    )


def _most_bytes(texts: Sequence[str]) -> int:
    """Bytes that texts take at the most: a character has up to four, in ASCII one."""
    return sum(map(len, texts)) * (1 if all(map(str.isascii, texts)) else 4)


def _item(item_id: str, item_type: str, text: str) -> response_pb2.Item:
    return response_pb2.Item(id=item_id, type=item_type, json=text)


def _check_line(request: rpc.ResolveHistoryRequest) -> None:
    parsing.optional_identifier("conversation_id", request.conversation_id)
    parsing.optional_identifier("previous_response_id", request.previous_response_id)
    parsing.optional_identifier("before_response_id", request.before_response_id)
    if request.before_response_id:
        if request.conversation_id or request.previous_response_id:
            raise invalid(
                "before_response_id", "stands alone: leave conversation_id and previous_response_id empty"
            )
    elif not request.conversation_id and not request.previous_response_id:
        raise invalid("conversation_id", "or previous_response_id (or before_response_id alone) is required")


async def _lines(backend: Backend, scope: Scope, request: rpc.ResolveHistoryRequest, last: int) -> list[Line]:
    """The lines that a history is made of, oldest first."""
    reading = backend.store.reading
    if request.before_response_id:
        return [await reading.line_before(scope, request.before_response_id)]
    lines = []
    if request.previous_response_id:
        lines.append(await reading.line_to(scope, request.previous_response_id))
    if request.conversation_id:
        line = await reading.line_of_conversation(scope, request.conversation_id, last)
        lines.append(await reading.beyond(line, lines[0]) if lines else line)
    return lines


async def _history_page(
    backend: Backend, history: History, cursor: pages.Cursor, begin: int, *, full: bool
) -> rpc.ResolveHistoryResponse:
    """The part of a history that begins at a position: its items, then what was left out."""
    digest = b""
    if not cursor.is_first:
        digest = history.digest()
        cursor.check(digest)
    if begin > len(history.entries) + sum(max(1, len(excluded.item_ids)) for excluded in history.exclusions):
        raise invalid("page_token", "points beyond the end")
    reply = rpc.ResolveHistoryResponse(ancestor_deleted=history.ancestor_deleted, truncated=history.truncated)
    page = pages.Page(backend.page_bytes)
    if full:
        end = await _add_items(backend, history, begin, page, reply)
    else:
        end = _add_ids(history, begin, page, reply)
    if end >= len(history.entries) and history.exclusions:
        end = _add_exclusions(history, end, page, reply)
    if page.is_full:
        reply.next_page_token = cursor.next(
            (min(history.newest_place, NO_END), end), digest or history.digest()
        )
    return reply


def _add_ids(history: History, begin: int, page: pages.Page, reply: rpc.ResolveHistoryResponse) -> int:
    ids = [entry.head.id for entry in (history.entries[begin:] if begin else history.entries)]
    if page.takes_all(sum(map(len, ids)) * 4, len(ids)):  # a character has at most four bytes
        reply.item_ids.extend(ids)
        return begin + len(ids)
    for item_id in ids:
        if not page.takes(len(item_id.encode())):
            break
        reply.item_ids.append(item_id)
    return begin + len(reply.item_ids)


async def _add_items(
    backend: Backend, history: History, begin: int, page: pages.Page, reply: rpc.ResolveHistoryResponse
) -> int:
    wanted = history.entries[begin:] if begin else history.entries
    taken = await _take_items(backend, history, wanted, page, reply.items, named_twice=True)
    reply.item_ids.extend([entry.head.id for entry in wanted[:taken]])
    return begin + taken


async def _take_items(
    backend: Backend,
    history: History,
    entries: Sequence[Entry],
    page: pages.Page,
    target: Any,
    *,
    named_twice: bool = False,
) -> int:
    """Adds items to a reply, from the first, as many as the page takes; how many. `named_twice`: also by id."""
    found = [_text_at(history.texts, entry) for entry in entries]
    missing = [
        ref for entry, text in zip(entries, found, strict=True) if text is None and (ref := entry.body)
    ]
    if missing:
        history.texts.update(await backend.store.reading.bodies(missing, history.revisions, page.room))
        found = [_text_at(history.texts, entry) for entry in entries]
    elif page.takes_all(sum(map(_most_bytes_of, entries, found)), len(entries)):
        for entry, text in zip(entries, found, strict=True):
            _add_item(target, entry, text or "")
        return len(entries)
    taken = 0
    for entry, text in zip(entries, found, strict=True):
        if text is None:
            page.is_full = True  # what was read ends here
            break
        item = _add_item(target, entry, text)
        if not page.takes(item.ByteSize() + (len(entry.head.id) * 4 if named_twice else 0)):
            del target[-1]
            break
        taken += 1
    return taken


def _text_at(texts: Texts, entry: Entry) -> str | None:
    return "" if entry.key is None else texts.at(entry.key, entry.source, entry.index)


def _most_bytes_of(entry: Entry, text: str | None) -> int:
    """Bytes that an item takes at the most, its id twice: a character has up to four."""
    head = entry.head
    size = len(head.id) * 8 + len(head.type) * 4
    return size if not text else size + (len(text) if text.isascii() else len(text) * 4)


def _add_item(target: Any, entry: Entry, text: str) -> Any:
    head = entry.head
    return target.add(
        id=head.id, type=head.type, json=rendering.entry_json(entry, text), partial=entry.partial
    )


def _add_exclusions(history: History, at: int, page: pages.Page, reply: rpc.ResolveHistoryResponse) -> int:
    """Adds what was left out. A position counts every id, and an exclusion without ids once."""
    position = len(history.entries)
    for excluded in history.exclusions:
        ids = excluded.item_ids or ("",)
        start = max(0, at - position)
        position += len(ids)
        if start >= len(ids):
            continue
        fitting: list[str] = []
        if not page.takes(len(excluded.response_id.encode())):
            return at
        for item_id in ids[start:]:
            if not page.takes(len(item_id.encode())):
                break
            fitting.append(item_id)
        if fitting:
            reply.exclusions.append(rendering.exclusion(excluded, fitting if excluded.item_ids else ()))
            at += len(fitting)
        if page.is_full:
            return at
    return at


async def list_input_items(
    backend: Backend, scope: Scope, request: rpc.ListInputItemsRequest
) -> rpc.ListInputItemsResponse:
    """The input of a response, if asked for with the history that it was given in front."""
    response_id = parsing.identifier("response_id", request.response_id)
    parsing.optional_identifier("after", request.after)
    parsing.optional_identifier("before", request.before)
    if request.order not in replay_pb2.ListOrder.values():
        raise invalid("order", f"has the unknown value {request.order}")
    size = parsing.page_size(request.page_size)
    cursor = pages.cursor(request, scope, request.page_token, 1)
    for _ in range(1 if cursor.numbers else _ATTEMPTS):
        try:
            return await _input_page(backend, scope, request, response_id, size, cursor)
        except ChangedError:
            continue
    raise history_changed()


async def _input_page(
    backend: Backend,
    scope: Scope,
    request: rpc.ListInputItemsRequest,
    response_id: str,
    size: int,
    cursor: pages.Cursor,
) -> rpc.ListInputItemsResponse:
    reading = backend.store.reading
    stored, texts, _ = await reading.response(scope, response_id)
    entries: list[Entry] = []
    history = History((), (), {}, False, False, 0, {stored.key: stored.revision}, texts)
    if request.include_inherited:
        line = await reading.line_before(scope, response_id)
        question = Question(policy=backend.default_policy)
        inherited = await resolve(reading, [line], question, explained=False, full=True)
        texts.update(inherited.texts)
        history.revisions = {**inherited.revisions, stored.key: stored.revision}
        entries.extend(inherited.entries)
    seen = {entry.head.id for entry in entries}
    for index, head in enumerate(stored.input):
        if head.id not in seen:
            seen.add(head.id)
            entries.append(
                Entry(0, Part.INPUT, head, stored.key, Part.INPUT, index, stored.status, False, False, None)
            )
    history.entries = entries
    digest = b""
    if not cursor.is_first:
        digest = history.digest()
        cursor.check(digest)
    listed = entries if request.order == replay_pb2.LIST_ORDER_ASC else entries[::-1]
    begin, end = _between(listed, request.after, request.before)
    if cursor.numbers:
        begin = max(begin, cursor.numbers[0])
    wanted = listed[begin : min(end, begin + size)]
    reply = rpc.ListInputItemsResponse()
    begin += await _take_items(backend, history, wanted, pages.Page(backend.page_bytes), reply.items)
    if begin < end:
        reply.next_page_token = cursor.next((begin,), digest or history.digest())
    return reply


def _between(entries: Sequence[Entry], after: str, before: str) -> tuple[int, int]:
    """The positions between two ids; an id that is not there bounds nothing."""
    ids = [entry.head.id for entry in entries]
    begin = ids.index(after) + 1 if after in ids else 0
    end = ids.index(before) if before in ids else len(ids)
    return begin, max(begin, end)


async def batch_get_items(
    backend: Backend, scope: Scope, request: rpc.BatchGetItemsRequest
) -> rpc.BatchGetItemsResponse:
    """Items by id, one answer for each id asked."""
    ids = parsing.identifiers("item_ids", request.item_ids, parsing.MAX_ASKED)
    if not ids:
        raise invalid("item_ids", "is required")
    parsing.optional_identifier("conversation_id", request.conversation_id)
    parsing.optional_identifier("previous_response_id", request.previous_response_id)
    if request.conversation_id and request.previous_response_id:
        raise invalid("previous_response_id", "cannot be given together with conversation_id")
    cursor = pages.cursor(request, scope, request.page_token, 1)
    for _ in range(1 if cursor.numbers else _ATTEMPTS):
        found, revisions = await _find_items(backend, scope, request, ids)
        try:
            return await _items_page(backend, ids, found, revisions, cursor)
        except ChangedError:
            continue
    raise history_changed()


_Found = tuple[Head, BodyRef, Status]


async def _find_items(
    backend: Backend, scope: Scope, request: rpc.BatchGetItemsRequest, ids: Sequence[str]
) -> tuple[dict[str, _Found], dict[str, int]]:
    reading = backend.store.reading
    wanted = list(dict.fromkeys(ids))
    abandoned = await reading.abandoned_before()
    if not request.conversation_id and not request.previous_response_id:
        holders, revisions = await reading.holders(scope, wanted, abandoned)
        best = {item_id: max(found, key=_preference) for item_id, found in holders.items()}
        return (
            {
                item_id: (holder.head, BodyRef(holder.key, holder.part, holder.index), holder.status)
                for item_id, holder in best.items()
            },
            revisions,
        )
    if request.conversation_id:
        line = await reading.line_of_conversation(scope, request.conversation_id)
    else:
        line = await reading.line_to(scope, request.previous_response_id)
    behind = await reading.behind(line, NO_END + 1, set(wanted), set(), abandoned)
    turns = [turn for _, turn, _ in behind]
    revisions = {turn.key: revision for _, turn, revision in behind}
    named = {item.id for turn in turns for item in turn.snapshot}.intersection(wanted)
    holders, of_holders = await reading.holders(scope, sorted(named), abandoned)
    found_items: dict[str, _Found] = {}
    for entry in gather(turns, AS_STORED, holders):
        if entry.reason is None and entry.body is not None and entry.status is not None:
            found_items.setdefault(entry.head.id, (entry.head, entry.body, entry.status))
    return found_items, {**of_holders, **revisions}


def _preference(holder: Holder) -> tuple[bool, object]:
    return holder.status is not Status.FAILED and not holder.excluded, holder.created


async def _items_page(
    backend: Backend,
    ids: Sequence[str],
    found: dict[str, _Found],
    revisions: dict[str, int],
    cursor: pages.Cursor,
) -> rpc.BatchGetItemsResponse:
    digest = hashlib.blake2b(digest_size=16)
    for item_id in ids:
        if item_id in found:
            ref = found[item_id][1]
            digest.update(f"{item_id}\n{ref.key}\n{revisions[ref.key]}\r".encode())
        else:
            digest.update(b"\r")
    cursor.check(digest.digest())
    begin = cursor.numbers[0] if cursor.numbers else 0
    page = pages.Page(backend.page_bytes)
    refs = list(dict.fromkeys(found[item_id][1] for item_id in ids[begin:] if item_id in found))
    texts = await backend.store.reading.bodies(refs, revisions, page.room)
    reply = rpc.BatchGetItemsResponse()
    for item_id in ids[begin:]:
        answer = rpc.BatchItem()
        if item_id in found:
            head, ref, status = found[item_id]
            text = texts.get(ref)
            if text is None:
                break
            answer.found = True
            answer.item.CopyFrom(rendering.item(head, text, status, ref.part))
        if not page.takes(answer.ByteSize()):
            break
        reply.items.append(answer)
        begin += 1
    if begin < len(ids):
        reply.next_page_token = cursor.next((begin,), digest.digest())
    return reply


async def list_responses(
    backend: Backend, scope: Scope, request: rpc.ListResponsesRequest
) -> rpc.ListResponsesResponse:
    """The turns of a line, oldest first, without bodies."""
    parsing.optional_identifier("conversation_id", request.conversation_id)
    parsing.optional_identifier("previous_response_id", request.previous_response_id)
    parsing.only_one(
        ("conversation_id", "previous_response_id"), (request.conversation_id, request.previous_response_id)
    )
    size = parsing.page_size(request.page_size)
    cursor = pages.cursor(request, scope, request.page_token, 1)
    reading = backend.store.reading
    if request.conversation_id:
        line = await reading.line_of_conversation(scope, request.conversation_id)
    else:
        line = await reading.line_to(scope, request.previous_response_id)
    after = cursor.numbers[0] if cursor.numbers else 0
    found = await reading.list_turns(line, after, size + 1, await reading.abandoned_before())
    reply = rpc.ListResponsesResponse(responses=map(rendering.summary, found[:size]))
    if len(found) > size:
        reply.next_page_token = cursor.next((found[size - 1].place,), b"")
    return reply
