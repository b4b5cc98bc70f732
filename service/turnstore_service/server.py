"""The wiring of the service's process: what is started, in which order, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from prometheus_client import CollectorRegistry

from turnstore.v1 import history_service_pb2
from turnstore_service.embedded.binary import find_mongod
from turnstore_service.embedded.mongod import EmbeddedMongod
from turnstore_service.observing import Observer
from turnstore_service.operations.addresses import Address
from turnstore_service.operations.connections import connection_options
from turnstore_service.operations.credentials.opening import open_access
from turnstore_service.operations.health import CHECK_SECONDS, HealthMonitor, HealthServicer
from turnstore_service.operations.live_files import FileError
from turnstore_service.operations.metrics import Metrics, MetricsEndpoint, version
from turnstore_service.operations.settings import MIB, Settings, mask_uri
from turnstore_service.operations.shared_port import shared_port
from turnstore_service.operations.stopping import Stopping
from turnstore_service.operations.sweeping import sweep_forever
from turnstore_service.operations.tls import server_credentials
from turnstore_service.operations.tracing import open_tracing
from turnstore_service.operations.worker import Seat
from turnstore_service.operations.workers import END_SECONDS, WorkerError, Workers, worker_command
from turnstore_service.rpc.access import Access
from turnstore_service.rpc.interceptors.around import Around, AroundCalls
from turnstore_service.rpc.interceptors.call_log import CallLog
from turnstore_service.rpc.interceptors.metrics import CallMetrics
from turnstore_service.rpc.service import HistoryService
from turnstore_service.storage.errors import StoreError
from turnstore_service.storage.mongo import driver
from turnstore_service.storage.mongo.store import MongoStore

if TYPE_CHECKING:
    from turnstore_service.operations.spans import Spans

SERVED: Sequence[Any] = (
    history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
"""Descriptors of all services that the server has."""

Opened = TypeVar("Opened")

_MONGOD_POLL_SECONDS = 0.5

_log = structlog.get_logger("turnstore_service.server")


class StartError(Exception):
    """The service cannot start or go on. The message is for the operator: what happened and what to do."""


def make_server(settings: Settings, metrics: Metrics, spans: Spans | None = None) -> grpc.aio.Server:
    """A gRPC server with its interceptors and limits, and nothing in it yet. `spans`: calls are traced."""
    around: list[Around[Any]] = [CallMetrics(metrics), CallLog()]
    if spans is not None:
        from turnstore_service.rpc.interceptors.tracing import CallTracing

        around.append(CallTracing(spans))
    return grpc.aio.server(
        interceptors=[AroundCalls(*around)],
        options=[
            # On by default: a second server on the port would silently take a share of the calls. Workers are
            # meant to, and their first process keeps others from it.
            ("grpc.so_reuseport", int(settings.workers > 1)),
            # Somewhat more than the service's own limit, which is answered with a reason and the size.
            ("grpc.max_receive_message_length", settings.max_request_bytes + MIB),
            ("grpc.max_send_message_length", -1),
            *connection_options(settings),
        ],
    )


def bind(
    server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None = None
) -> Address:
    """Opens the port, with TLS if there are credentials; returns the address with the real port.

    Raises:
        StartError: It cannot be opened.
    """
    try:
        if credentials is None:
            return Address(address.host, server.add_insecure_port(str(address)))
        return Address(address.host, server.add_secure_port(str(address), credentials))
    except RuntimeError as error:
        raise _cannot_listen("TURNSTORE_LISTEN", address) from error


def add_services(
    server: grpc.aio.Server,
    store: MongoStore,
    settings: Settings,
    access: Access,
    observer: Observer | None = None,
) -> HealthServicer:
    """Puts all services into the server; returns the one that tells health, which is not ready yet."""
    HistoryService(store, settings, access, observer).add_to_server(server)
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if settings.reflection:
        reflection.enable_server_reflection([service.full_name for service in SERVED], server)
    return health


def _opened(open_files: Callable[[Settings], Opened], settings: Settings) -> Opened:
    try:
        return open_files(settings)
    except FileError as error:
        raise StartError(f"{error}.") from error


async def open_store(uri: str, settings: Settings, observer: Observer | None = None) -> MongoStore:
    """The store, which connects when it is first asked. The observer is told of every database call."""
    return await MongoStore.open(
        uri,
        settings.mongodb_database,
        max_calls=settings.pool_size,
        observer=observer,
        abandon_after=settings.abandon_after,
        erase_grace=settings.erase_grace,
    )


async def migrate(settings: Settings) -> None:
    """Makes the indexes, on the embedded MongoDB if there is no other.

    Raises:
        EmbeddedMongodError: The embedded MongoDB does not start.
        StartError: The database does not answer, or an index stands that is not as it should be.
    """
    async with AsyncExitStack() as stack:
        uri, _ = await _find_database(settings, stack)
        store = await open_store(uri, settings)
        stack.push_async_callback(store.close)
        await _make_indexes(store)


async def serve(settings: Settings) -> None:
    """Runs the service until SIGTERM or SIGINT, and ends it in order. A second signal ends it at once.

    Raises:
        EmbeddedMongodError: The embedded MongoDB does not start.
        StartError: A port cannot be opened, or the embedded MongoDB or a worker ended by itself.
    """
    signals = _Signals()
    _remove_ready_file(settings)
    if settings.workers > 1:
        await _serve_with_workers(settings, signals)
    else:
        await _take_calls(settings, signals, Metrics(SERVED))
    _log.info("stopped")


async def work(settings: Settings, number: int, channel: int) -> None:
    """Runs one of several workers, until the process that started it tells it to end, or is gone.

    Args:
        settings: With the real addresses.
        number: Which worker it is; the first is 0.
        channel: File descriptor of its end of the channel to that process.

    Raises:
        StartError: A port cannot be opened.
    """
    metrics = Metrics(SERVED)
    seat = await Seat.take(channel, metrics)
    # That process has a metrics endpoint and a ready file for all.
    own = settings.model_copy(update={"metrics_listen": None, "ready_file": None})
    await _take_calls(own, seat.stopping, metrics, seat.listening, sweeps=number == 0)
    await seat.leave()


async def _take_calls(
    settings: Settings,
    stopping: Stopping,
    metrics: Metrics,
    on_listening: Callable[[], None] = lambda: None,
    *,
    sweeps: bool = True,
) -> None:
    _log.info("starting", version=version())
    # What is pushed first ends last: metrics are there to the end, and the database outlives the last call.
    async with AsyncExitStack() as stack:
        observer: Observer = metrics
        spans = _opened(open_tracing, settings)
        if spans is not None:
            stack.push_async_callback(asyncio.to_thread, spans.close)
            observer = spans.observer(metrics)
        server = make_server(settings, metrics, spans)
        access = _opened(open_access, settings)
        listen = bind(server, settings.listen, _opened(server_credentials, settings))
        metrics_listen = _serve_metrics(settings, metrics.registry, stack)
        uri, mongod = await _find_database(settings, stack)
        store = await open_store(uri, settings, observer)
        stack.push_async_callback(store.close)
        if mongod is not None:
            await _make_indexes(store)
        metrics.database_calls_limit.set(settings.pool_size)
        metrics.workers.set(1)
        health = add_services(server, store, settings, access, observer)
        monitor = HealthMonitor(
            _CheckedStore(store),
            health,
            settings.health_interval.total_seconds(),
            metrics.ready.set,
        )
        await _serve_health(settings, health, stack)
        await server.start()
        stack.push_async_callback(server.stop, None)
        _log.info(
            "listening",
            listen=str(listen),
            metrics_listen=str(metrics_listen or "off"),
            auth=settings.auth,
            tls=settings.server_tls_cert is not None,
        )
        _write_ready_file(settings, listen, metrics_listen, uri, stack)
        on_listening()
        _spare_collections()

        outcomes = await _first_of(
            monitor.run(),
            *((sweep_forever(store),) if sweeps else ()),
            _ended_by_itself(mongod),
            stopping.stop.wait(),
        )
        metrics.ready.set(0)
        health.set_ready(False)
        await _drain(server, health, settings, stopping)
        _raise_from(outcomes)


def _spare_collections() -> None:
    """Keeps Python's cyclic collector from running within each call.

    A read makes some thousand objects that end with it, so the default of 700 would set it off several times a
    call, to look at objects of start-up that stay for good.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


