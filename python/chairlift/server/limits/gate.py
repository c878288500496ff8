"""Whether requests are admitted: the phases of a server, from start to shutdown."""

import asyncio
from typing import TYPE_CHECKING

from chairlift.api.errors import EngineState, Reason, RequestError, refusal

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine


class Gate:
    """Holds the engine once it is loaded, and admits requests while it serves.

    The port is bound before the model is loaded, so that a client gets UNAVAILABLE with a reason
    instead of a refused connection. Phases only move forward, except for a restart of the engine.
    """

    def __init__(self) -> None:
        self._engine: AsyncEngine | None = None
        self._phase = EngineState.STARTING
        self.draining = asyncio.Event()
        """Set when the server no longer serves: after a signal, or when the engine is dead."""

    @property
    def phase(self) -> EngineState:
        """The phase of the server."""
        return self._phase

    @property
    def loaded(self) -> "AsyncEngine | None":
        """Return the engine in any phase; None while the model is loading."""
        return self._engine

    def engine(self) -> "AsyncEngine":
        """Return the engine in any phase.

        Raises:
            RequestError: The model is still loading.
        """
        if self._engine is None:
            raise self.refusal()
        return self._engine

    def admit(self) -> "AsyncEngine":
        """Return the engine for a new request.

        Raises:
            RequestError: STARTING, DRAINING or ENGINE_DOWN.
        """
        if self._phase is not EngineState.SERVING:
            raise self.refusal()
        return self.engine()

    def refusal(self) -> RequestError:
        """Return the error for a request that is not admitted now."""
        return refusal(self._phase.refusal or Reason.STARTING)

    def load(self, engine: "AsyncEngine") -> None:
        """Set the engine; requests are not admitted yet."""
        self._engine = engine

    def open(self) -> None:
        """Start to serve, unless a signal came first."""
        if self._phase is EngineState.STARTING:
            self._phase = EngineState.SERVING

    def close(self) -> None:
        """Refuse requests until `reopen`: the engine was lost and restarts."""
        if self._phase is EngineState.SERVING:
            self._phase = EngineState.RESTARTING

    def reopen(self) -> None:
        """Serve again, unless a signal came first."""
        if self._phase is EngineState.RESTARTING:
            self._phase = EngineState.SERVING

    def drain(self) -> None:
        """Refuse new requests from now on."""
        if self._phase is not EngineState.DEAD:
            self._phase = EngineState.DRAINING
        self.draining.set()

    def die(self) -> None:
        """Refuse requests for good: the engine is dead."""
        self._phase = EngineState.DEAD
        self.draining.set()
