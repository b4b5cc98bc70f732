"""Limits on calls and connections, at a service on a real MongoDB."""

import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from tests.conftest import StartService
from tests.credentials import until
from tests.rpc.steady_calls import return_seconds
from tests.service_process import clean_environment, service_in_process
from turnstore import AsyncHistoryClient, Response
from turnstore.v1 import history_service_pb2 as rpc
from turnstore.v1 import history_service_pb2_grpc, response_pb2
from turnstore_service import server
from turnstore_service.observing import NoObserver
from turnstore_service.operations.connections import connection_options
from turnstore_service.operations.metrics import Metrics
from turnstore_service.operations.settings import Settings
from turnstore_service.rpc.access import OpenAccess
from turnstore_service.rpc.limits import CallLimits
from turnstore_service.rpc.service import HistoryService

SERVICE = rpc.DESCRIPTOR.services_by_name["HistoryService"]
LONG = 60.0


class Refusals(NoObserver):
    """Counts refused calls."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def refused(self, reason: str) -> None:
        self.reasons.append(reason)


@dataclass(frozen=True)
class Limited:
    """A service whose limits a test can use up."""

    target: str
    channel: grpc.aio.Channel
    limits: CallLimits
    refusals: Refusals

    async def call(self, namespace: str, method: str = "DeleteUserData", **options: Any) -> str:
        """The code that a call is answered with."""
        described = SERVICE.methods_by_name[method]
        request = getattr(rpc, described.input_type.name)()
        if method == "ClaimResponses":
            request.namespace = namespace
        else:
            request.scope.namespace = namespace
        path, data = f"/{SERVICE.full_name}/{method}", request.SerializeToString()
        try:
            if described.server_streaming:
                async for _ in self.channel.unary_stream(path)(data, **options):
                    pass
            else:
                await self.channel.unary_unary(path)(data, **options)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"


StartLimited = Callable[..., AbstractAsyncContextManager[Limited]]


@pytest.fixture
def limited(mongodb_uri: str, database_name: str) -> StartLimited:
    """Starts a service with these settings."""

    @asynccontextmanager
    async def start(**changes: Any) -> AsyncIterator[Limited]:
        settings = Settings(
            listen="127.0.0.1:0", mongodb_uri=mongodb_uri, mongodb_database=database_name, **changes
        )
        grpc_server = server.make_server(settings, Metrics(server.SERVED))
        address = server.bind(grpc_server, settings.listen)
        store = await server.open_store(mongodb_uri, settings)
        try:
            await store.migrate()
            refusals = Refusals()
            service = HistoryService(store, settings, OpenAccess(), refusals)
            service.add_to_server(grpc_server)
            await grpc_server.start()
            async with grpc.aio.insecure_channel(str(address)) as channel:
                yield Limited(str(address), channel, service.limits, refusals)
        finally:
            await grpc_server.stop(None)
            await store.close()

    return start


async def test_namespace_at_its_limit_is_refused_with_the_time_to_come_back(limited: StartLimited) -> None:
    async with limited(max_calls_per_namespace=2) as service:
        for _ in range(2):
            await service.limits.enter("noisy", LONG)
        stub = history_service_pb2_grpc.HistoryServiceStub(service.channel)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stub.DeleteUserData(rpc.DeleteUserDataRequest(scope=response_pb2.Scope(namespace="noisy")))
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 0 < return_seconds(refusal.value) < 1
        assert "there are 2 calls already" in (refusal.value.details() or "")
        assert await service.call("quiet") == "OK"
        service.limits.leave("noisy")
        assert await service.call("noisy") == "OK"


async def test_limit_is_for_every_rpc(limited: StartLimited) -> None:
    async with limited(max_calls_per_namespace=1) as service:
        await service.limits.enter("noisy", LONG)
        found = {method.name: await service.call("noisy", method.name) for method in SERVICE.methods}
        assert found == {method.name: "RESOURCE_EXHAUSTED" for method in SERVICE.methods}


async def test_limit_of_all_calls(limited: StartLimited) -> None:
    async with limited(max_calls=2, max_calls_per_namespace=1) as service:
        await service.limits.enter("a", LONG)
        await service.limits.enter("b", LONG)
        assert await service.call("c") == "RESOURCE_EXHAUSTED"
        service.limits.leave("a")
        assert await service.call("c") == "OK"


async def test_call_waits_for_a_place(limited: StartLimited) -> None:
    async with limited(pool_size=1) as service:
        await service.limits.enter("a", LONG)
        call = asyncio.create_task(service.call("b"))
        await until(lambda: service.limits.inside == 2, "the call waits")
        service.limits.leave("a")
        assert await call == "OK"
        assert service.limits.inside == 0


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"default_deadline": "200ms"}, {}),
        ({"default_deadline": "100ms", "max_deadline": "200ms"}, {"timeout": LONG}),
    ],
    ids=["default", "longest"],
)
async def test_call_waits_no_longer_than_the_deadline_that_the_service_sets(
    limited: StartLimited, settings: dict[str, str], options: dict[str, float]
) -> None:
    async with limited(pool_size=1, **settings) as service:
        await service.limits.enter("a", LONG)
        assert await service.call("b", **options) == "DEADLINE_EXCEEDED"
        assert service.limits.inside == 1
        assert service.refusals.reasons == ["UNSPECIFIED"]  # the service said so, not the library


async def test_caller_who_goes_away_does_not_wait_on(limited: StartLimited) -> None:
    async with limited(pool_size=1) as service:
        await service.limits.enter("a", LONG)
        call = asyncio.create_task(service.call("b"))
        await until(lambda: service.limits.inside == 2, "the call waits")
        call.cancel()
        await until(lambda: service.limits.inside == 1, "the call is gone")


async def test_call_that_fails_gives_its_place_back(limited: StartLimited) -> None:
    async with limited(max_calls_per_namespace=1) as service:
        for _ in range(3):
            assert await service.call("a", "GetResponse") == "INVALID_ARGUMENT"
        assert (service.limits.inside, service.limits.running) == (0, 0)


async def test_noisy_namespace_gets_through_and_a_quiet_one_is_not_refused(limited: StartLimited) -> None:
    """Ten times as many callers as the limit allows, with the project's client, which comes back when told to."""
    async with limited(max_calls_per_namespace=4, pool_size=4) as service:
        client = AsyncHistoryClient(service.target, namespace="noisy", timeout=LONG)
        quiet: list[str] = []
        async with client:
            noise = asyncio.gather(
                *(client.store_response(Response(f"r-{number}", status="completed")) for number in range(40))
            )
            while not noise.done():
                quiet.append(await service.call("quiet"))
            stored = await noise
        assert [response.revision for response in stored] == [1] * 40
        assert set(quiet) == {"OK"}
        assert set(service.refusals.reasons) == {"UNSPECIFIED"}


