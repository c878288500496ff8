"""Where the inputs of a step are written, once; for a device one block of memory, and one copy.

```text
host, step k      | small inputs | tiles | work lists ...   |   written once, by the engine thread
host, step k + 1  | small inputs | tiles | work lists ...   |   while step k runs
                           │ copied as far as it is used
device            | small inputs | tiles | work lists ...   |   read by the kernels
```

The device's side never moves, so that recorded launches find it again. It is written only after the
step before has read it: a device works in order.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from chairlift.kernels.cuda.device import Accelerator

_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class InputBuffers:
    """Where the inputs of a step are written; nothing is allocated per step.

    int32; R rows, T tokens and S samples are the largest step's.
    """

    rows: Tensor
    """`[R]`"""
    query_start_loc: Tensor
    """`[R + 1]`"""
    seq_lens: Tensor
    """`[R]`"""
    input_ids: Tensor
    """`[T]`: -1 is the row's last sampled token."""
    positions: Tensor
    """`[T]`"""
    slot_mapping: Tensor
    """`[G, T]`: negative is padding."""
    sample_rows: Tensor
    """`[S]`: the tokens that sample."""

    @staticmethod
    def shapes(
        num_rows: int, num_tokens: int, num_groups: int, num_samples: int
    ) -> list[tuple[int, ...]]:
        """Return the shapes of the fields, in their order."""
        r, t = (num_rows,), (num_tokens,)
        return [r, (num_rows + 1,), r, t, t, (num_groups, num_tokens), (num_samples,)]

    @classmethod
    def allocate(
        cls, num_rows: int, num_tokens: int, num_groups: int, num_samples: int
    ) -> "InputBuffers":
        """Allocate on the host."""
        shapes = cls.shapes(num_rows, num_tokens, num_groups, num_samples)
        return InputBuffers(*(torch.zeros(shape, dtype=torch.int32) for shape in shapes))


@dataclass(frozen=True, slots=True)
class Inputs(InputBuffers):
    """All inputs of a step on one side.

    int32 unless something else is said. The order is that in memory; what varies most comes last.
    """

    drawn_rows: Tensor
    """`[S]`: the row of each; negative is padding."""
    temperature: Tensor
    """float32 `[S]`"""
    top_k: Tensor
    """`[S]`"""
    top_p: Tensor
    """float32 `[S]`"""
    min_p: Tensor
    """float32 `[S]`"""
    seed: Tensor
    """int64 `[S]`"""
    index: Tensor
    """`[S]`"""
    position: Tensor
    """`[S]`: of the tokens that are drawn."""
    num_splits: Tensor
    """`[G, 1]`"""
    tiles: Tensor
    """`[G, max_tiles, 3]`"""
    splits: Tensor
    """`[G, max_splits, 8]`"""

    def end_of_splits(self, counts: list[int]) -> int:
        """Return the byte at which the memory ends that so many splits of each group take."""
        group = max((g for g, count in enumerate(counts) if count), default=0)
        return (
            _offset(self.splits)
            + self.splits[:group].nbytes
            + self.splits[group, : counts[group]].nbytes
        )


class Staging:
    """The inputs on both sides."""

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        max_num_seqs: int,
        max_num_tokens: int,
        max_num_samples: int,
        num_groups: int,
        max_tiles: int,
        max_splits: int,
        num_hosts: int,
    ) -> None:
        """Allocate; no step allocates more.

        Args:
            accelerator: The device.
            max_num_seqs: R.
            max_num_tokens: T.
            max_num_samples: S.
            num_groups: KV groups.
            max_tiles: Tiles of a group.
            max_splits: Splits of a group.
            num_hosts: Steps, and parts of steps, whose inputs must be on the host at once.
        """
        r, t, s, groups = max_num_seqs, max_num_tokens, max_num_samples, num_groups
        int32, float32 = torch.int32, torch.float32
        sections: list[tuple[tuple[int, ...], torch.dtype]] = [
            *((shape, int32) for shape in InputBuffers.shapes(r, t, groups, s)),
            *(((s,), dtype) for dtype in (int32, float32, int32, float32, float32)),
            *(((s,), dtype) for dtype in (torch.int64, int32, int32)),
            *(((groups, *rest), int32) for rest in ((1,), (max_tiles, 3), (max_splits, 8))),
        ]
        sizes = [_aligned(prod(shape) * dtype.itemsize) for shape, dtype in sections]
        self._hosts = [
            accelerator.host_buffer(sum(sizes), dtype=torch.uint8) for _ in range(num_hosts)
        ]
        self._device = torch.zeros(sum(sizes), dtype=torch.uint8, device=accelerator.device)

        def cut(memory: Tensor) -> Inputs:
            parts = torch.split(memory, sizes)
            return Inputs(
                *(
                    part[: prod(shape) * dtype.itemsize].view(dtype).view(shape)
                    for part, (shape, dtype) in zip(parts, sections, strict=True)
                )
            )

        self.hosts = [cut(memory) for memory in self._hosts]
        self.device = cut(self._device)

    def upload(self, host: int, num_bytes: int) -> None:
        """Copy the front of a host's memory to the device, after what the device does now."""
        self._device[:num_bytes].copy_(self._hosts[host][:num_bytes], non_blocking=True)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _offset(part: Tensor) -> int:
    return int(part.storage_offset()) * part.itemsize
