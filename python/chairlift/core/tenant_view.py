"""The queue and the KV cache as a tenant may see them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift import _core
from chairlift.api.types import RequestState, WaitCause, Waiting


def to_waiting(waiting: _core.Waiting) -> Waiting:
    """Return why a request waits, with the types of the engine."""
    return Waiting(
        state=RequestState(waiting.state),
        cause=None if waiting.cause is None else WaitCause(waiting.cause),
        num_before=waiting.num_before,
        num_computed_tokens=waiting.num_computed_tokens,
        num_tokens=waiting.num_tokens,
    )


class BlockMap(NamedTuple):
    """How the KV blocks of C equal cells of the pool are used; the last cell may be smaller.

    Held, cached and free blocks are all blocks of a cell.
    """

    held: NDArray[np.uint32]
    """`[C]` by requests."""
    own: NDArray[np.uint32]
    """`[C]` of these by requests of the tenant."""
    shared: NDArray[np.uint32]
    """`[C]` of these by several requests or sequences."""
    cached: NDArray[np.uint32]
    """`[C]` held by none, and found by the prefix cache."""
    free: NDArray[np.uint32]
    """`[C]` held by none, and not found."""

    @classmethod
    def of(cls, scheduler: _core.Scheduler, tenant: str) -> "BlockMap":
        """Read the map; takes time in C, which is at most 512."""
        cells = np.frombuffer(scheduler.block_map(tenant), dtype=np.uint32)
        return cls(*cells.reshape(-1, len(cls._fields)).T)


class TenantView(NamedTuple):
    """What a scheduler says of a tenant between two steps."""

    waiting: list[tuple[int, Waiting]]
    """Its first waiting requests, by id."""
    num_waiting: int
    """All of them."""
    load: _core.Load
    blocks: BlockMap

    @classmethod
    def of(cls, scheduler: _core.Scheduler, tenant: str, max_listed: int) -> "TenantView":
        """Read it.

        Args:
            scheduler: Between two steps.
            tenant: Whose requests are named.
            max_listed: Waiting requests that are listed.
        """
        waiting, num_waiting = scheduler.waiting_of(tenant, max_listed)
        listed = [(number, to_waiting(request)) for number, request in waiting]
        return cls(listed, num_waiting, scheduler.load(), BlockMap.of(scheduler, tenant))