# Connections


def test_connections_are_as_the_settings_say() -> None:
    settings = Settings(
        keepalive_time="3m",
        keepalive_timeout="7s",
        keepalive_min_interval="1500ms",
        max_connection_age="2m",
        max_connection_age_grace="30s",
    )
    assert dict(connection_options(settings)) == {
        "grpc.keepalive_time_ms": 180_000,
        "grpc.keepalive_timeout_ms": 7_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.min_ping_interval_without_data_ms": 1_500,
        "grpc.max_connection_age_ms": 120_000,
        "grpc.max_connection_age_grace_ms": 30_000,
    }


def test_connections_may_last() -> None:
    assert (
        not {"grpc.max_connection_age_ms", "grpc.max_connection_age_grace_ms"}
        & dict(connection_options(Settings(max_connection_age="off"))).keys()
    )


def test_longest_age_is_one_that_the_library_takes() -> None:
    assert (
        dict(connection_options(Settings(max_connection_age="3650d")))["grpc.max_connection_age_ms"]
        == 2**31 - 1
    )


async def test_old_connection_ends_without_a_failed_call(mongodb_uri: str, database_name: str) -> None:
    settings = {"mongodb_uri": mongodb_uri, "mongodb_database": database_name, "max_connection_age": "1s"}
    async with service_in_process(**settings) as service:
        stub = history_service_pb2_grpc.HistoryServiceStub(service.channel)
        request = rpc.DeleteUserDataRequest(scope=response_pb2.Scope(namespace="acme"))
        left = asyncio.Event()

        async def watch() -> None:
            await service.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
            left.set()

        await stub.DeleteUserData(request)
        assert service.channel.get_state() is grpc.ChannelConnectivity.READY
        watching = asyncio.create_task(watch())
        async with asyncio.timeout(20):
            while not left.is_set():
                await stub.DeleteUserData(request)
        await watching
        await stub.DeleteUserData(request)


async def test_caller_who_pings_too_often_is_disconnected(mongodb_uri: str, database_name: str) -> None:
    settings = {
        "mongodb_uri": mongodb_uri,
        "mongodb_database": database_name,
        "keepalive_min_interval": "10m",
    }
    async with service_in_process(**settings) as service:
        options = [
            ("grpc.keepalive_time_ms", 50),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        async with grpc.aio.insecure_channel(service.target, options=options) as channel:
            await channel.channel_ready()
            async with asyncio.timeout(20):
                await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)


# Fairness, measured


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_noisy_namespace_leaves_a_quiet_one_its_speed(start_service: StartService) -> None:
    """A namespace at ten times its limit: the p99 of a quiet one is at most three times what it is alone."""
    limit, quiet_callers, rounds = 8, 4, 5
    service = start_service({"TURNSTORE_MAX_CALLS_PER_NAMESPACE": str(limit)}).wait_ready()

    def start(namespace: str, callers: int, seconds: float) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.rpc.steady_calls"),
                *(service.target, namespace, str(callers), str(seconds)),
            ],
            env=clean_environment({}),
            stdout=subprocess.PIPE,
            text=True,
        )

    def result(process: "subprocess.Popen[str]") -> tuple[float, int]:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        found = json.loads(output)
        return statistics.quantiles(found["milliseconds"], n=100)[98], found["refused"]

    alone, beside = [], []
    for _ in range(rounds):
        p99, refused = result(start("quiet", quiet_callers, 4))
        assert refused == 0
        alone.append(p99)
        noise = start("noisy", limit * 10, 7)
        quiet = start("quiet", quiet_callers, 4)
        p99, refused = result(quiet)
        assert refused == 0
        beside.append(p99)
        assert result(noise)[1] > 0, "the noisy namespace never reached its limit"
    assert statistics.median(beside) <= 3 * statistics.median(alone), f"alone {alone}, beside {beside}"
