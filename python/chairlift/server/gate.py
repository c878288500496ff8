"""Whether requests may enter: the phases of a server, from start to last answer."""

import asyncio
from typing import TYPE_CHECKING

from chairlift.errors import EngineState, Reason, RequestError, refusal

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine


class Gate:
    """Holds the engine once it is loaded, and lets requests through while it serves.

    The port is bound before the model is loaded, so that a client learns UNAVAILABLE with a reason
    instead of a refused connection. Phases only move forward, but for a restart of the engine.
    """

    def __init__(self) -> None:
        self._engine: AsyncEngine | None = None
        self._phase = EngineState.STARTING
        self.draining = asyncio.Event()
        """Set when the server no longer serves: by a signal or by the engine's death."""

    @property
    def phase(self) -> EngineState:
        """What the server is doing."""
        return self._phase

    @property
    def loaded(self) -> "AsyncEngine | None":
        """The engine in any phase, for those that only look."""
        return self._engine

    def engine(self) -> "AsyncEngine":
        """The engine in any phase.

        Raises:
            RequestError: The model is still loading.
        """
        if self._engine is None:
            raise self.refusal()
        return self._engine

    def admit(self) -> "AsyncEngine":
        """The engine, for a new request.

        Raises:
            RequestError: STARTING, DRAINING or ENGINE_DOWN.
        """
        if self._phase is not EngineState.SERVING:
            raise self.refusal()
        return self.engine()

    def refusal(self) -> RequestError:
        """Why nothing enters now."""
        return refusal(self._phase.refusal or Reason.STARTING)

    def load(self, engine: "AsyncEngine") -> None:
        """Takes the engine; requests still wait outside."""
        self._engine = engine

    def open(self) -> None:
        """Starts to serve, unless a signal came first."""
        if self._phase is EngineState.STARTING:
            self._phase = EngineState.SERVING

    def close(self) -> None:
        """Refuses requests until `reopen`: the engine was lost and is to come back."""
        if self._phase is EngineState.SERVING:
            self._phase = EngineState.RESTARTING

    def reopen(self) -> None:
        """Serves again, unless a signal came first."""
        if self._phase is EngineState.RESTARTING:
            self._phase = EngineState.SERVING

    def drain(self) -> None:
        """Refuses new requests from now on."""
        if self._phase is not EngineState.DEAD:
            self._phase = EngineState.DRAINING
        self.draining.set()

    def die(self) -> None:
        """The engine has died: nothing enters any more."""
        self._phase = EngineState.DEAD
        self.draining.set()
