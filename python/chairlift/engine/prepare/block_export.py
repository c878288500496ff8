"""The blocks of one prompt between the engine that computes them and the call that sends them."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_HELD_BYTES: Final = 256 * 2**20
"""Copies of blocks that no call has taken yet, over all exports."""


@dataclass(frozen=True, slots=True)
class ExportedBlock:
    """A complete block of a prompt."""

    number: int
    """Which block of the prompt it is: by its index and its KV group."""
    data: bytes


class HeldBytes:
    """What all exports of an engine hold; for any thread."""

    def __init__(self, max_bytes: int = MAX_HELD_BYTES) -> None:
        """Hold nothing.

        Args:
            max_bytes: The limit.
        """
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Return how many bytes are held."""
        return self._num_bytes

    def may_hold(self, num_bytes: int) -> bool:
        """Return whether the limit allows so many bytes where nothing else is held."""
        return num_bytes <= self._max_bytes

    def take(self, num_bytes: int) -> bool:
        """Hold more; return whether the limit allows it."""
        with self._lock:
            if self._num_bytes + num_bytes > self._max_bytes:
                return False
            self._num_bytes += num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        """Hold less."""
        with self._lock:
            self._num_bytes -= num_bytes


class BlockExport:
    """The blocks of one prompt, from the engine's thread to the call that sends them.

    Attributes:
        first: The index of the first block that is wanted.
    """

    def __init__(self, first: int, held: HeldBytes, wake: Callable[[], None]) -> None:
        """Wait for blocks.

        Args:
            first: The index of the first block that is wanted.
            held: The bytes of all exports.
            wake: Called on the engine's thread when there is something to take.
        """
        self.first = first
        self._held = held
        self._wake = wake
        self._lock = threading.Lock()
        self._blocks: deque[ExportedBlock] = deque()
        self.is_closed = False
        self.has_overflowed = False

    def put(self, block: ExportedBlock) -> None:
        """Add a block; called on the engine's thread."""
        with self._lock:
            if self.is_closed or self.has_overflowed:
                return
            if self._held.take(len(block.data)):
                self._blocks.append(block)
            else:
                self.has_overflowed = True
        self._wake()

    def take(self, max_bytes: int) -> list[ExportedBlock]:
        """Return the blocks that came first; they are held no longer.

        Args:
            max_bytes: Bytes of all of them; one block is taken whatever it has.
        """
        taken: list[ExportedBlock] = []
        num_bytes = 0
        with self._lock:
            while self._blocks and (
                not taken or num_bytes + len(self._blocks[0].data) <= max_bytes
            ):
                taken.append(self._blocks.popleft())
                num_bytes += len(taken[-1].data)
        self._held.give_back(num_bytes)
        return taken

    def close(self) -> None:
        """Hold nothing more; a second call has no effect."""
        with self._lock:
            self.is_closed = True
            left, self._blocks = self._blocks, deque()
        self._held.give_back(sum(len(block.data) for block in left))
