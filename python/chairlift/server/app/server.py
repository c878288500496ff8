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
from chairlift.api.config import Batching, EngineConfig
from chairlift.api.errors import ConfigError, Reason
from chairlift.api.logs import fields
from chairlift.replay.recorder import TraceRecorder
from chairlift.server.app.loading import load_engine, probe
from chairlift.server.app.protocols import servicers_of, services_of
from chairlift.server.app.restart import RestartBudget, restart
from chairlift.server.calls.context import ServerContext
from chairlift.server.calls.detached import Detached
from chairlift.server.calls.outbox import Outboxes
from chairlift.server.calls.registry import Registry
from chairlift.server.calls.resumables import Resumables
from chairlift.server.calls.telemetry import new_telemetry
from chairlift.server.config import ServerConfig, grpc_options
from chairlift.server.http.address import http_address, page_is_on
from chairlift.server.limits.backlog import Backlog
from chairlift.server.limits.gate import Gate
from chairlift.server.limits.quotas import QuotaLimits, Quotas
from chairlift.server.limits.receiving import Receiving
from chairlift.server.limits.shares import Room
from chairlift.server.ops.health import Health
from chairlift.server.ops.memory import watch_memory
from chairlift.server.ops.metrics_endpoint import metrics_address, new_metrics, serve_metrics
from chairlift.server.ops.recording import record
from chairlift.server.ops.watchdog import INTERPRETER_SILENCE_S, Watchdog
from chairlift.server.rpc import reflection
from chairlift.server.rpc.listen import (
    TcpAddress,
    UnixAddress,
    bind,
    check_private,
    parse_address,
    unbind,
)
from chairlift.server.rpc.listener import grpc_server, until_lost
from chairlift.server.rpc.status_interceptor import StatusInterceptor
from chairlift.server.security.auth import Authenticator, AuthInterceptor
from chairlift.server.security.bearer_tokens import BearerTokens
from chairlift.server.security.tls import server_credentials
from chairlift.server.services.adapter_calls import AdminServicer
from chairlift.server.services.embedding_service import EmbeddingServicer
from chairlift.server.services.generation_service import GenerationServicer
from chairlift.server.services.server_service import ServerServicer
from chairlift.server.services.tokenizer_service import TokenizerServicer
from chairlift.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    embedding_pb2,
    generation_pb2,
    server_pb2,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine
    from chairlift.server.http.listener import HttpListener

__all__ = ["Server", "ServerConfig"]

_log = logging.getLogger(__name__)


