"""StoreResponse, GetResponse, SetReplayExclusion and the deletes."""

from turnstore.v1 import history_service_pb2 as rpc
from turnstore_service.replay.values import BodyRef, Part
from turnstore_service.rpc import pages, parsing, rendering
from turnstore_service.rpc.calls import Backend
from turnstore_service.rpc.errors import history_changed, invalid
from turnstore_service.storage.errors import ChangedError
from turnstore_service.storage.values import Scope, StoredResponse, Texts

_ATTEMPTS = 5
"""Tries to read a response that others keep changing."""


async def store_response(
    backend: Backend, scope: Scope, request: rpc.StoreResponseRequest
) -> rpc.StoreResponseResponse:
    """Creates a response or replaces what it holds."""
    stored = await backend.store.writing.store(scope, parsing.write(request))
    backend.observer.turn_stored(stored.status)
    reply = rpc.StoreResponseResponse(response=rendering.response(stored))
    # The write is done: a reply that the client could not take would make it look failed.
    rendering.add_heads(reply.response, stored)
    if reply.ByteSize() > backend.max_reply_bytes:
        del reply.response.input_items[:], reply.response.output_items[:]
    return reply


async def get_response(
    backend: Backend, scope: Scope, request: rpc.GetResponseRequest
) -> rpc.GetResponseResponse:
    """A response with all its items, failed or not; a large one in pages."""
    response_id = parsing.identifier("response_id", request.response_id)
    cursor = pages.cursor(request, scope, request.page_token, 2)
    for _ in range(1 if cursor.numbers else _ATTEMPTS):
        stored, texts, payload = await backend.store.reading.response(scope, response_id)
        if cursor.numbers and cursor.numbers[0] != stored.revision:
            break
        try:
            return await _response_page(backend, scope, stored, texts, payload, cursor)
        except ChangedError:
            continue
    raise history_changed()


async def _response_page(
    backend: Backend,
    scope: Scope,
    stored: StoredResponse,
    texts: Texts,
    payload: str | None,
    cursor: pages.Cursor,
) -> rpc.GetResponseResponse:
    """The part of a response that begins at a position: the payload is at 0, the items follow."""
    reading = backend.store.reading
    begin = cursor.numbers[1] if cursor.numbers else 0
    refs = [BodyRef(stored.key, Part.INPUT, index) for index in range(len(stored.input))]
    refs += [BodyRef(stored.key, Part.OUTPUT, index) for index in range(len(stored.output))]
    if begin > len(refs):
        raise invalid("page_token", "points beyond the end")
    reply = rpc.GetResponseResponse(response=rendering.response(stored))
    page = pages.Page(backend.page_bytes - reply.ByteSize())
    if not begin:
        reply.response.payload_json = await reading.payload(scope, stored) if payload is None else payload
        if reply.response.payload_json:
            page.takes(len(reply.response.payload_json.encode()))
        begin = 1
    wanted = refs[begin - 1 :]
    missing = [ref for ref in wanted if texts.get(ref) is None]
    if missing:
        texts.update(await reading.bodies(missing, {stored.key: stored.revision}, page.room))
    for ref in wanted:
        text = texts.get(ref)
        if text is None:
            break
        heads, target = (
            (stored.input, reply.response.input_items)
            if ref.part is Part.INPUT
            else (stored.output, reply.response.output_items)
        )
        item = rendering.item(heads[ref.position], text, stored.status, ref.part)
        if not page.takes(item.ByteSize()):
            break
        target.append(item)
        begin += 1
    if begin <= len(refs):
        reply.next_page_token = cursor.next((stored.revision, begin), b"")
    return reply


async def set_replay_exclusion(
    backend: Backend, scope: Scope, request: rpc.SetReplayExclusionRequest
) -> rpc.SetReplayExclusionResponse:
    """Hides a turn from replay, or shows it again."""
    response_id = parsing.identifier("response_id", request.response_id)
    revision = await backend.store.writing.set_exclusion(scope, response_id, request.excluded)
    return rpc.SetReplayExclusionResponse(revision=revision)


async def delete_response(
    backend: Backend, scope: Scope, request: rpc.DeleteResponseRequest
) -> rpc.DeleteResponseResponse:
    """Erases one response."""
    response_id = parsing.identifier("response_id", request.response_id)
    erased = await backend.store.erasing.response(scope, response_id)
    return rpc.DeleteResponseResponse(receipt=rendering.receipt(erased))


async def delete_conversation(
    backend: Backend, scope: Scope, request: rpc.DeleteConversationRequest
) -> rpc.DeleteConversationResponse:
    """Erases every response of a conversation."""
    conversation_id = parsing.identifier("conversation_id", request.conversation_id)
    erased = await backend.store.erasing.conversation(scope, conversation_id)
    return rpc.DeleteConversationResponse(receipt=rendering.receipt(erased))


async def delete_user_data(
    backend: Backend, scope: Scope, _request: rpc.DeleteUserDataRequest
) -> rpc.DeleteUserDataResponse:
    """Erases everything in a scope."""
    return rpc.DeleteUserDataResponse(receipt=rendering.receipt(await backend.store.erasing.user(scope)))
