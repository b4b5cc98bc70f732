"""JSON that does not fit into a document: written, read, replaced, and never left behind for good."""

import asyncio
from datetime import timedelta

import pytest

from tests.storage.turns import MIB, SCOPE, Raw, item, items, read, turn
from turnstore_service.replay.values import BodyRef, Part, Status
from turnstore_service.storage.errors import DataMissingError, DuplicateItemError, ParentNotFoundError
from turnstore_service.storage.mongo.bodies import CHUNK_BYTES, PACK_BYTES, Bodies
from turnstore_service.storage.mongo.store import MongoStore

RUNNING = Status.IN_PROGRESS


async def sweep(store: MongoStore) -> int:
    """Sweeps whatever is there, however young."""
    bodies: Bodies = store._bodies
    return await bodies.sweep(timedelta(seconds=-10))


async def test_small_response_keeps_everything_in_its_document(store: MongoStore, raw: Raw) -> None:
    await store.writing.store(SCOPE, turn("small", given=items("in", 3, MIB), payload=item("p", MIB)))
    assert raw.chunks() == set()


@pytest.mark.parametrize(
    ("given", "made", "payload"),
    [
        pytest.param(items("in", 5, 2 * MIB), items("out", 2), item("p"), id="input"),
        pytest.param(items("in", 2), items("out", 9, MIB), item("p"), id="output"),
        pytest.param([], [], item("p", 20 * MIB), id="payload"),
        pytest.param([item("in", 7 * MIB)], [item("out", 7 * MIB)], item("p", 7 * MIB), id="each part"),
        pytest.param(items("in", 10_000, 2500), [], "", id="ten thousand small items"),
        pytest.param(
            [*items("small", 3), *items("large", 2, PACK_BYTES), *items("end", 3), item("last", 9 * MIB)],
            items("out", 1),
            "",
            id="small and large side by side",
        ),
        pytest.param([item("in", 15 * MIB), item("in-2", CHUNK_BYTES)], [], "", id="items of several chunks"),
        pytest.param([item("é" * 100, 9 * MIB), "{}" + " " * CHUNK_BYTES], [], "", id="text beyond ASCII"),
    ],
)
async def test_large_response_comes_back_as_it_was(
    store: MongoStore, raw: Raw, given: list[str], made: list[str], payload: str
) -> None:
    await store.writing.store(SCOPE, turn("large", given=given, made=made, payload=payload))
    assert await read(store, "large") == (given, made, payload)
    assert raw.chunks()
    assert raw.chunks() == raw.named_chunks()


async def test_character_that_a_chunk_tears_apart_is_whole_again(store: MongoStore) -> None:
    given = ['{"t":"' + "a" * shift + "€" * (3 * MIB) + '"}' for shift in range(3)]
    await store.writing.store(SCOPE, turn("torn", given=given))
    assert await read(store, "torn") == (given, [], "")


async def test_item_is_read_without_those_far_from_it(store: MongoStore, raw: Raw) -> None:
    await store.writing.store(SCOPE, turn("far", given=items("in", 40, MIB)))
    assert raw.database["bodies"].count_documents({}) == 40
    raw.database["bodies"].delete_many({"index": {"$lt": 30}})
    stored, _, _ = await store.reading.response(SCOPE, "far")
    wanted = [BodyRef(stored.key, Part.INPUT, index) for index in (35, 39)]
    texts = await store.reading.bodies(wanted, {stored.key: 1}, 1 << 40)
    assert [texts.get(ref) for ref in wanted] == [item("in-35", MIB), item("in-39", MIB)]