_LAST_WRITES_S: Final = 5.0
"""Time after all requests have ended, for the events that slow clients have not read."""
_STOP_S: Final = 0.5
"""Time for calls that never end by themselves, such as a health watch."""
_REMEDY: Final = (
    "that needs --tls-cert and --tls-key, and --auth-tokens or --tls-client-ca; "
    "or use 127.0.0.1, ::1 or unix:PATH"
)


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
        self._engine_config = engine_config
        self._config = config
        self._address = parse_address(config.listen, "listen")
        self._credentials = server_credentials(config)
        tokens = None if config.auth_tokens is None else BearerTokens(Path(config.auth_tokens))
        admins = None if config.admin_tokens is None else BearerTokens(Path(config.admin_tokens))
        self._authenticator = Authenticator(
            tokens, trust_metadata=config.trust_tenant_metadata, administrators=admins
        )
        if self._credentials is None or (tokens is None and config.tls_client_ca is None):
            check_private(self._address, "listen", _REMEDY)
        self._http_address = http_address(config, remedy=_REMEDY)
        self._metrics_address = metrics_address(config.metrics_listen)
        self._recorder = None if config.record is None else TraceRecorder(Path(config.record))
        self._health = Health(
            engine=(
                *_names(generation_pb2, embedding_pb2, admin_pb2),
                *services_of(config.protocol or ()),
            ),
            model=_names(tokenizer_pb2, server_pb2),
            tenant_of=self._authenticator.tenant,
            write_timeout_s=config.write_timeout_s,
        )
        self._background: set[asyncio.Task[None]] = set()
        self._guard = guard
        self._engine: AsyncEngine | None = None
        self._http: HttpListener | None = None
        self.has_lost_port = False
        self.gate = Gate()
        self._outboxes = Outboxes()
        self._receiving = Receiving(config.max_receive_bytes, config.receive_memory_bytes)
        self.metrics = new_metrics(engine_config, config, self._load_snapshot, self._outboxes)
        self._context = ServerContext(
            gate=self.gate,
            model_names=config.model_names,
            authenticator=self._authenticator,
            quotas=Quotas(QuotaLimits.of(config), room=self._queue_room),
            outboxes=self._outboxes,
            backlog=Backlog(self._num_without_row),
            live=Registry(self._end_batch),
            resumables=Resumables(self._outboxes.core, config),
            metrics=self.metrics,
            telemetry=new_telemetry(config.otlp_endpoint, config.model_names[0]),
            write_timeout_s=config.write_timeout_s,
        )
        self._context.resumables.detach = functools.partial(Detached, self._context)

    def _on_failed_call(self, method: str, reason: Reason) -> None:
        self.metrics.call_failed(reason)
        level = logging.WARNING if reason is Reason.SLOW_READER else logging.DEBUG
        _log.log(level, "call failed", extra=fields(method=method, reason=reason.value))

    def _load_snapshot(self) -> Any:
        engine = self.gate.loaded
        return None if engine is None else engine.load()

    def _queue_room(self, num_live: int) -> Room:
        engine = self.gate.engine()
        total = engine.config.max_queued_requests
        # The engine's own number is too small for a moment while a step is planned.
        num_waiting = max(engine.num_waiting, num_live - engine.load().num_running)
        return Room(total, total - num_waiting, elsewhere=engine.config.max_num_seqs)

    def _num_without_row(self) -> int:
        engine = self.gate.engine()
        load = engine.load()
        # Suspended requests do not wait for a row, and give theirs away.
        num_free_rows = engine.config.max_num_seqs - load.num_running + load.num_running_suspended
        return max(0, engine.num_waiting - load.num_waiting_suspended - num_free_rows)

    def _end_batch(self) -> None:
        # Continuous batching waits for no request, and a trace of it can be replayed as static.
        engine = self.gate.engine()
        if engine.config.batching is not Batching.DYNAMIC:
            engine.flush()

    async def bind(self) -> str:
        """Listen; every call is answered from now on, if only with STARTING.

        Returns:
            The address, with the port that the system chose.

        Raises:
            ConfigError: An address cannot be used.
        """
        # In this order: the status interceptor also makes statuses of the refusals of the other.
        interceptors = (
            StatusInterceptor(self._on_failed_call, self._receiving, self._authenticator.tenant),
            AuthInterceptor(self._authenticator),
        )
        self._grpc = grpc_server(interceptors, grpc_options(self._config), self._on_lost_port)
        await self._add_services()
        try:
            self._address = bind(self._grpc, self._address, "listen", self._credentials)
            self._http = await self._listen_for_http()
            self._end_metrics = serve_metrics(self._metrics_address, self.metrics.registry)
        except ConfigError:
            if self._http is not None:
                await self._http.stop()
            unbind(self._address)
            await self._grpc.stop(None)
            raise
        self._watchdog = Watchdog(self._config.step_timeout_s, self._guard)
        self._watchdog.limit_silence(self._config.load_timeout_s)
        await self._grpc.start()
        self._in_background(self._watch_port(self._address))
        return str(self._address)

    async def _listen_for_http(self) -> "HttpListener | None":
        if self._http_address is None:
            return None
        from chairlift.server.app.http_serving import http_listener

        listener = http_listener(
            self._http_address,
            self._config,
            self._context,
            self._receiving,
            is_serving=lambda: self._health.is_serving,
            on_failure=self._on_failed_call,
        )
        await listener.start()
        return listener

    @property
    def http_url(self) -> str | None:
        """Return, after `bind`, the URL of the HTTP port; None without one."""
        return None if self._http is None else self._http.url

    @property
    def page_url(self) -> str | None:
        """Return, after `bind`, the URL of the live page; None without it."""
        address, url = self._http_address, self.http_url
        has_page = address is not None and page_is_on(self._config, address)
        return f"{url}/" if has_page else None

    async def _watch_port(self, address: TcpAddress | UnixAddress) -> None:
        await until_lost(address)
        self._on_lost_port(ConnectionError("it does not answer"))

    def _on_lost_port(self, error: BaseException) -> None:
        """End the server: no call is accepted any more, and a supervisor may start another."""
        if not self.gate.draining.is_set():
            _log.critical("the port is lost, the process ends", exc_info=error)
            self.has_lost_port = True
            self.gate.die()
            self._outboxes.wake()

    async def _add_services(self) -> None:
        server, context = self._grpc, self._context
        info = ServerServicer(context, self._engine_config, self._config)
        GenerationServicer(context).add_to(server)
        EmbeddingServicer(context).add_to(server)
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(
            TokenizerServicer(context), server
        )
        info.add_to(server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(context), server)
        protocols = self._config.protocol or ()
        for servicer in servicers_of(protocols, context, self._engine_config, self._health):
            servicer.add_to(server)
        await self._health.add_to(server)
        files = (generation_pb2, embedding_pb2, tokenizer_pb2, server_pb2, admin_pb2)
        names = (*_names(*files), *services_of(protocols), "grpc.health.v1.Health")
        reflection.enable(server, names)

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
            lambda: engine.silence_s,
            self._config.step_timeout_s,
            functools.partial(self._on_hang, engine),
        )
        await probe(engine)
        engine.route_to(self._outboxes)
        if self._recorder is not None:
            record(engine.engine, self._recorder)
        engine.watch_steps(lambda record: self.metrics.step(record.duration_s, record.times))
        engine.watch_deliveries(self.metrics.delivery)
        self._watchdog.limit_silence(INTERPRETER_SILENCE_S)
        self.gate.load(engine)
        self.gate.open()
        await self._health.model_is_loaded()
        await self._health.set(is_serving=True)
        self._in_background(self._watch(engine))
        self._in_background(watch_memory(self._receiving))

    def _on_hang(self, engine: "AsyncEngine") -> None:
        """Fail all requests, because a step does not return; the process ends afterwards."""
        self._in_background(self._health.set(is_serving=False))
        self.gate.die()
        engine.fail_all()
        self._outboxes.wake()

    async def _watch(self, engine: "AsyncEngine") -> None:
        """Update the health status, and restart a lost engine while its budget lasts."""
        restarts = RestartBudget()
        while not self.gate.draining.is_set():
            await self._health.follow(engine, self.gate.draining)
            if engine.state.value != "dead" or self.gate.draining.is_set():
                return
            self.gate.close()
            if not restarts.take():
                _log.critical("the engine is dead: no request is accepted any more")
                self.gate.die()
                self._outboxes.wake()
            elif await restart(engine):
                self.metrics.restarted()
                self.gate.reopen()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def stop(self, grace_s: float, hurry: asyncio.Event | None = None) -> None:
        """Refuse new requests, let live ones end, then close the port.

        Args:
            grace_s: How long running requests may continue; waiting ones fail at once.
            hurry: Cuts the grace short when it is set.
        """
        if self.gate.loaded is not None:
            _log.info("draining", extra=fields(grace_s=grace_s, live=len(self._context.live)))
        self.gate.drain()
        self._context.resumables.close()
        await self._health.shut_down()
        self._outboxes.wake()
        drain = asyncio.create_task(self._drain(grace_s))
        hurried = asyncio.create_task((hurry or asyncio.Event()).wait())
        await asyncio.wait((drain, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not drain.done():
            drain.cancel()
            await self._drain(0)
        for task in tuple(self._background):
            task.cancel()
        unbind(self._address)
        if self._http is not None:
            await self._http.stop()
        await self._grpc.stop(_STOP_S)
        self._watchdog.close()
        await asyncio.to_thread(self._end_metrics)
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
                await self._outboxes.wait_closed()


def _names(*files: Any) -> tuple[str, ...]:
    """Return the full names of the services of generated modules."""
    return tuple(
        service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values()
    )