async def _serve_with_workers(settings: Settings, signals: Stopping) -> None:
    metrics = Metrics(SERVED)
    _log.info("starting", version=version(), workers=settings.workers)
    async with AsyncExitStack() as stack:
        try:
            listen = stack.enter_context(shared_port(settings.listen))
        except OSError as error:
            raise _cannot_listen("TURNSTORE_LISTEN", settings.listen) from error
        if settings.health_listen is not None:
            try:
                stack.enter_context(shared_port(settings.health_listen))
            except OSError as error:
                raise _cannot_listen("TURNSTORE_HEALTH_LISTEN", settings.health_listen) from error
        workers = Workers(metrics)
        metrics_listen = _serve_metrics(settings, workers.registry, stack)
        uri, mongod = await _find_database(settings, stack)
        if mongod is not None:
            store = await open_store(uri, settings)
            try:
                await _make_indexes(store)
            finally:
                await store.close()
        stack.callback(workers.kill)

        def all_listen() -> None:
            _log.info(
                "listening",
                listen=str(listen),
                metrics_listen=str(metrics_listen or "off"),
                workers=workers.processes,
            )
            metrics.ready.set(1)  # what is told is the least of all processes
            _write_ready_file(settings, listen, metrics_listen, uri, stack)

        embedded_uri = None if mongod is None else uri
        commands = [worker_command(number, listen, embedded_uri) for number in range(settings.workers)]
        outcomes = await _first_of(
            workers.run(commands, all_listen), _ended_by_itself(mongod), signals.stop.wait()
        )
        metrics.ready.set(0)
        time_for_calls = (settings.shutdown_pause + settings.shutdown_grace).total_seconds()
        problems = await workers.stop(time_for_calls + END_SECONDS, signals.hurry)
        _raise_from(outcomes)
        if problems:
            raise StartError(f"{'; '.join(problems)}.")


