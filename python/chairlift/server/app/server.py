"""The server: binds first, loads the model behind a closed gate, serves, drains.

bind -> STARTING -> load, probe -> SERVING -> signal -> DRAINING -> stop
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chairlift import _core
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ConfigError, Reason
from chairlift.api.logs import fields
from chairlift.replay.recorder import TraceRecorder
from chairlift.server.app.loading import load_engine, probe
from chairlift.server.app.ports import Ports
from chairlift.server.app.restart import keep_serving
from chairlift.server.app.services import add_services, new_health
from chairlift.server.calls.adapter_loads import AdapterLoads
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.detached import Detached
from chairlift.server.calls.outbox import Outboxes
from chairlift.server.calls.registry import Registry
from chairlift.server.calls.resumables import Resumables
from chairlift.server.calls.telemetry import new_telemetry
from chairlift.server.config import ServerConfig, grpc_options
from chairlift.server.handoff.handoffs import Handoffs
from chairlift.server.kv_events.publishing import KvPublishing
from chairlift.server.limits.backlog import Backlog
from chairlift.server.limits.engine_state import end_batch, load_of, num_without_row, queue_capacity
from chairlift.server.limits.gate import Gate
from chairlift.server.limits.quotas import QuotaLimits, Quotas
from chairlift.server.limits.receiving import Receiving
from chairlift.server.ops.memory import watch_memory
from chairlift.server.ops.metrics_endpoint import new_metrics
from chairlift.server.ops.recording import record
from chairlift.server.ops.watchdog import INTERPRETER_TIMEOUT_S, Watchdog
from chairlift.server.rpc.listen import TcpAddress, UnixAddress
from chairlift.server.rpc.listener import grpc_server, until_lost
from chairlift.server.rpc.status_interceptor import StatusInterceptor
from chairlift.server.security.auth import AuthInterceptor, new_authenticator
from chairlift.server.services.overview import Overview
from chairlift.server.transfer.attached import Transfers
from chairlift.server.transfer.metrics import TransferCollector

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine
    from chairlift.server.http.listener import HttpListener

__all__ = ["Server", "ServerConfig"]

_log = logging.getLogger(__name__)


_LAST_WRITES_S: Final = 5.0
"""Time after all requests have ended, for the events that slow clients have not read."""


class Server:
    """One engine behind one gRPC port."""

    def __init__(
        self,
        engine_config: EngineConfig,
        config: ServerConfig,
        guard: _core.ProcessGuard | None = None,
    ) -> None:
        """Build everything that needs no model.

        Args:
            engine_config: Settings of the engine.
            config: Settings of the server.
            guard: Ends the process when the interpreter does not run.

        Raises:
            ConfigError: An address, a certificate or a token file is malformed, the server would
                be open to other machines without protection, or the trace cannot be written.
        """
        config.check_with(engine_config)
        self._engine_config = engine_config
        self._config = config
        self._ports = Ports(config)
        authenticator = new_authenticator(config)
        self._kv_publishing = KvPublishing(config, engine_config)
        self._handoffs = Handoffs(config, engine_config.block_size)
        self._transfers = Transfers(config, engine_config, self._handoffs)
        self._guard = guard
        self._recorder = None if config.record is None else TraceRecorder(Path(config.record))
        self._engine: AsyncEngine | None = None
        self._background: set[asyncio.Task[None]] = set()
        self.has_lost_port = False
        self.gate = Gate()
        self._receiving = Receiving(config.max_receive_bytes, config.receive_memory_bytes)
        outboxes = Outboxes()
        load = functools.partial(load_of, self.gate)
        live = Registry(functools.partial(end_batch, self.gate))
        self.metrics = new_metrics(engine_config, config, load, outboxes, live.adapters)
        self._context = ServerContext(
            gate=self.gate,
            model_names=config.model_names,
            authenticator=authenticator,
            adapter_loads=AdapterLoads(self.gate, is_on=config.adapters_on_demand),
            quotas=Quotas(
                QuotaLimits.of(config), capacity=functools.partial(queue_capacity, self.gate)
            ),
            outboxes=outboxes,
            backlog=Backlog(functools.partial(num_without_row, self.gate)),
            live=live,
            resumables=Resumables(outboxes.core, config),
            metrics=self.metrics,
            telemetry=new_telemetry(config.otlp_endpoint, config.model_names[0]),
            kv_events=self._kv_publishing.events,
            handoffs=self._handoffs,
            write_timeout_s=config.write_timeout_s,
        )
        self._overview = Overview(self._context, engine_config, config)
        self._context.resumables.detach = functools.partial(Detached, self._context)
        self._health = new_health(
            self._context, config.protocol or (), is_prefill=self._transfers.exporting is not None
        )

    def _on_failed_call(self, method: str, reason: Reason) -> None:
        self.metrics.call_failed(reason)
        level = logging.WARNING if reason is Reason.SLOW_READER else logging.DEBUG
        _log.log(level, "call failed", extra=fields(method=method, reason=reason.value))

    async def bind(self) -> str:
        """Listen; every call is answered from now on, if only with STARTING.

        Returns:
            The address, with the port that the system chose.

        Raises:
            ConfigError: An address cannot be used.
        """
        # In this order: the status interceptor also makes statuses of the refusals of the other.
        authenticator = self._context.authenticator
        interceptors = (
            StatusInterceptor(self._on_failed_call, self._receiving, authenticator.tenant),
            AuthInterceptor(authenticator),
        )
        server = grpc_server(interceptors, grpc_options(self._config), self._on_lost_port)
        await add_services(
            server,
            self._context,
            self._engine_config,
            self._config,
            self._overview,
            self._health,
            self._transfers,
        )
        await self._ports.open(server, self._new_http, self.metrics.registry)
        self._handoffs.listens_on(str(self._ports.address))
        await self._publish_kv_events()
        self._watchdog = Watchdog(self._config.step_timeout_s, self._guard)
        self._watchdog.limit_silence(self._config.load_timeout_s)
        await server.start()
        self._in_background(self._watch_port(self._ports.address))
        return str(self._ports.address)

    async def _publish_kv_events(self) -> None:
        try:
            self._kv_publishing.open()
        except ConfigError:
            await self._ports.close()
            raise
        for address in self._kv_publishing.addresses:
            _log.info("KV events", extra=fields(address=address))

    def _new_http(self, address: TcpAddress) -> "HttpListener":
        from chairlift.server.app.http_serving import http_listener

        return http_listener(
            address,
            self._config,
            self._context,
            self._receiving,
            self._overview,
            is_serving=lambda: self._health.is_serving,
            on_failure=self._on_failed_call,
        )

    @property
    def http_url(self) -> str | None:
        """Return, after `bind`, the URL of the HTTP port; None without one."""
        return self._ports.http_url

    @property
    def page_url(self) -> str | None:
        """Return, after `bind`, the URL of the live page; None without it."""
        return self._ports.page_url

    async def _watch_port(self, address: TcpAddress | UnixAddress) -> None:
        await until_lost(address)
        self._on_lost_port(ConnectionError("it does not answer"))

    def _on_lost_port(self, error: BaseException) -> None:
        """End the server: no call is accepted any more, and a supervisor may start another."""
        if not self.gate.draining.is_set():
            _log.critical("the port is lost, the process ends", exc_info=error)
            self.has_lost_port = True
            self._context.die()

    async def load(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Load the model, generate a token to see that it works, and open the gate.

        Args:
            on_progress: Called on another thread with the bytes of the weights read and in total.

        Raises:
            ConfigError: A setting does not fit the model.
            ModelError: The model cannot be loaded, or the first request fails.
        """
        config = self._config
        engine = await load_engine(
            config.model,
            self._engine_config,
            on_progress,
            watchdog=self._watchdog,
            timeout_s=config.load_timeout_s,
        )
        await self.serve(engine)

    async def serve(self, engine: "AsyncEngine") -> None:
        """Open the gate for an engine that is loaded but not started.

        Raises:
            ModelError: The first request fails.
        """
        await engine.start()
        # From here on there are steps, and the first of them may hang.
        self._engine = engine
        self._watchdog.watch(
            "a step has taken",
            lambda: engine.heartbeat_age_s,
            self._config.step_timeout_s,
            functools.partial(self._on_hang, engine),
        )
        await probe(engine)
        await self._transfers.begin(engine)
        self.metrics.registry.register(TransferCollector(self._transfers))
        await self._kv_publishing.begin(engine)
        engine.deliveries.route_to(self._context.outboxes)
        if self._recorder is not None:
            record(engine.engine, self._recorder)
        engine.deliveries.watch_steps(
            lambda record: self.metrics.step(record.duration_s, record.times)
        )
        engine.deliveries.watch(self.metrics.delivery)
        if engine.engine.prefix_store_stats() is not None:
            self.metrics.watch_prefix_store(engine.engine.prefix_store_stats)
        self._watchdog.limit_silence(INTERPRETER_TIMEOUT_S)
        self.gate.load(engine)
        self.gate.open()
        await self._health.model_is_loaded()
        await self._health.set(is_serving=True)
        self._in_background(keep_serving(engine, self._context, self._health))
        self._in_background(watch_memory(self._receiving))

    def _on_hang(self, engine: "AsyncEngine") -> None:
        """Fail all requests, because a step does not return; the process ends afterwards."""
        self._in_background(self._health.set(is_serving=False))
        self._context.die()
        engine.fail_all()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def stop(self, grace_s: float, second_signal: asyncio.Event | None = None) -> None:
        """Refuse new requests, let live ones end, then close the port.

        Args:
            grace_s: How long running requests may continue; waiting ones fail at once.
            second_signal: Cuts the grace short when it is set.
        """
        if self.gate.loaded is not None:
            _log.info("draining", extra=fields(grace_s=grace_s, live=len(self._context.live)))
        self.gate.drain()
        self._context.resumables.close()
        await self._health.shut_down()
        self._context.outboxes.wake()
        drain = asyncio.create_task(self._drain(grace_s))
        hurried = asyncio.create_task((second_signal or asyncio.Event()).wait())
        await asyncio.wait((drain, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not drain.done():
            drain.cancel()
            await self._drain(0)
        for task in tuple(self._background):
            task.cancel()
        await self._ports.close()
        await asyncio.to_thread(self._kv_publishing.close)
        self._watchdog.close()
        await asyncio.to_thread(self._context.telemetry.close)
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)

    @property
    def has_leaked(self) -> bool:
        """Return, after `stop`, whether KV blocks were in use though all requests had ended."""
        return self._engine is not None and self._engine.has_leaked

    async def _drain(self, grace_s: float) -> None:
        if self._engine is not None:
            await self._engine.stop(grace_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WRITES_S):
                await self._context.outboxes.wait_closed()
