"""What brings KV blocks into an engine and takes them out, between its steps."""

from typing import NamedTuple, Protocol, Self

from chairlift import _core
from chairlift.engine.prepare.prepared import Prepared


class Used(NamedTuple):
    """What was computed or found since it was taken last; it stays until the next plan runs."""

    blocks: _core.BlockUses | None
    states: list[tuple[bytes, int, bool]]
    """Name and snapshot of recurrent states, and whether a request begins with it."""

    @classmethod
    def take(cls, scheduler: _core.Scheduler) -> Self:
        """Take it from a scheduler."""
        return cls(scheduler.take_block_uses(), scheduler.take_state_uses())


class BlockExchange(Protocol):
    """Moves blocks of one engine; every method is called on the engine's thread."""

    @property
    def names_key(self) -> bytes:
        """32 secret bytes by which the scheduler has to name blocks."""

    @property
    def is_loading(self) -> bool:
        """Whether a request waits for blocks."""

    def attach(self, scheduler: _core.Scheduler) -> None:
        """Begin with a new scheduler; what was under way for the one before ends."""

    def begin(self, scheduler: _core.Scheduler, request_id: int, prepared: Prepared) -> None:
        """Note a request that was queued just now; it may be held."""

    def turn(self, scheduler: _core.Scheduler) -> None:
        """Place blocks that have arrived, and release requests; before a step is planned."""

    def keep(self, used: Used) -> None:
        """Take the blocks and states that were used; before anything is written to memory."""

    def wait(self) -> None:
        """Wait a moment for a block, where there is no step to run."""

    def close(self) -> None:
        """End; a second call has no effect."""
