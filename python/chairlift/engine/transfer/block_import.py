"""The blocks of one prompt between the call that receives them and the engine that places them."""

import threading
from collections.abc import Callable
from typing import Final, Protocol

from chairlift.engine.prepare.block_source import BlockSource

_MAX_WAITING_BYTES: Final = 8 * 2**20
"""Blocks of an import that were received and not placed, and one more."""


class BlockImport:
    """The blocks of one prompt, from a fetcher to the engine's thread.

    Attributes:
        token_ids: The tokens of the prompt: those of all full blocks, and one more.
        first: Index of the first block that is wanted.
        numbers: Those of the blocks that are wanted: by index and KV group.
        scope: Names tenant and salt, as the other server may know them.
        source: The server that has them, and what it gave for them; None is any server.
        limit_s: Seconds that the transfer may take.
        was_late: Whether it took longer.
        next_number: Number of the next block to be placed.
    """

    def __init__(
        self,
        token_ids: list[int],
        first: int,
        numbers: range,
        scope: str,
        limit_s: float,
        source: BlockSource | None = None,
    ) -> None:
        self.token_ids = token_ids
        self.first, self.numbers = first, numbers
        self.scope = scope
        self.source = source
        self.limit_s = limit_s
        self.was_late = False
        self.next_number = numbers.start
        self._changed = threading.Condition()
        self._blocks: dict[int, bytes] = {}
        self._num_bytes = 0
        self._is_over = False
        self._on_cancel: Callable[[], None] | None = None

    def on_cancel(self, cancel: Callable[[], None]) -> None:
        """Call a function when the blocks are not wanted any more: at once, if they are not now."""
        with self._changed:
            self._on_cancel = cancel
            is_over = self._is_over
        if is_over:
            cancel()

    def put(self, number: int, data: bytes) -> bool:
        """Add a block; waits for room. Return whether further ones are wanted.

        A block that comes before its turn is dropped where there is no room: to wait would hold up
        those before it.
        """
        with self._changed:
            if not self._changed.wait_for(self._need_not_wait, self.limit_s) or self._is_over:
                return False
            is_wanted = self.next_number <= number < self.numbers.stop
            has_room = self._has_room or number == self.next_number
            if is_wanted and has_room and number not in self._blocks:
                self._blocks[number] = data
                self._num_bytes += len(data)
                self._changed.notify_all()
            return True

    def _need_not_wait(self) -> bool:
        return self._has_room or self._is_over or not self.has_next

    @property
    def _has_room(self) -> bool:
        return self._num_bytes < _MAX_WAITING_BYTES

    def end(self) -> None:
        """Say that no block follows."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    @property
    def has_next(self) -> bool:
        """Return whether the next block to be placed has come."""
        return self.next_number in self._blocks

    @property
    def is_whole(self) -> bool:
        """Return whether all blocks were placed."""
        return self.next_number == self.numbers.stop

    @property
    def is_over(self) -> bool:
        """Return whether no block follows those that have come."""
        return self._is_over

    def next_run(self, max_count: int) -> list[bytes]:
        """Return the next blocks to be placed, as far as they have come; they stay."""
        with self._changed:
            end = self.next_number
            while end < self.next_number + max_count and end in self._blocks:
                end += 1
            return [self._blocks[number] for number in range(self.next_number, end)]

    def drop(self, count: int) -> None:
        """Forget so many blocks of the next run: they were placed."""
        with self._changed:
            for _ in range(count):
                self._num_bytes -= len(self._blocks.pop(self.next_number))
                self.next_number += 1
            self._changed.notify_all()

    def cancel(self) -> None:
        """Want no further block, and forget those that have come."""
        with self._changed:
            self._is_over = True
            self._blocks.clear()
            self._num_bytes = 0
            self._changed.notify_all()
            cancel = self._on_cancel
        if cancel is not None:
            cancel()

    def wait(self, timeout_s: float) -> None:
        """Wait for a change, at most so long."""
        with self._changed:
            self._changed.wait(timeout_s)


class Fetcher(Protocol):
    """Asks other servers for the blocks of prompts."""

    def fetch(self, wanted: BlockImport) -> bool:
        """Begin to fetch on a thread of its own; return False where no server can be asked."""

    def close(self) -> None:
        """End all fetches."""
