"""Ends a process whose engine hangs: a step that never returns cannot be taken back.

step takes too long ─▶ open streams fail, health NOT_SERVING ─▶ 2 s to write it ─▶ exit 70
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from chairlift.engine.async_engine import AsyncEngine

FAULT_EXIT: Final = 70
"""Exit code of a server that cannot go on; its supervisor should start another."""

_PERIOD_S: Final = 0.25
_FLUSH_S: Final = 2.0
"""From the hang to the exit: for the last events of open streams."""

_log = logging.getLogger(__name__)


class StepWatchdog:
    """A thread of its own, so that an event loop that is stuck too does not keep the process."""

    def __init__(
        self, engine: "AsyncEngine", step_timeout_s: float, on_hang: Callable[[], None]
    ) -> None:
        """Starts to watch; call it on the event loop.

        Args:
            engine: Started.
            step_timeout_s: What a forward pass may take.
            on_hang: Called on the event loop; then the process has two seconds left.
        """
        self._engine = engine
        self._step_timeout_s = step_timeout_s
        self._on_hang = on_hang
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        threading.Thread(target=self._main, name="chairlift-watchdog", daemon=True).start()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()

    def _main(self) -> None:
        while not self._closed.wait(_PERIOD_S):
            silence_s = self._engine.silence_s
            if silence_s > self._step_timeout_s:
                _log.critical("a step has taken %.1f s: the process ends", silence_s)
                with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                    self._loop.call_soon_threadsafe(self._on_hang)
                self._closed.wait(_FLUSH_S)
                os._exit(FAULT_EXIT)


class ExitTimer:
    """Ends the process if what follows takes longer: gRPC waits for handlers without a bound."""

    def __init__(self, seconds: float) -> None:
        """Starts to count."""
        self._timer = self._start(seconds)

    def within(self, seconds: float) -> None:
        """Counts anew, because somebody is in a hurry."""
        self._timer.cancel()
        self._timer = self._start(seconds)

    def cancel(self) -> None:
        """All is done."""
        self._timer.cancel()

    def _start(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, os._exit, (FAULT_EXIT,))
        timer.daemon = True
        timer.start()
        return timer
