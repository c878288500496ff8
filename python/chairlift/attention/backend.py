"""The interface of an attention backend, which alone knows the inside of a KV block."""

import math
import mmap
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from chairlift.attention.metadata import AttentionMetadata
from chairlift.kernels import Kernels, cpu


class Heads(NamedTuple):
    """The heads that a layer projects of each token, all of one size."""

    num_heads: int
    """Heads of queries."""
    num_kv_heads: int
    """Heads of keys, and of values; 0 where the layer sees those of another layer."""
    head_dim: int
    has_gate: bool = False
    """The projection begins with a gate for each query."""
    has_values: bool = True
    """Whether values are projected; else the keys are the values, too."""
    norms_values: bool = False
    """Values have a norm, and then memory of their own."""

    @property
    def query_size(self) -> int:
        """Numbers of all queries, and of all results."""
        return self.num_heads * self.head_dim

    @property
    def projected_size(self) -> int:
        """Numbers of all heads."""
        kv_size = self.num_kv_heads * self.head_dim
        return (1 + self.has_gate) * self.query_size + (1 + self.has_values) * kv_size

    @property
    def normed_size(self) -> int:
        """Numbers of all values that have a norm."""
        return self.num_kv_heads * self.head_dim if self.norms_values else 0


class Projections(NamedTuple):
    """Queries, keys and values of T tokens, side by side in one buffer."""

    qkv: Tensor
    """`[T, (num_heads + 2 * num_kv_heads) * head_dim]`; wider where gates come first."""
    gate: Tensor
    """`[T, num_heads * head_dim]`, a view of `qkv`, like the next four; empty without gates."""
    query: Tensor
    """`[T, num_heads, head_dim]`"""
    key: Tensor
    """`[T, num_kv_heads, head_dim]`"""
    query_key: Tensor
    """`[T, num_heads + num_kv_heads, head_dim]`"""
    projected_value: Tensor
    """`[T, num_kv_heads, head_dim]`: a view of `qkv`; the keys where these are values, too."""
    value: Tensor
    """The same, or its norm."""

    @classmethod
    def of(cls, qkv: Tensor, heads: Heads, normed: Tensor | None = None) -> "Projections":
        """Cut a contiguous buffer into its parts.

        Args:
            qkv: `[T, heads.projected_size]`.
            heads: The heads of the layer.
            normed: `[T, heads.normed_size]`, for values that have a norm.
        """
        num_gates, num_kv_heads = heads.num_heads if heads.has_gate else 0, heads.num_kv_heads
        counts = [num_gates, heads.num_heads, num_kv_heads, heads.has_values * num_kv_heads]
        parts = qkv.view(qkv.shape[0], sum(counts), heads.head_dim)
        _, query, key, value = torch.split(parts, counts, dim=1)
        query_key = parts[:, num_gates : num_gates + heads.num_heads + num_kv_heads]
        projected = value if heads.has_values else key
        if heads.norms_values:
            assert normed is not None, "memory for them"
            value = normed.view(-1, num_kv_heads, heads.head_dim)
        gate = qkv[:, : num_gates * heads.head_dim]
        return cls(qkv, gate, query, key, query_key, projected, value)


class WholeRows(Protocol):
    """Rows of which each rank has some columns."""

    def change(self, part: Tensor, operation: Callable[[Tensor], None]) -> None:
        """Change whole rows in place, and write the columns of this rank to `part` `[T, W]`."""


class Rotation(NamedTuple):
    """The norm and rotation of queries and keys before attention."""

    cos_sin: Tensor
    """float32 `[max_position, rotary_dim]` of keys: cosines, then sines; width 0: no rotation."""
    query_cos_sin: Tensor
    """The table of queries: the same tensor, or one that also scales them."""
    is_interleaved: bool
    """A number is rotated with its neighbour, and not with the one half of them further."""
    query_norm: Tensor | None
    """Weight of an RMS norm before the rotation: `[head_dim]` of each head, or of all heads."""
    key_norm: Tensor | None
    eps: float
    """Added to the mean of the squares in those norms."""
    norm_offset: float
    """Added to their weights."""
    whole_queries: WholeRows | None = None
    """The queries of all ranks, where one norm is over all of them."""
    whole_keys: WholeRows | None = None


