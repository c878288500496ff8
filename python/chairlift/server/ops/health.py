"""`grpc.health.v1`: serving means that a request sent now would be answered."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chairlift.api.errors import EngineState
from chairlift.server.limits.shares import Shares, holders_of
from chairlift.server.rpc.status_interceptor import ServicerContext
from chairlift.server.rpc.writer import Writer

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

_PERIOD_S: Final = 0.25
_STALL_S: Final = 10.0
_LONG_STEPS: Final = 20.0
"""An engine stalls when it makes no progress for 10 s, or for 20 times its longest step if that is
longer; a full queue is no stall."""

_NS: Final = 1e-9

MAX_WATCHES: Final = 256
"""Watches of all clients; each may name another service, known or not."""

_Status = int
"""A `HealthCheckResponse.ServingStatus`."""


class _Servicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc has no types
    """The methods of the protocol.

    grpcio's own servicer has no `List`, and holds a lock while it writes to a watcher: one that
    reads nothing would keep the status of the server, and its shutdown, waiting.
    """

    def __init__(self, tenant_of: Callable[[ServicerContext], str], write_timeout_s: float) -> None:
        self.statuses: dict[str, _Status] = {}
        self._tenant_of = tenant_of
        self._write_timeout_s = write_timeout_s
        self._watches = Shares("health watches", MAX_WATCHES)
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake the watchers: a status has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Return the status of a service."""
        status = self.statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "service: this server has none of it")
        return health_pb2.HealthCheckResponse(status=status)

    async def List(
        self, request: "health_pb2.HealthListRequest", context: ServicerContext
    ) -> "health_pb2.HealthListResponse":
        """Return the status of each service; before 1.85 the health package does not know it."""
        responses = {
            name: health_pb2.HealthCheckResponse(status=status)
            for name, status in self.statuses.items()
        }
        return health_pb2.HealthListResponse(statuses=responses)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: ServicerContext) -> None:
        """Write the status of a service, known or not, now and whenever it changes."""
        unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        writer = Writer(context, self._write_timeout_s)
        watch = self._watches.take(holders_of(context.peer(), self._tenant_of(context)))
        try:
            last: _Status | None = None
            while True:
                changed = self._changed
                status = self.statuses.get(request.service, unknown)
                if status != last:
                    await writer.write(health_pb2.HealthCheckResponse(status=status))
                    last = status
                await changed.wait()
        finally:
            watch.release()


class Health:
    """A status for the server and one for each of its services."""

    def __init__(
        self,
        *,
        engine: tuple[str, ...],
        model: tuple[str, ...],
        tenant_of: Callable[[ServicerContext], str] = lambda _context: "",
        write_timeout_s: float = 30.0,
    ) -> None:
        """Start as NOT_SERVING.

        Args:
            engine: Full names of the services that need a running engine, as the server as a whole.
            model: Full names of those that need a loaded model only.
            tenant_of: Returns the tenant of a call.
            write_timeout_s: A watcher that takes nothing for this long ends.
        """
        self._engine_names = ("", *engine)
        self._model_names = model
        self._servicer = _Servicer(tenant_of, write_timeout_s)
        self._is_closed = False
        self._is_serving: bool | None = None

    async def add_to(self, server: Any) -> None:
        """Register the service."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self._set(self._model_names, is_serving=False)
        await self.set(is_serving=False)

    async def model_is_loaded(self) -> None:
        """Set the services that need no running engine to SERVING."""
        self._set(self._model_names, is_serving=True)

    async def set(self, *, is_serving: bool) -> None:
        """Set whether the engine answers requests; watchers are notified of changes only."""
        if is_serving is self._is_serving:
            return
        self._is_serving = is_serving
        self._set(self._engine_names, is_serving=is_serving)

    def _set(self, names: tuple[str, ...], *, is_serving: bool) -> None:
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if is_serving else kinds.NOT_SERVING
        if not self._is_closed:
            self._servicer.statuses |= dict.fromkeys(names, status)
            self._servicer.notify()

    @property
    def is_serving(self) -> bool:
        """Whether the engine answers requests."""
        return bool(self._is_serving)

    async def shut_down(self) -> None:
        """Set everything to NOT_SERVING for good."""
        self._set(tuple(self._servicer.statuses), is_serving=False)
        self._is_closed = True

    async def follow(self, engine: "AsyncEngine", draining: asyncio.Event) -> None:
        """Update the status from the engine's progress until it is dead or the server drains."""
        longest_s = 0.0
        while engine.state is not EngineState.DEAD and not draining.is_set():
            age_s = _heartbeat_age_s(engine)
            if age_s <= max(_STALL_S, _LONG_STEPS * longest_s):
                longest_s = max(longest_s, age_s)
                await self.set(is_serving=True)
            else:
                await self.set(is_serving=False)
            with suppress(TimeoutError):
                await asyncio.wait_for(draining.wait(), _PERIOD_S)
        await self.set(is_serving=False)


def _heartbeat_age_s(engine: "AsyncEngine") -> float:
    """Return the seconds since the last step if a request could run, else since any heartbeat."""
    progress = engine.progress
    load = engine.load()
    runs = load.num_running > load.num_running_suspended
    sign_ns = progress.last_step_ns if runs else progress.alive_ns
    return (time.monotonic_ns() - sign_ns) * _NS
