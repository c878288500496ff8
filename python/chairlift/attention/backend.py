"""The interface of an attention backend, which alone knows the inside of a KV block."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from chairlift.attention.metadata import AttentionMetadata


class AttentionBackend(Protocol):
    """Stores keys and values in blocks and attends to them.

    A cache is one layer of what `allocate` gives.
    """

    layout: str
    """Names the inside of a block; blocks move only between caches of equal layout."""

    def allocate(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Gives `[num_layers, num_blocks, num_kv_heads, 2 * block_size * head_dim]` of zeros.

        The system gives a page only when it is first written, so that a large pool costs neither
        time at start nor memory before it is used; `torch.zeros` would write all of it.
        """
        shape = (num_layers, num_blocks, num_kv_heads, 2 * block_size * head_dim * dtype.itemsize)
        return torch.from_numpy(np.zeros(shape, dtype=np.uint8)).view(dtype)

    def block_bytes(
        self,
        num_layers: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> int:
        """Bytes that one block takes over all layers."""
        return num_layers * num_kv_heads * 2 * block_size * head_dim * dtype.itemsize

    def write(
        self, cache: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor, block_size: int
    ) -> None:
        """Writes `key` and `value` `[T, num_kv_heads, head_dim]` to the slots `[T]`."""
        ...

    def copy_blocks(self, cache: Tensor, source: Tensor, target: Tensor) -> None:
        """Copies whole blocks of all layers; all sources are read before a target is written.

        Args:
            cache: From `allocate`.
            source: int32 `[C]`, blocks.
            target: int32 `[C]`, blocks, each of them once.
        """
        source, target = source.to(cache.device), target.to(cache.device)
        cache.index_copy_(1, target.long(), cache.index_select(1, source))

    def attend(
        self,
        query: Tensor,
        cache: Tensor,
        metadata: AttentionMetadata,
        *,
        group: int,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Causal attention of each token to its row, this step's tokens included.

        Args:
            query: `[T, num_heads, head_dim]`; rows may be strided.
            cache: Where this step's keys and values are already written.
            metadata: The step.
            group: KV group of the layer.
            scale: Factor of the scores.
            window: A token sees itself and the `window - 1` before it; None sees all.

        Returns:
            `[T, num_heads, head_dim]`, contiguous.
        """
        ...

    def pack(self, key: Tensor, value: Tensor) -> Tensor:
        """Lays out one block, `[num_kv_heads, 2 * block_size * head_dim]`.

        `key` and `value` are `[block_size, num_kv_heads, head_dim]`.
        """
        ...

    def unpack(self, block: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
        """Gives the `[block_size, num_kv_heads, head_dim]` that `pack` laid out."""
        ...
