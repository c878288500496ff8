"""Passes on which blocks of some tenants the prefix cache has, after each step."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from chairlift import _core


class BlockSnapshot(NamedTuple):
    """All reported blocks at a moment."""

    blocks: _core.BlockEvents
    """In the order in which they could be stored now: each comes after its parent."""
    adapters: Mapping[int, str]
    """Names of the adapters by slot."""


class BlockSink(Protocol):
    """What takes the changes; its methods are called on the engine's thread and must not block."""

    def put(self, blocks: _core.BlockEvents, adapters: Mapping[int, str]) -> None:
        """Take the changes of a step, and the names of the adapters that they may name by slot."""

    def clear(self) -> None:
        """Note that no block is left: the scheduler is a new one."""


class BlockReports:
    """The reports of one engine; belongs to its thread."""

    def __init__(
        self,
        tenants: Sequence[str],
        sink: BlockSink,
        adapters: Callable[[], Mapping[int, str]],
    ) -> None:
        """Set what is reported to where.

        Args:
            tenants: Whose blocks; a place in this list is a stream.
            sink: Takes the changes.
            adapters: Returns the names of adapters by slot.
        """
        self._tenants = list(tenants)
        self._sink = sink
        self._adapters = adapters

    def begin(self, scheduler: _core.Scheduler) -> None:
        """Report what a scheduler stores from now on."""
        scheduler.report_blocks(self._tenants)
        self._sink.clear()

    def take(self, scheduler: _core.Scheduler) -> None:
        """Pass on what has changed."""
        blocks = scheduler.take_block_events()
        if blocks is not None:
            # A slot gets another adapter only after the steps that used it.
            self._sink.put(blocks, self._adapters() if blocks.has_adapters else {})

    def snapshot(self, scheduler: _core.Scheduler) -> BlockSnapshot:
        """Pass on what has changed, and return all blocks; O(blocks)."""
        self.take(scheduler)
        return BlockSnapshot(scheduler.block_snapshot(), self._adapters())
