"""How the cost of a history grows: one line beside another of which less is asked, on the service alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.beside import Effort
from tests.bench.calls import resolve_request
from tests.bench.histories import Bulk, name, talk, talk_with_forks, talk_with_tools
from tests.bench.measuring import Progress, Sample, Target, in_turns, ratio, run
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import replay_pb2
from turnstore_service.replay.values import Status

_METHOD = "ResolveHistory"
_AS_STORED = replay_pb2.ReplayPolicy(
    cancelled=replay_pb2.TURN_RULE_INCLUDE,
    incomplete=replay_pb2.TURN_RULE_INCLUDE,
    tool_items=replay_pb2.TOOL_ITEMS_KEEP,
    limit_cut=replay_pb2.LIMIT_CUT_EXACT,
)
_MODEL_SAFE = replay_pb2.ReplayPolicy(
    cancelled=replay_pb2.TURN_RULE_SANITIZE,
    incomplete=replay_pb2.TURN_RULE_SANITIZE,
    tool_items=replay_pb2.TOOL_ITEMS_PAIRED,
    limit_cut=replay_pb2.LIMIT_CUT_WHOLE,
)


@dataclass(frozen=True)
class Sizes:
    """Turns in the lines that are compared."""

    long_conversation: int = 100_000
    conversation: int = 1000
    long_chain: int = 10_000
    chain: int = 100
    forks: int = 50
    asides: int = 2000
    failed: int = 5000


@dataclass(frozen=True)
class Pair:
    """Two histories to resolve, and how much longer the first may take."""

    title: str
    base_title: str
    bound: float
    request: rpc.ResolveHistoryRequest
    base: rpc.ResolveHistoryRequest


@dataclass
class Scaled:
    """What a pair came to."""

    pair: Pair
    sample: Sample
    base: Sample

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return ratio(self.sample, self.base, lambda sample: sample.median)


async def put(bulk: Bulk, sizes: Sizes, progress: Progress) -> list[Pair]:
    """Stores the lines; the pairs of them."""
    small = f"a conversation of {sizes.conversation:,} turns"
    pairs = []

    def pair(
        title: str,
        base_title: str,
        bound: float,
        request: rpc.ResolveHistoryRequest,
        base: rpc.ResolveHistoryRequest,
    ) -> None:
        pairs.append(Pair(title, base_title, bound, request, base))

    progress(f"putting {small}")
    await bulk.put(talk("short", sizes.conversation))
    short = resolve_request("short")

    title = f"a conversation of {sizes.long_conversation:,} turns"
    progress(f"putting {title}")
    await bulk.put(talk("long", sizes.long_conversation))
    pair(title, small, 1.2, resolve_request("long"), short)

    title = f"a chain of {sizes.long_chain:,}"
    progress(f"putting {title}")
    await bulk.put(talk("long chain", sizes.long_chain, chained=True))
    await bulk.put(talk("short chain", sizes.chain, chained=True))
    long_chain = resolve_request("", name("resp", "long chain", sizes.long_chain - 1))
    short_chain = resolve_request("", name("resp", "short chain", sizes.chain - 1))
    pair(title, f"a chain of {sizes.chain:,}", 1.2, long_chain, short_chain)

    progress(f"putting chains with {sizes.forks} forks")
    await bulk.put(talk("chain", sizes.conversation, chained=True))
    chain = resolve_request("", name("resp", "chain", sizes.conversation - 1))
    step = sizes.conversation // sizes.forks
    spread = range(step // 2, sizes.conversation, step)
    dense = range(sizes.conversation - sizes.forks, sizes.conversation)
    for where, forks in (("spread over it", spread), ("one at each of the newest turns", dense)):
        line = f"forks {where}"
        await bulk.put(talk_with_forks(line, sizes.conversation, forks))
        forked = resolve_request("", name("resp", line, sizes.conversation - 1))
        title = f"a chain of {sizes.conversation:,} with {len(forks)} forks, {where}"
        pair(title, "one without", 1.5, forked, chain)

    title = f"a chain of {sizes.asides:,} with a side request before each turn"
    progress(f"putting {title}")
    await bulk.put(talk_with_forks("asides", sizes.asides, range(1, sizes.asides)))
    await bulk.put(talk("no asides", sizes.asides, chained=True))
    asides = resolve_request("", name("resp", "asides", sizes.asides - 1))
    no_asides = resolve_request("", name("resp", "no asides", sizes.asides - 1))
    pair(title, "one without", 2.0, asides, no_asides)

    title = f"{sizes.failed:,} failed turns at the end"
    progress(f"putting {title}")
    await bulk.put(talk("failing", sizes.conversation))
    await bulk.put(talk("failing", sizes.failed, status=Status.FAILED, first=sizes.conversation))
    pair(title, f"none, {small}", 1.2, resolve_request("failing"), short)

    progress("putting a conversation with tool calls")
    await bulk.put(talk_with_tools("tools", sizes.conversation))
    safe, stored = (resolve_request("tools", policy=policy) for policy in (_MODEL_SAFE, _AS_STORED))
    pair("model_safe, a conversation with a tool call in each turn", "as_stored", 1.5, safe, stored)
    return pairs


async def compare(pairs: Sequence[Pair], service: Target, effort: Effort, progress: Progress) -> list[Scaled]:
    """Resolves both histories of each pair in alternation, one call at a time."""
    return [await _compare(pair, service, effort, progress) for pair in pairs]


async def _compare(pair: Pair, service: Target, effort: Effort, progress: Progress) -> Scaled:
    progress(pair.title)
    requests: Mapping[bool, bytes] = {
        True: pair.request.SerializeToString(),
        False: pair.base.SerializeToString(),
    }
    samples = {True: Sample(), False: Sample()}
    for request in requests.values():
        await run(service, _METHOD, [iter([request] * 50)], effort.seconds)
    for which in in_turns((True, False), effort.rounds):
        samples[which].add(await run(service, _METHOD, [iter([requests[which]] * 10_000)], effort.seconds))
    return Scaled(pair, samples[True], samples[False])
