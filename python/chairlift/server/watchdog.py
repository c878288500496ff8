"""Ends a process that hangs: a step, or a read, that never returns cannot be taken back.

step takes too long ─▶ open streams fail, health NOT_SERVING ─▶ 2 s to write it ─▶ exit 70
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

FAULT_EXIT: Final = 70
"""Exit code of a server that cannot go on; its supervisor should start another."""

_PERIOD_S: Final = 0.25
_FLUSH_S: Final = 2.0
"""From the hang to the exit: for the last events of open streams."""

_log = logging.getLogger(__name__)


class Watchdog:
    """A thread of its own, so that an event loop that is stuck too does not keep the process."""

    def __init__(
        self,
        what: str,
        silence_s: Callable[[], float],
        timeout_s: float,
        on_hang: Callable[[], None] | None = None,
    ) -> None:
        """Starts to watch; call it on the event loop.

        Args:
            what: What has gone on for too long, as the log begins to say it.
            silence_s: For how long nothing has moved; called on the thread.
            timeout_s: What that may come to.
            on_hang: Called on the event loop; then the process has two seconds left.
        """
        self._what = what
        self._silence_s = silence_s
        self._timeout_s = timeout_s
        self._on_hang = on_hang
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        threading.Thread(target=self._main, name="chairlift-watchdog", daemon=True).start()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()

    def _main(self) -> None:
        while not self._closed.wait(_PERIOD_S):
            silence_s = self._silence_s()
            if silence_s > self._timeout_s:
                _log.critical("%s %.1f s: the process ends", self._what, silence_s)
                if self._on_hang is not None:
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