class Scoring(NamedTuple):
    """How a layer makes weights of queries and keys."""

    scale: float
    """Factor of the scores."""
    window: int | None = None
    """A token sees itself and the `window - 1` before it; None sees all."""
    soft_cap: float | None = None
    """A score `s` becomes `soft_cap * tanh(s / soft_cap)`."""
    sinks: Tensor | None = None
    """float32 `[num_heads]`: the score of one more key, whose value is zero."""


class AttentionBackend(Protocol):
    """Stores keys and values in blocks and attends to them.

    A cache is one layer of the pool that `allocate` returns.
    """

    layout: str
    """Names the inside of a block; blocks move only between caches of equal layout."""
    kernels: Kernels
    """The kernels of the device that holds the blocks."""
    records: bool = False
    """Whether a `_core.Recording` can keep its operations."""

    def allocate(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return `[num_layers, num_blocks, num_kv_heads, ...]` of zeros: the last axis is a head.

        Only the backend knows the inside of a layer. The system provides a page when it is first
        written, so that a large pool costs neither time at start nor memory before it is used;
        `torch.zeros` would write all of it.
        """
        head_bytes = self.head_bytes(block_size, head_dim, dtype)
        pool = zeroed(num_layers, num_blocks, num_kv_heads, head_bytes)
        return pool.view(self.stored_dtype(dtype))

    def allocate_mixed(self, num_blocks: int, block_bytes: int, dtype: torch.dtype) -> Tensor:
        """Return `[1, num_blocks, numbers]` of zeros, for layers of different sizes.

        The layers of a block lie side by side; `layer_of_mixed` finds one.
        """
        return zeroed(1, num_blocks, block_bytes).view(self.stored_dtype(dtype))

    def mixed_block_bytes(self, num_bytes: int, head_bytes: Collection[int]) -> int:  # noqa: ARG002
        """Return the bytes of a block of `allocate_mixed`.

        Args:
            num_bytes: Bytes of the layers of a KV group, at most.
            head_bytes: Bytes of one head in one block, for each layer.
        """
        return num_bytes

    def layer_of_mixed(self, pool: Tensor, first: int, num_bytes: int, num_kv_heads: int) -> Tensor:
        """Return the cache of a layer, `[num_blocks, num_kv_heads, ...]`: its blocks lie apart.

        Args:
            pool: `[1, num_blocks, numbers]`, from `allocate_mixed`.
            first: Bytes of a block that come before those of the layer.
            num_bytes: Bytes of the layer in a block.
            num_kv_heads: KV heads of the layer.
        """
        size = pool.dtype.itemsize
        block = pool[0, :, first // size : (first + num_bytes) // size]
        return block.view(block.shape[0], num_kv_heads, -1)

    def stored_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of the pool, for keys and values of a dtype."""
        return dtype

    def head_bytes(self, block_size: int, head_dim: int, dtype: torch.dtype) -> int:
        """Return the bytes of one head in one block."""
        return 2 * block_size * head_dim * self.stored_dtype(dtype).itemsize

    def block_bytes(
        self,
        num_layers: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> int:
        """Return the bytes that one block takes over all layers."""
        return num_layers * num_kv_heads * self.head_bytes(block_size, head_dim, dtype)

    def rotate_and_write(
        self,
        projections: Projections,
        rotation: Rotation | None,
        cache: Tensor,
        metadata: AttentionMetadata,
        slot_mapping: Tensor,
    ) -> None:
        """Norm and rotate queries and keys in place, and write keys and values to the cache.

        Without norms, queries and keys are rotated in one call.

        Args:
            projections: Queries, keys and values of the T tokens of the step.
            rotation: The layer's; None leaves queries and keys as they are.
            cache: The layer's, `[num_blocks, num_kv_heads, ...]`.
            metadata: The step.
            slot_mapping: int32 `[T]`, of the layer's KV group.
        """
        if rotation is not None:
            _rotate(projections, rotation, metadata.positions)
        self.write(cache, projections.key, projections.value, slot_mapping, metadata.block_size)

    def rotate_queries(
        self, projections: Projections, rotation: Rotation | None, metadata: AttentionMetadata
    ) -> None:
        """Norm and rotate the queries of a layer without keys of its own, in place."""
        if rotation is not None:
            _rotate(projections, rotation, metadata.positions)

    def write(
        self, cache: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor, block_size: int
    ) -> None:
        """Write keys and values to the cache.

        Args:
            cache: The layer's, `[num_blocks, num_kv_heads, ...]`.
            key: `[T, num_kv_heads, head_dim]`.
            value: `[T, num_kv_heads, head_dim]`.
            slot_mapping: int32 `[T]`: block * block_size + offset.
            block_size: Tokens of a block.
        """
        ...

    def copy_blocks(self, destination: Tensor, source: Tensor, pairs: Tensor) -> None:
        """Copy whole blocks of all layers from one pool to another, or within one.

        Args:
            destination: A pool of `allocate`, `[num_layers, num_blocks, num_kv_heads, ...]`.
            source: The same; its number of blocks may differ.
            pairs: int32 `[N, 2]`: a block of the source, and one of the destination. Within one
                pool no block is both, and no block of the destination occurs twice.
        """
        sources, targets = pairs.T
        destination.index_copy_(1, targets.long(), source.index_select(1, sources))

    def attend(
        self,
        query: Tensor,
        cache: Tensor,
        metadata: AttentionMetadata,
        *,
        group: int,
        scoring: Scoring,
        out: Tensor | None = None,
    ) -> Tensor:
        """Compute the causal attention of each token to its row, this step's tokens included.

        Args:
            query: `[T, num_heads, head_dim]`; rows may be strided.
            cache: `[num_blocks, num_kv_heads, ...]`; it holds this step's keys and values already.
            metadata: The step.
            group: KV group of the layer.
            scoring: The layer's rule for scores.
            out: `[T, num_heads, head_dim]`, contiguous: where the result goes; None allocates it.

        Returns:
            `[T, num_heads, head_dim]`, contiguous.
        """
        ...


def zeroed(*shape: int) -> Tensor:
    """Return uint8 zeros of a shape; the system provides a page when it is first written."""
    num_bytes = math.prod(shape)
    memory = mmap.mmap(-1, max(num_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Fewer misses of the address cache; a kernel without huge pages refuses.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    # NumPy's view keeps the mapping alive.
    return torch.from_numpy(np.frombuffer(memory, np.uint8, num_bytes).reshape(shape))


def _rotate(projections: Projections, rotation: Rotation, positions: Tensor) -> None:
    """Norm and rotate queries and keys in place."""
    tables = rotation.query_cos_sin, rotation.cos_sin
    norms = rotation.query_norm, rotation.key_norm
    if norms == (None, None) and tables[0] is tables[1]:
        heads, is_interleaved = projections.query_key, rotation.is_interleaved
        cpu.rope_(heads, positions, tables[1], is_interleaved=is_interleaved)
        return
    wholes = rotation.whole_queries, rotation.whole_keys
    parts = zip((projections.query, projections.key), tables, norms, wholes, strict=True)
    for heads, table, norm, whole in parts:
        if heads.shape[1] == 0:
            continue  # keys of another layer
        rotate = partial(_rotate_heads, rotation, positions, table, norm, heads.shape[2])
        if whole is None:
            rotate(heads.flatten(1))
        else:
            whole.change(heads.flatten(1), rotate)


def _rotate_heads(
    rotation: Rotation,
    positions: Tensor,
    table: Tensor,
    norm: Tensor | None,
    head_dim: int,
    rows: Tensor,
) -> None:
    """Norm and rotate the heads `[T, num_heads * head_dim]` of rows in place."""
    heads = rows.view(len(rows), -1, head_dim)
    eps, offset, is_interleaved = rotation.eps, rotation.norm_offset, rotation.is_interleaved
    cpu.rope_(heads, positions, table, norm, eps, offset, is_interleaved=is_interleaved)
