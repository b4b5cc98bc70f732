"""The calls that are measured beside the floor."""

import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from tests.bench.histories import SCOPE_MESSAGE, Bulk, message, name, store_request, talk
from tests.bench.measuring import Supply
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import replay_pb2
from turnstore_service.replay.values import Status

ITEM_BYTES = 1024
LIMIT = 100
PAYLOAD = (
    '{"model":"some-model","usage":{"input_tokens":1200,"output_tokens":340},"note":"' + "n" * 400 + '"}'
)
LINES = 32
"""Lines that are appended to, one for each writer, since writers of one line wait for each other."""


def create_request(
    response_id: str, conversation_id: str = "", previous_response_id: str = ""
) -> rpc.StoreResponseRequest:
    """The write with which a turn begins: its input."""
    return store_request(
        response_id,
        [message(name("msg", response_id, "in"), "user", ITEM_BYTES)],
        status=Status.IN_PROGRESS,
        conversation_id=conversation_id,
        previous_response_id=previous_response_id,
    )


def update_request(response_id: str) -> rpc.StoreResponseRequest:
    """The write with which a turn ends: its output, the rest of its envelope, and the status."""
    output = message(name("msg", response_id, "out"), "assistant", ITEM_BYTES)
    return store_request(response_id, (), [output], payload=PAYLOAD)


def resolve_request(
    conversation_id: str = "",
    previous_response_id: str = "",
    *,
    full: bool = False,
    policy: replay_pb2.ReplayPolicy | None = None,
) -> rpc.ResolveHistoryRequest:
    """Asks for the newest items of a line."""
    return rpc.ResolveHistoryRequest(
        scope=SCOPE_MESSAGE,
        conversation_id=conversation_id,
        previous_response_id=previous_response_id,
        limit=LIMIT,
        view=replay_pb2.HISTORY_VIEW_FULL if full else replay_pb2.HISTORY_VIEW_ITEM_IDS,
        policy=policy,
    )


def get_request(response_id: str) -> rpc.GetResponseRequest:
    """Asks for one response."""
    return rpc.GetResponseRequest(scope=SCOPE_MESSAGE, response_id=response_id)


@dataclass(frozen=True)
class Row:
    """One kind of call."""

    title: str
    method: str
    supply: Callable[[str, int, int], Awaitable[Supply]]
    """Given who is to be asked, how many callers there are and how many calls each can make at the most."""


@dataclass
class Data:
    """What the calls are about, in a database that the service and the floor share."""

    bulk: Bulk
    turns: int = 1000
    """Turns in the lines that are read."""
    _ends: dict[tuple[str, int], str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    async def put(self, sides: tuple[str, ...]) -> None:
        """Stores what the calls read and write to."""
        for line, chained in (("read", False), ("read chain", True)):
            await self.bulk.put(talk(line, self.turns, chained=chained, size=ITEM_BYTES, payload=PAYLOAD))
        for side, number in itertools.product(sides, range(LINES)):
            await self.bulk.put(talk(_line(side, number), 10))
            chain = f"{_line(side, number)} chain"
            await self.bulk.put(talk(chain, 10, chained=True))
            self._ends[side, number] = name("resp", chain, 9)

    def rows(self) -> list[Row]:
        """Every kind of call."""
        last = name("resp", "read chain", self.turns - 1)
        ids, full, chain = (
            resolve_request("read"),
            resolve_request("read", full=True),
            resolve_request("", last),
        )
        return [
            Row("ResolveHistory, ids, limit 100", "ResolveHistory", _again(ids)),
            Row("ResolveHistory, FULL, 100 items of 1 KB", "ResolveHistory", _again(full)),
            Row("StoreResponse, create", "StoreResponse", self._creates),
            Row("StoreResponse, update", "StoreResponse", self._updates),
            Row("GetResponse", "GetResponse", self._gets),
            Row("ResolveHistory, ids, limit 100, in a chain", "ResolveHistory", _again(chain)),
            Row("StoreResponse, create, in a chain", "StoreResponse", self._chained_creates),
        ]

    async def _creates(self, side: str, callers: int, calls: int) -> Supply:
        return [
            iter([self._create(_line(side, caller)).SerializeToString() for _ in range(calls)])
            for caller in range(callers)
        ]

    async def _chained_creates(self, side: str, callers: int, calls: int) -> Supply:
        return [self._chain(side, caller) for caller in range(callers)]

    def _chain(self, side: str, caller: int) -> Iterator[bytes]:
        # Made one by one, since only what was asked for stands in the chain and can be followed.
        while True:
            request = self._create("", self._ends[side, caller])
            self._ends[side, caller] = request.response.id
            yield request.SerializeToString()

    def _create(self, conversation_id: str, previous: str = "") -> rpc.StoreResponseRequest:
        return create_request(name("resp", "new", next(self._numbers)), conversation_id, previous)

    async def _updates(self, side: str, callers: int, calls: int) -> Supply:
        lines = [f"{_line(side, caller)} updated {next(self._numbers)}" for caller in range(callers)]
        begun = [[self._create(line) for _ in range(calls)] for line in lines]
        await self.bulk.put(itertools.chain.from_iterable(begun))
        return [
            iter([update_request(one.response.id).SerializeToString() for one in requests])
            for requests in begun
        ]

    async def _gets(self, side: str, callers: int, calls: int) -> Supply:
        requests = [
            get_request(name("resp", "read", number)).SerializeToString() for number in range(self.turns)
        ]
        shared = itertools.cycle(requests)
        return [shared] * callers


def _line(side: str, number: int) -> str:
    return f"written by {side} {number}"


def _again(request: rpc.ResolveHistoryRequest) -> Callable[[str, int, int], Awaitable[Supply]]:
    data = request.SerializeToString()

    async def supply(side: str, callers: int, calls: int) -> Supply:
        return [itertools.repeat(data)] * callers

    return supply
