"""The server: binds first, loads the model behind a closed gate, serves, drains.

bind -> STARTING -> load, probe -> SERVING -> signal -> DRAINING -> stop
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server
from pydantic import BaseModel, ConfigDict, Field

from chairlift.config import Batching, EngineConfig
from chairlift.errors import ConfigError, ModelError
from chairlift.metrics import Metrics
from chairlift.server.batch_end import BatchEnd
from chairlift.server.calls import Calls
from chairlift.server.embedding_service import EmbeddingServicer
from chairlift.server.gate import Gate
from chairlift.server.guard import Guard
from chairlift.server.health import Health
from chairlift.server.listen import TcpAddress, UnixAddress, bind, parse_address
from chairlift.server.live import LiveRequests
from chairlift.server.requests import Desk
from chairlift.server.server_service import ServerServicer
from chairlift.server.servicer import GenerationServicer
from chairlift.server.tokenizer_service import TokenizerServicer
from chairlift.types import Accepted, Failed, PrefixCache, Request, Sampling, Stopping
from chairlift.v1 import (
    embedding_pb2,
    embedding_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    server_pb2,
    server_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

_log = logging.getLogger(__name__)

_LAST_WRITES_S: Final = 5.0
"""After all requests have ended: for the events that slow clients have not read."""
_STOP_S: Final = 0.5
"""For the calls that never end by themselves, such as a health watch."""
_WATCHDOG_S: Final = 15.0
_WATCHDOG_EXIT: Final = 70

Result = TypeVar("Result")


class ServerConfig(BaseModel):
    """Settings of the server; each is also an option of `chairlift serve`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "demo"
    """`demo`, a local folder, or a Hugging Face id."""
    listen: str = "127.0.0.1:50051"
    """HOST:PORT on loopback, or unix:PATH."""
    metrics_listen: str | None = None
    """HOST:PORT on loopback of the Prometheus endpoint; None is none."""
    drain_grace_s: Annotated[float, Field(ge=0)] = 30.0
    """After a signal: how long running requests may go on."""
    write_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A call whose client reads nothing for so long ends."""
    max_receive_bytes: Annotated[int, Field(ge=1024)] = 4 * 2**20
    """A longer message is refused."""
    max_concurrent_streams: Annotated[int, Field(ge=1)] = 256
    """Open calls of one connection."""


class Server:
    """One engine behind one gRPC port."""

    def __init__(self, engine_config: EngineConfig, config: ServerConfig) -> None:
        """Builds everything that needs no model.

        Args:
            engine_config: Of the engine.
            config: Of the server.

        Raises:
            ConfigError: An address is wrong.
        """
        self._engine_config = engine_config
        self._config = config
        self._address = parse_address(config.listen, "listen")
        self._metrics_address = _metrics_address(config.metrics_listen)
        self._health = Health(_service_names())
        self._background: set[asyncio.Task[None]] = set()
        self.gate = Gate()
        self.metrics = Metrics(self._load_snapshot)
        self._desk = Desk(
            gate=self.gate,
            calls=Calls(),
            live=LiveRequests(),
            metrics=self.metrics,
            batch_end=BatchEnd(self._end_batch),
            write_timeout_s=config.write_timeout_s,
        )

    def _load_snapshot(self) -> Any:
        engine = self.gate.loaded
        return None if engine is None else engine.load()

    def _end_batch(self) -> None:
        if self._engine_config.batching is Batching.STATIC:
            self.gate.engine().flush()

    async def bind(self) -> str:
        """Listens; everything is answered from now on, if only with STARTING.

        Returns:
            The address, with the port that the system chose.

        Raises:
            ConfigError: An address cannot be used.
        """
        self._grpc = grpc.aio.server(interceptors=(Guard(),), options=_options(self._config))
        await self._add_services()
        address = bind(self._grpc, self._address, "listen")
        self._serve_metrics()
        await self._grpc.start()
        return str(address)

    async def _add_services(self) -> None:
        server, desk = self._grpc, self._desk
        info = ServerServicer(desk, self._engine_config, self._config.max_receive_bytes)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(
            GenerationServicer(desk), server
        )
        embedding_pb2_grpc.add_EmbeddingServiceServicer_to_server(EmbeddingServicer(), server)
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(
            TokenizerServicer(self.gate), server
        )
        server_pb2_grpc.add_ServerServiceServicer_to_server(info, server)
        await self._health.add_to(server)
        names = (*_service_names(), "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    def _serve_metrics(self) -> None:
        address = self._metrics_address
        if address is None:
            return
        try:
            start_http_server(address.port, address.host, self.metrics.registry)
        except OSError as error:
            reason = (error.strerror or "unknown error").lower()
            message = f"metrics_listen: cannot listen on {address}: {reason}"
            raise ConfigError(message) from None

    async def load(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Loads the model, generates one token to see that it works, and opens the gate.

        Args:
            on_progress: Told, on another thread, how many bytes of weights are read of how many.

        Raises:
            ConfigError: A setting does not fit the model.
            ModelError: The model cannot be loaded, or cannot answer.
        """
        engine = await _on_daemon_thread(lambda: self._new_engine(on_progress))
        await self.serve(engine)

    def _new_engine(self, on_progress: Callable[[int, int], None] | None) -> "AsyncEngine":
        # Here, because torch takes seconds to import and the port should answer meanwhile.
        from chairlift.engine.async_engine import AsyncEngine
        from chairlift.engine.engine import Engine

        settings = self._engine_config.model_dump()
        return AsyncEngine.of(Engine(self._config.model, on_progress=on_progress, **settings))

    async def serve(self, engine: "AsyncEngine") -> None:
        """Opens the gate for an engine that is loaded but not started.

        Raises:
            ModelError: It cannot answer.
        """
        await engine.start()
        await _probe(engine)
        engine.watch_steps(lambda record: self.metrics.step(record.duration_s))
        self.gate.load(engine)
        self.gate.open()
        await self._health.set(is_serving=True)
        self._in_background(self._watch(engine))

    async def _watch(self, engine: "AsyncEngine") -> None:
        await self._health.follow(engine)
        _log.critical("the engine is dead: no request is taken any more")
        self.gate.die()
        self._desk.calls.wake()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def stop(self, grace_s: float, hurry: asyncio.Event | None = None) -> None:
        """Refuses what is new, lets live requests end, then closes the port.

        Args:
            grace_s: How long running requests may go on; waiting ones fail at once.
            hurry: Cuts the grace short when it is set.
        """
        self.gate.drain()
        await self._health.shut_down()
        self._desk.calls.wake()
        drain = asyncio.create_task(self._drain(grace_s))
        hurried = asyncio.create_task((hurry or asyncio.Event()).wait())
        await asyncio.wait((drain, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not drain.done():
            drain.cancel()
            await self._drain(0)
        for task in tuple(self._background):
            task.cancel()
        await self._grpc.stop(_STOP_S)

    async def _drain(self, grace_s: float) -> None:
        engine = self.gate.loaded
        if engine is not None:
            await engine.stop(grace_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WRITES_S):
                await self._desk.calls.wait_closed()


async def run_server(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    on_ready: Callable[[str], None] | None = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT; a second signal cuts the grace short.

    Args:
        engine_config: Of the engine.
        server_config: Of the server, the model's name included.
        on_ready: Told the address when requests are accepted.
        on_progress: Told, on another thread, how many bytes of the weights are read of how many.

    Returns:
        The exit code: 0, or 1 if the engine died.

    Raises:
        ConfigError: A setting or an address is wrong.
        ModelError: The model cannot be loaded.
    """
    server = Server(engine_config, server_config)
    address = await server.bind()
    stop, hurry = _signals()
    load = asyncio.create_task(server.load(on_progress))
    try:
        await _first(load, stop)
        if load.done():
            load.result()
            if on_ready is not None:
                on_ready(address)
            await _first(asyncio.create_task(server.gate.draining.wait()), stop)
    finally:
        load.cancel()
        watchdog = threading.Timer(
            server_config.drain_grace_s + _WATCHDOG_S, os._exit, (_WATCHDOG_EXIT,)
        )
        watchdog.daemon = True
        watchdog.start()
        has_died = server.gate.draining.is_set()
        await server.stop(server_config.drain_grace_s, hurry)
        watchdog.cancel()
    return 1 if has_died else 0


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Events that the first and the second SIGTERM or SIGINT set."""
    first, second = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return first, second


async def _first(task: asyncio.Task[Any], event: asyncio.Event) -> None:
    """Until the task is done or the event is set."""
    waiter = asyncio.create_task(event.wait())
    await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()


async def _on_daemon_thread(work: Callable[[], Result]) -> Result:
    """Runs work on a thread that a process which ends does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def set_result(result: Result | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, caught = None, None
        try:
            result = work()
        except BaseException as error:
            caught = error
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(set_result, result, caught)

    threading.Thread(target=run, name="chairlift-load", daemon=True).start()
    return await done


async def _probe(engine: "AsyncEngine") -> None:
    """Generates one token, so that the first client is not the first to find a fault."""
    request = Request(
        prompt=[0],
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(max_tokens=1, ignore_eos=True),
        prefix_cache=PrefixCache(read=False, write=False),
    )
    async for event in engine.generate(request):
        if isinstance(event, Accepted):
            engine.flush()
        elif isinstance(event, Failed):
            message = f"the model does not answer: {event.message}"
            raise ModelError(message)


def _metrics_address(text: str | None) -> TcpAddress | None:
    if text is None:
        return None
    address = parse_address(text, "metrics_listen")
    if isinstance(address, UnixAddress):
        message = f"metrics_listen: expected HOST:PORT, got {text!r}"
        raise ConfigError(message)
    return address


def _service_names() -> tuple[str, ...]:
    files = (generation_pb2, embedding_pb2, tokenizer_pb2, server_pb2)
    return tuple(
        service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values()
    )


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    """Channel options; where they differ from gRPC's own, the reason."""
    return [
        ("grpc.max_receive_message_length", config.max_receive_bytes),
        ("grpc.max_concurrent_streams", config.max_concurrent_streams),
        # A second server on the same port should fail, not take half of the calls.
        ("grpc.so_reuseport", 0),
        # A queued request has no bytes under way: only pings find out that its client is gone.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Well-meant pings of clients are no attack.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        # Handshakes that never end hold a file descriptor each.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.max_metadata_size", 8_192),
        ("grpc.absolute_max_metadata_size", 16_384),
    ]
