"""Host memory for the KV blocks of preempted requests, and what it costs to move one there.

On a GPU the pool is pinned memory, which its kernels reach across the bus. On a CPU it is memory
like that of the KV cache.
"""

import time
from contextlib import nullcontext
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.engine.devices import Place
from chairlift.model.config import ModelConfig
from chairlift.model.kv_cache import allocate_kv_cache
from chairlift.model.memory_plan import MemoryPlan

_MEASURED_BLOCKS = 16
_ROUNDS = 5


class HostPool(NamedTuple):
    """The pool, and how fast it is."""

    blocks: Tensor
    """As the KV cache, but for the number of blocks."""
    num_blocks: int
    block_time: int
    """Nanoseconds to move a block one way."""


def new_host_pool(
    place: Place, model: ModelConfig, kv_cache: Tensor, plan: MemoryPlan
) -> HostPool | None:
    """Allocates the pool beside a KV cache that nobody uses yet, and measures it.

    Args:
        place: Where the model runs.
        model: Its shape.
        kv_cache: Its pool of blocks; what is in them may change.
        plan: The size of both pools; None is given where that is 0.
    """
    num_blocks = plan.num_host_blocks
    if num_blocks == 0:
        return None
    if place.accelerator is None:
        blocks = allocate_kv_cache(model, place.backend, num_blocks, place.settings.block_size)
    else:
        layers, two, _, *block = kv_cache.shape
        blocks = place.accelerator.host_buffer(
            *(layers, two, num_blocks, *block), dtype=kv_cache.dtype
        )
    # The null block is for all to read.
    num_moved = min(_MEASURED_BLOCKS, num_blocks, plan.num_blocks - 1)
    return HostPool(blocks, num_blocks, _block_time(place, kv_cache, blocks, num_moved))


def _block_time(place: Place, kv_cache: Tensor, host: Tensor, num_moved: int) -> int:
    """Gives the median time of a block's way, in nanoseconds."""
    there = torch.arange(num_moved, dtype=torch.int32)
    inward = torch.stack((there, there + 1), dim=1)
    outward = inward.flip(1)

    def move_both_ways() -> int:
        began = time.perf_counter_ns()
        place.backend.copy_blocks(host, kv_cache, outward)
        place.backend.copy_blocks(kv_cache, host, inward)
        if place.accelerator is not None:
            place.accelerator.record().synchronize()
        return time.perf_counter_ns() - began

    if place.accelerator is not None:
        # A large cache takes time to become zeros.
        place.accelerator.record().synchronize()
    with nullcontext() if place.accelerator is None else place.accelerator.aside():
        # At first the system gives the pages.
        move_both_ways()
        return max(1, round(median(move_both_ways() for _ in range(_ROUNDS)) / (2 * num_moved)))
