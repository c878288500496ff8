"""The last events of one tenant, numbered, for any number of readers.

    engine thread --put--> [ batch 7 | batch 8 | batch 9 ]  <--since(7)-- a reader, at its own pace

Batches that no longer fit are dropped, whether they were read or not: a reader that is too far
behind begins again, with a batch that clears and then stores all there is. Numbers begin with the
microsecond of the start, so that those of a server that started again are higher than before, and a
reader finds a gap.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Final

from chairlift import _core
from chairlift.server.kv_events.events import Batch

MAX_BATCHES: Final = 10_000
"""Batches that are kept; vLLM keeps as many."""
MAX_BYTES: Final = 32 * 2**20
MAX_TAKEN: Final = 64
"""Batches that a reader takes at once."""


class EventStream:
    """The batches of a tenant; every method may be called from any thread."""

    def __init__(
        self, place: int, max_batches: int = MAX_BATCHES, max_bytes: int = MAX_BYTES
    ) -> None:
        """Begin with a batch that clears.

        Args:
            place: The tenant's place among those that are reported.
            max_batches: Batches that are kept.
            max_bytes: Memory of all of them; the last one is kept whatever it takes.
        """
        self.place = place
        self._max_batches, self._max_bytes = max_batches, max_bytes
        self._batches: deque[Batch] = deque()
        self._num_bytes = 0
        self._number = time.time_ns() // 1000
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], None]] = []
        self.clear()

    @property
    def number(self) -> int:
        """Return the number of the last batch."""
        return self._number

    def put(self, blocks: _core.BlockEvents, adapters: Mapping[int, str]) -> None:
        """Add the changes of a step."""
        self._add(blocks, adapters, is_cleared=False)

    def clear(self) -> None:
        """Add that no block is left."""
        self._add(None, {}, is_cleared=True)

    def since(self, number: int) -> list[Batch] | None:
        """Return the batches behind a number, at most `MAX_TAKEN`; None: the next one is gone.

        A number that was not given yet is none of this stream, too.
        """
        with self._changed:
            first = self._batches[0].number
            if not first - 1 <= number <= self._number:
                return None
            start = number + 1 - first
            return list(islice(self._batches, start, start + MAX_TAKEN))

    def wait(self, number: int, timeout_s: float) -> None:
        """Wait for a batch behind a number, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number, timeout_s)

    @contextmanager
    def waking(self, waker: Callable[[], None]) -> Iterator[None]:
        """Call a function after each batch, on the thread that adds it; it must not block."""
        with self._changed:
            self._wakers.append(waker)
        try:
            yield
        finally:
            with self._changed:
                self._wakers.remove(waker)

    def _add(
        self, blocks: _core.BlockEvents | None, adapters: Mapping[int, str], *, is_cleared: bool
    ) -> None:
        with self._changed:
            self._number += 1
            batch = Batch(self._number, time.time(), self.place, is_cleared, blocks, adapters)
            self._batches.append(batch)
            self._num_bytes += batch.num_bytes
            while len(self._batches) > 1 and (
                len(self._batches) > self._max_batches or self._num_bytes > self._max_bytes
            ):
                self._num_bytes -= self._batches.popleft().num_bytes
            self._changed.notify_all()
            wakers = tuple(self._wakers)
        for waker in wakers:
            waker()
