"""`grpc.health.v1`: serving means that a request sent now would be answered."""

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

_PERIOD_S: Final = 0.25
_STALL_S: Final = 10.0
_LONG_STEPS: Final = 20.0
"""An engine stalls when it makes no progress for 10 s, or for 20 times its longest step if that is
longer; a full queue is no stall."""

_NS: Final = 1e-9


class Health:
    """A status for the server and one for each of its services."""

    def __init__(self, *, engine: tuple[str, ...], model: tuple[str, ...]) -> None:
        """Start as NOT_SERVING.

        Args:
            engine: Full names of the services that need a running engine, as the server as a whole.
            model: Full names of those that need a loaded model only.
        """
        self._engine_names = ("", *engine)
        self._model_names = model
        self._servicer = health.aio.HealthServicer()
        self._is_serving: bool | None = None

    async def add_to(self, server: Any) -> None:
        """Register the service."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        await self._set(self._model_names, is_serving=False)
        await self.set(is_serving=False)

    async def model_is_loaded(self) -> None:
        """Set the services that need no running engine to SERVING."""
        await self._set(self._model_names, is_serving=True)

    async def set(self, *, is_serving: bool) -> None:
        """Set whether the engine answers requests; watchers are notified of changes only."""
        if is_serving is self._is_serving:
            return
        self._is_serving = is_serving
        await self._set(self._engine_names, is_serving=is_serving)

    async def _set(self, names: tuple[str, ...], *, is_serving: bool) -> None:
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if is_serving else kinds.NOT_SERVING
        for name in names:
            await self._servicer.set(name, status)

    @property
    def is_serving(self) -> bool:
        """Whether the engine answers requests."""
        return bool(self._is_serving)

    async def shut_down(self) -> None:
        """Set everything to NOT_SERVING for good."""
        await self._servicer.enter_graceful_shutdown()

    async def follow(self, engine: "AsyncEngine", draining: asyncio.Event) -> None:
        """Update the status from the engine's progress until it is dead or the server drains."""
        longest_s = 0.0
        while engine.state.value != "dead" and not draining.is_set():
            silent_s = _silence(engine)
            if silent_s <= max(_STALL_S, _LONG_STEPS * longest_s):
                longest_s = max(longest_s, silent_s)
                await self.set(is_serving=True)
            else:
                await self.set(is_serving=False)
            with suppress(TimeoutError):
                await asyncio.wait_for(draining.wait(), _PERIOD_S)
        await self.set(is_serving=False)


def _silence(engine: "AsyncEngine") -> float:
    """Return the seconds since the thread was alive, or since a step if a request could run."""
    progress = engine.progress
    load = engine.load()
    runs = load.num_running > load.num_running_suspended
    sign_ns = progress.last_step_ns if runs else progress.alive_ns
    return (time.monotonic_ns() - sign_ns) * _NS