async def test_update_of_the_output_keeps_the_input_and_removes_what_it_replaced(
    store: MongoStore, raw: Raw
) -> None:
    given = items("in", 5, 2 * MIB)
    await store.writing.store(
        SCOPE, turn("grows", status=RUNNING, given=given, made=items("draft", 5, 2 * MIB))
    )
    for made in (items("out", 5, 3 * MIB), items("out", 2)):
        await store.writing.store(SCOPE, turn("grows", status=RUNNING, made=made))
        assert await read(store, "grows") == (given, made, "")
        assert raw.chunks() == raw.named_chunks()
    await store.writing.store(SCOPE, turn("grows", given=items("new", 1), made=items("end", 1)))
    assert raw.chunks() == set()


async def test_updates_by_several_writers_leave_the_bodies_of_the_last_alone(
    store: MongoStore, raw: Raw
) -> None:
    await store.writing.store(SCOPE, turn("contended", status=RUNNING))
    written = [items(f"out-{writer}", 3, 3 * MIB) for writer in range(4)]
    await asyncio.gather(
        *(store.writing.store(SCOPE, turn("contended", status=RUNNING, made=made)) for made in written)
    )
    _, made, _ = await read(store, "contended")
    assert made in written
    assert raw.chunks() == raw.named_chunks()


async def test_write_that_is_refused_leaves_no_bodies(store: MongoStore, raw: Raw) -> None:
    large = items("in", 3, 4 * MIB)
    with pytest.raises(ParentNotFoundError):
        await store.writing.store(SCOPE, turn("orphan", parent="none", given=large))
    await store.writing.store(SCOPE, turn("first", conversation="c", given=[item("in-1")]))
    with pytest.raises(DuplicateItemError):
        await store.writing.store(SCOPE, turn("second", conversation="c", given=large))
    assert raw.chunks() == set()


async def test_same_large_write_again_leaves_no_second_copy(store: MongoStore, raw: Raw) -> None:
    write = turn("same", given=items("in", 3, 4 * MIB))
    await store.writing.store(SCOPE, write)
    before = raw.chunks()
    await store.writing.store(SCOPE, write)
    assert raw.chunks() == before


async def test_sweep_removes_what_no_response_names_and_nothing_else(store: MongoStore, raw: Raw) -> None:
    given = items("in", 3, 4 * MIB)
    await store.writing.store(SCOPE, turn("kept", given=given, made=items("out", 3, 4 * MIB)))
    await store.writing.store(SCOPE, turn("lost", given=given))
    named = raw.named_chunks()
    (lost,) = raw.responses(id="lost")
    raw.database["responses"].delete_one({"_id": lost["_id"]})
    assert await store.sweep() == 0, "bodies younger than any write can be are left alone"
    assert await sweep(store) == 3
    assert raw.chunks() == named - {lost["input_side"]}
    assert await sweep(store) == 0
    assert (await read(store, "kept"))[0] == given


async def test_sweep_goes_through_more_bodies_than_one_step_takes(store: MongoStore, raw: Raw) -> None:
    await store.writing.store(SCOPE, turn("kept", given=items("in", 3, 4 * MIB)))
    (chunk, *_) = raw.database["bodies"].find({}, {"_id": 0, "data": 0, "texts": 0})
    raw.database["bodies"].insert_many(
        [{**chunk, "token": b"%012d" % number, "owner": f"none-{number}"} for number in range(1201)]
    )
    assert await sweep(store) == 1201
    assert raw.chunks() == raw.named_chunks()


async def test_body_that_is_gone_is_data_loss_and_never_an_empty_item(store: MongoStore, raw: Raw) -> None:
    await store.writing.store(
        SCOPE, turn("damaged", given=[item("in", 15 * MIB)], made=items("out", 1), payload=item("p", 9 * MIB))
    )
    raw.database["bodies"].delete_one({"part": {"$gte": 0}, "chunk": 0})
    with pytest.raises(DataMissingError):
        await read(store, "damaged")
    raw.database["bodies"].delete_many({"part": -1})
    stored, _, _ = await store.reading.response(SCOPE, "damaged")
    with pytest.raises(DataMissingError):
        await store.reading.payload(SCOPE, stored)