async def _first_of(*works: Coroutine[Any, Any, Any]) -> list[Any]:
    """Runs all until one ends; what came of each, its error or its result."""
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def _raise_from(outcomes: list[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, WorkerError):
            raise StartError(f"{outcome}, so the service ends.") from outcome
        if isinstance(outcome, Exception):
            raise outcome


class _Signals(Stopping):
    """What SIGTERM and SIGINT ask for."""

    def __init__(self) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        self.ask()
        _log.info("signal received", signal=number.name)


class _CheckedStore:
    """The store, asked with a deadline: a check that fails says why, and leaves no call running."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def ping(self) -> None:
        # Before the monitor gives up, so that the driver's words about the cause are heard: while it looks
        # for a primary it sees the deadline up to half a second late.
        driver.deadline.set(time.monotonic() + CHECK_SECONDS - 1)
        await self._store.ping()

    async def problems(self) -> list[str]:
        return await self._store.problems()


async def _find_database(settings: Settings, stack: AsyncExitStack) -> tuple[str, EmbeddedMongod | None]:
    if settings.mongodb_uri is not None:
        _log.info("database", uri=mask_uri(settings.mongodb_uri), database=settings.mongodb_database)
        return settings.mongodb_uri, None
    mongod = EmbeddedMongod(settings.data_dir, find_mongod(settings.mongod), settings.mongod_cache)
    await asyncio.to_thread(mongod.start)
    stack.push_async_callback(asyncio.to_thread, mongod.stop)
    _log.info(
        "embedded MongoDB", uri=mongod.uri, data_dir=str(mongod.data_dir), database=settings.mongodb_database
    )
    return mongod.uri, mongod


async def _make_indexes(store: MongoStore) -> None:
    try:
        await store.migrate()
    except StoreError as error:
        cause = "" if error.__cause__ is None else f" ({error.__cause__})"
        raise StartError(f"The indexes cannot be made: {error}{cause}") from error


def _serve_metrics(settings: Settings, registry: CollectorRegistry, stack: AsyncExitStack) -> Address | None:
    if settings.metrics_listen is None:
        return None
    try:
        endpoint = MetricsEndpoint(registry, settings.metrics_listen)
    except OSError as error:
        raise _cannot_listen("TURNSTORE_METRICS_LISTEN", settings.metrics_listen) from error
    stack.push_async_callback(asyncio.to_thread, endpoint.close)
    return endpoint.address


async def _serve_health(settings: Settings, health: HealthServicer, stack: AsyncExitStack) -> None:
    """Health once more, alone and in the clear: it tells nothing but whether the service can serve."""
    if settings.health_listen is None:
        return
    # Any of several workers can tell: they have the same database, and the service ends with the first of them.
    server = grpc.aio.server(options=[("grpc.so_reuseport", int(settings.workers > 1))])
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    try:
        server.add_insecure_port(str(settings.health_listen))
    except RuntimeError as error:
        raise _cannot_listen("TURNSTORE_HEALTH_LISTEN", settings.health_listen) from error
    await server.start()
    stack.push_async_callback(server.stop, None)


def _cannot_listen(variable: str, address: Address) -> StartError:
    return StartError(
        f"Cannot listen on {address}: is it in use by another process, or no address of this machine? "
        f"Set {variable} to another one."
    )


def _write_ready_file(
    settings: Settings, listen: Address, metrics_listen: Address | None, uri: str, stack: AsyncExitStack
) -> None:
    path = settings.ready_file
    if path is None:
        return
    text = json.dumps(
        {
            "pid": os.getpid(),
            "listen": str(listen),
            "metrics_listen": None if metrics_listen is None else str(metrics_listen),
            "mongodb_uri": mask_uri(uri),
        }
    )
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        written.write_text(text)
        written.replace(path)  # a reader sees the whole file or none
    except OSError as error:
        raise StartError(f"TURNSTORE_READY_FILE={path} cannot be written: {error.strerror}.") from error
    stack.callback(_remove_ready_file, settings)


def _remove_ready_file(settings: Settings) -> None:
    """Also at the start: what a killed service left would tell wrong addresses."""
    if settings.ready_file is not None:
        settings.ready_file.unlink(missing_ok=True)


async def _ended_by_itself(mongod: EmbeddedMongod | None) -> None:
    if mongod is None:
        await asyncio.Event().wait()
        return
    while mongod.exit_status is None:  # noqa: ASYNC110  # a child process is no event
        await asyncio.sleep(_MONGOD_POLL_SECONDS)
    raise StartError(
        f"The embedded mongod ended by itself (status {mongod.exit_status}); its log is {mongod.log_path}."
    )


async def _drain(
    server: grpc.aio.Server, health: HealthServicer, settings: Settings, stopping: Stopping
) -> None:
    """Lets load balancers notice, then running calls end; a second signal cuts both short."""
    hurry = asyncio.create_task(stopping.hurry.wait())
    await asyncio.wait((hurry,), timeout=settings.shutdown_pause.total_seconds())
    health.end_watches()
    stopped = asyncio.create_task(server.stop(settings.shutdown_grace.total_seconds()))
    await asyncio.wait((hurry, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not stopped.done():
        await server.stop(None)
    await stopped
    hurry.cancel()
