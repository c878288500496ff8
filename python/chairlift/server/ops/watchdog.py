"""End a process that hangs: a step, a read or a handler that never returns cannot be interrupted.

Python runs, a step does not end   -> Watchdog: open streams fail, 2 s to write it, exit 70
Python runs, the event loop hangs  -> Watchdog: exit 70
Python does not run                -> ProcessGuard (Rust, needs no lock): exit 70
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from chairlift import _core

FAULT_EXIT: Final = 70
"""Exit code of a server that cannot go on; its supervisor should start another."""

INTERPRETER_TIMEOUT_S: Final = 5.0
"""Native code may hold the interpreter's lock for so long while the server serves."""

_PERIOD_S: Final = 0.25
_GAP_S: Final = 1.0
"""A longer time between two looks was not the watchdog's own: the process was stopped (SIGSTOP),
or the interpreter's lock was held. It says nothing about what is watched."""
_FLUSH_S: Final = 2.0
"""From the hang to the exit: for the last events of open streams."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Watch:
    """Something whose heartbeat must not stop for long."""

    watchdog: "Watchdog"
    description: str
    heartbeat_age_s: Callable[[], float]
    timeout_s: float
    on_hang: Callable[[], None] | None
    has_failed: bool = False
    """Whether the last call of `heartbeat_age_s` raised."""

    def close(self) -> None:
        """End the watch."""
        self.watchdog.watches.discard(self)


class Watchdog:
    """A thread that looks at every watch, at the event loop, and beats for the process guard."""

    def __init__(self, loop_timeout_s: float, guard: _core.ProcessGuard | None = None) -> None:
        """Start to watch the event loop; call it there.

        Args:
            loop_timeout_s: The process ends if the event loop is blocked for longer, in seconds.
            guard: Guard of a process that is only a server; the watchdog beats for it. Without a
                guard the event loop is not watched.
        """
        self.watches: set[Watch] = set()
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._loop_seen_at = time.monotonic()
        self._closed = threading.Event()
        if guard is not None:
            # Elsewhere the loop is not the server's own, and may rest between two uses.
            what = "the event loop has stood still for"
            self.watch(what, lambda: time.monotonic() - self._loop_seen_at, loop_timeout_s)
        threading.Thread(target=self._main, name="chairlift-watchdog", daemon=True).start()

    def watch(
        self,
        description: str,
        heartbeat_age_s: Callable[[], float],
        timeout_s: float,
        on_hang: Callable[[], None] | None = None,
    ) -> Watch:
        """Watch one more thing.

        Args:
            description: Begins the log line about a hang; the seconds follow.
            heartbeat_age_s: Returns the seconds since the last heartbeat; called on the thread.
            timeout_s: The most that this may come to.
            on_hang: Called on the event loop; then the process has two seconds left.
        """
        watch = Watch(self, description, heartbeat_age_s, timeout_s, on_hang)
        self.watches.add(watch)
        return watch

    def limit_silence(self, seconds: float) -> None:
        """Limit the time for which native code may hold the interpreter's lock."""
        if self._guard is not None:
            self._guard.limit_silence(seconds)

    def close(self) -> None:
        """End all watches."""
        self._closed.set()

    def _main(self) -> None:
        resumed_at = last = time.monotonic()
        while not self._closed.wait(_PERIOD_S):
            if self._guard is not None:
                self._guard.beat()
            now = time.monotonic()
            if now - last > _PERIOD_S + _GAP_S:
                resumed_at = now
            last = now
            try:
                self._loop.call_soon_threadsafe(self._see_loop)
            except RuntimeError:  # The loop is closed: nothing is left to watch.
                return
            for watch in tuple(self.watches):
                heartbeat_age_s = min(self._heartbeat_age_s(watch), now - resumed_at)
                if heartbeat_age_s > watch.timeout_s:
                    self._end(watch, heartbeat_age_s)

    def _heartbeat_age_s(self, watch: Watch) -> float:
        """Return the seconds since the last heartbeat; 0 where that is unknown."""
        try:
            heartbeat_age_s = watch.heartbeat_age_s()
        except Exception:
            # The other watches go on. It is said once.
            if not watch.has_failed:
                watch.has_failed = True
                _log.exception("a watch fails: %s", watch.description)
            return 0.0
        watch.has_failed = False
        return heartbeat_age_s

    def _see_loop(self) -> None:
        self._loop_seen_at = time.monotonic()

    def _end(self, watch: Watch, heartbeat_age_s: float) -> None:
        _log.critical("%s %.1f s: the process ends", watch.description, heartbeat_age_s)
        if watch.on_hang is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(watch.on_hang)
            self._closed.wait(_FLUSH_S)
        os._exit(FAULT_EXIT)
