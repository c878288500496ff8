"""Bounds the waits for a device, which itself waits for the devices of the other ranks.

A gather on a device has no bound of its own: where a rank is gone, it waits for good, and so does
all that waits for the device. A thread ends such waits, by an abort of the gathers.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from chairlift import _core
from chairlift.api.logs import fields

_PERIOD_S: Final = 0.1
"""Between two looks."""
_CLOSE_S: Final = 5.0
"""For an abort."""

_log = logging.getLogger(__name__)


class Watch:
    """Aborts the gathers of a rank when its group has ended, and ends the group that hangs."""

    def __init__(
        self, group: _core.RankGroup, rank: int, timeout_s: float, abort: Callable[[], None]
    ) -> None:
        """Start the thread, which ends with the group.

        Args:
            group: Meets the other ranks.
            rank: Number of this one.
            timeout_s: How long it waits for the device at most.
            abort: Ends the gathers on the device; it may return late.
        """
        self._group = group
        self._rank = rank
        self._timeout_s = timeout_s
        self._abort = abort
        self._num_waits = 0
        """Odd while this rank waits."""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chairlift-rank-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the end of the gathers, for a bounded time; the group has ended.

        A process that ends amid an abort may crash.
        """
        self._wake.set()
        self._thread.join(_CLOSE_S)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for the device inside, on one thread at a time.

        Raises:
            RankError: The group has ended: what the device has computed may be wrong.
        """
        self._num_waits += 1
        try:
            yield
        finally:
            self._num_waits += 1
        if (fault := self._group.fault) is not None:
            raise _core.RankError(fault)

    def _run(self) -> None:
        seen, waited_s = 0, 0.0
        while self._group.fault is None:
            began = time.monotonic()
            self._wake.wait(_PERIOD_S)
            # A longer sleep was a stop of this process, which says nothing about the others.
            slept_s = min(time.monotonic() - began, 2 * _PERIOD_S)
            number = self._num_waits
            waited_s = waited_s + slept_s if number == seen and number % 2 else 0.0
            seen = number
            if waited_s > self._timeout_s:
                text = "a rank has waited %g s for its device, or for the device of another rank"
                _log.error(text, self._timeout_s, extra=fields(rank=self._rank))
                self._group.fail(self._rank)
        # Waits end at once. The abort returns later, when no graph holds a gather any more.
        with suppress(RuntimeError):
            self._abort()
