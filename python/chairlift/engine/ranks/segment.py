"""The memory that the ranks of a model share: anonymous, so that it ends with its last process.

```text
words      of the barrier
messages   two places, which rank 0 writes in turn
areas      two for each rank, which it writes in turn and the others read
```
"""

import mmap
import os
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.errors import ModelError

AREA_BYTES: Final = 4 << 20
"""Bytes of an area; more rows than fit are gathered in parts."""
_PAGE: Final = mmap.PAGESIZE


class Layout(NamedTuple):
    """The sizes of a segment."""

    num_ranks: int
    message_numbers: int
    """int32 numbers of the longest message."""
    area_bytes: int = AREA_BYTES

    def parts(self) -> list[int]:
        """Return the bytes of each part in order, whole pages each."""
        message = 4 * (self.message_numbers + _core.RANK_MESSAGE_HEADER)
        areas = [self.area_bytes] * (2 * self.num_ranks)
        sizes = [4 * _core.num_rank_words(self.num_ranks), message, message, *areas]
        return [-(-size // _PAGE) * _PAGE for size in sizes]

    def create(self) -> int:
        """Return the descriptor of a new segment of zeros, all of whose memory is there.

        Raises:
            ModelError: There is no memory for it.
        """
        num_bytes = sum(self.parts())
        descriptor = os.memfd_create("chairlift-ranks", os.MFD_CLOEXEC)
        try:
            # A page that is missing later would end the process that touches it.
            os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError as error:
            os.close(descriptor)
            reason = (error.strerror or "error").lower()
            message = f"tensor_parallel: no {num_bytes} bytes of shared memory: {reason}"
            raise ModelError(message) from None
        return descriptor

    def open(self, descriptor: int, rank: int, spin_s: float, timeout_s: float) -> _core.RankGroup:
        """Map a segment, and return a rank's view of it; the descriptor may be closed then."""
        parts = self.parts()
        memory = mmap.mmap(descriptor, sum(parts), mmap.MAP_SHARED)
        # The view keeps the mapping.
        whole = torch.from_numpy(np.frombuffer(memory, np.uint8))
        words, first, second, *areas = torch.split(whole, parts)
        return _core.RankGroup(
            words.view(torch.int32),
            (first.view(torch.int32), second.view(torch.int32)),
            list(zip(areas[::2], areas[1::2], strict=True)),
            rank,
            spin_s,
            timeout_s,
        )


class Scratch:
    """Memory between a layer and its gathers; see `Gather.scratch`."""

    def __init__(self, num_bytes: int, device: torch.device | None = None) -> None:
        """Allocate it, for the widest layer of the largest step; without a device on the CPU."""
        self._memory = [torch.empty(num_bytes, dtype=torch.uint8, device=device) for _ in range(2)]

    def take(self, num_numbers: int, dtype: torch.dtype, *, is_input: bool) -> Tensor:
        """Return the first numbers, `[num_numbers]`, or new memory where they do not fit."""
        num_bytes = num_numbers * dtype.itemsize
        memory = self._memory[is_input]
        if num_bytes > len(memory):
            return memory.new_empty(num_numbers, dtype=dtype)
        return memory[:num_bytes].view(dtype)
