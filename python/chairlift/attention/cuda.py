"""Attention on a GPU, by the kernels of `cuda/`.

A layer's cache is `[2, num_blocks, num_kv_heads, block_size, head_dim]`: keys, then values, so that
what one head has in one block is one run of memory, and a block of all layers moves in one launch.
Where layers differ in size, they share one plane, and are views of parts of its blocks.
"""

import math
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.attention.backend import AttentionBackend, Projections, Rotation, Scoring
from chairlift.attention.metadata import AttentionMetadata
from chairlift.kernels import Kernels
from chairlift.kernels.cuda import ops


class WorkLimits(NamedTuple):
    """Sizes of what the attention of the largest step needs."""

    split_len: int
    """Tokens of a split of a long row: a shorter one is more to merge, a longer one less to share
    out."""
    max_splits: int
    """Room for splits; a row that does not fit is computed in tiles."""
    max_tiles: int
    """Tiles of the smaller size that any step needs, at most."""

    @classmethod
    def of(
        cls,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_context_len: int,
        num_pool_tokens: int,
        num_kv_heads: int,
        queries_per_kv_head: int,
    ) -> "WorkLimits":
        """Return the limits of a server.

        Args:
            max_num_seqs: Rows of a step.
            max_num_batched_tokens: Tokens of a step.
            max_context_len: Tokens of a row.
            num_pool_tokens: Tokens of all blocks; rows that share blocks may see more.
            num_kv_heads: KV heads of a layer.
            queries_per_kv_head: Query heads that read one KV head of a layer.
        """
        of_long_row = max(_MANY_SPLITS, -(-max_context_len // _SPLIT_LEN))
        max_splits = max_num_seqs * min(-(-max_context_len // _MIN_SPLIT), of_long_row)
        likely_splits = num_pool_tokens // _MIN_SPLIT + 2 * max_num_seqs
        tiles = -(-max_num_batched_tokens * queries_per_kv_head // min(TILE_ROWS)) + max_num_seqs
        return cls(_SPLIT_LEN, num_kv_heads * min(max_splits, likely_splits), num_kv_heads * tiles)

    def at_least(self, other: "WorkLimits") -> "WorkLimits":
        """Return the limits that hold the work of both."""
        splits, tiles = max(self.max_splits, other.max_splits), max(self.max_tiles, other.max_tiles)
        return WorkLimits(self.split_len, splits, tiles)


TILE_ROWS = (64, 128)
"""Packed rows of a prefill tile: the larger reads less, the smaller can be shared out earlier."""

_SPLIT_LEN = 512
_MIN_SPLIT = 256
"""Tokens of a split of a row with at most `_MANY_SPLITS` of them; longer rows have splits of twice
the size, up to `_SPLIT_LEN`."""
_MANY_SPLITS = 16
_BLOCK_SIZE = 16
"""Tokens of a block."""


class CudaBackend(AttentionBackend):
    """Keys and values where the CUDA kernels read them.

    Attributes:
        device: Where tensors are: a GPU, or the CPU under emulation.
    """

    layout = "cuda-k-v-16"
    kernels: Kernels = ops

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._split_len = 0
        self._workspace = torch.empty(0)
        self._counters = torch.empty(0)

    def reserve(
        self, limits: WorkLimits, max_num_seqs: int, num_kv_heads: int, head_dim: int
    ) -> None:
        """Allocate for partial results once and for all; the layers of a step share it.

        Args:
            limits: The limits that hold the work of every KV group.
            max_num_seqs: Rows of a step; the block tables have one line more.
            num_kv_heads: The most KV heads of a layer.
            head_dim: The largest head of a layer.
        """
        self._split_len = limits.split_len
        self._workspace = torch.empty(
            limits.max_splits,
            ops.MAX_DECODE_ROWS,
            ops.partial_width(head_dim),
            dtype=torch.float32,
            device=self.device,
        )
        self._counters = torch.zeros(
            (max_num_seqs + 1) * num_kv_heads, dtype=torch.int32, device=self.device
        )

    def allocate(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return `[num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]` of zeros."""
        shape = (num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim)
        return torch.zeros(shape, dtype=self.stored_dtype(dtype), device=self.device)

    def allocate_mixed(self, num_blocks: int, block_bytes: int, dtype: torch.dtype) -> Tensor:
        """Return `[1, 2, num_blocks, numbers]` of zeros: keys of all layers, then values."""
        stored = self.stored_dtype(dtype)
        shape = (1, 2, num_blocks, block_bytes // (2 * stored.itemsize))
        return torch.zeros(shape, dtype=stored, device=self.device)

    def mixed_block_bytes(self, num_bytes: int, head_bytes: Collection[int]) -> int:
        """Return the bytes with room for a whole number of heads of each layer."""
        step = math.lcm(*head_bytes)
        return -(-num_bytes // step) * step

    def layer_of_mixed(self, pool: Tensor, first: int, num_bytes: int, num_kv_heads: int) -> Tensor:
        """Return the cache of a layer, `[2, num_blocks, num_kv_heads, block_size, head_dim]`.

        It is a strided view of `pool`, in which the blocks of a layer are not adjacent.
        """
        size = 2 * pool.dtype.itemsize
        numbers = pool[0, :, :, first // size : (first + num_bytes) // size]
        return numbers.view(2, numbers.shape[1], num_kv_heads, _BLOCK_SIZE, -1)

    def rotate_queries(
        self, projections: Projections, rotation: Rotation | None, metadata: AttentionMetadata
    ) -> None:
        """Norm and rotate queries in place by one kernel; see `AttentionBackend.rotate_queries`."""
        if rotation is None:
            return
        if (weight := rotation.query_norm) is not None and len(weight) > projections.query.shape[2]:
            rotation = _norm_all_heads(projections, rotation)
        query, kv_dtype = projections.query, self.stored_dtype(projections.query.dtype)
        ops.rotate_queries(
            query,
            metadata.positions,
            kv_dtype,
            cos_sin=rotation.query_cos_sin,
            norm=rotation.query_norm,
            eps=rotation.eps,
            norm_offset=rotation.norm_offset,
            is_interleaved=rotation.is_interleaved,
        )

    def rotate_and_write(
        self,
        projections: Projections,
        rotation: Rotation | None,
        cache: Tensor,
        metadata: AttentionMetadata,
        slot_mapping: Tensor,
    ) -> None:
        """Write rotated keys to the cache alone; see `AttentionBackend.rotate_and_write`.

        A norm over all heads is a kernel of its own; one kernel does everything else.
        """
        query_key, value = projections.query_key, projections.value
        if rotation is None:
            ops.kv_write(query_key, value, cache, slot_mapping, metadata.positions)
            return
        if (weight := rotation.query_norm) is not None and len(weight) > query_key.shape[2]:
            rotation = _norm_all_heads(projections, rotation)
        ops.kv_write(
            query_key,
            value,
            cache,
            slot_mapping,
            metadata.positions,
            query_cos_sin=rotation.query_cos_sin,
            key_cos_sin=rotation.cos_sin,
            query_norm=rotation.query_norm,
            key_norm=rotation.key_norm,
            eps=rotation.eps,
            norm_offset=rotation.norm_offset,
            is_interleaved=rotation.is_interleaved,
        )

    def write(
        self, cache: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor, block_size: int
    ) -> None:
        block, offset = slot_mapping.long() // block_size, slot_mapping.long() % block_size
        cache[0][block, :, offset] = key
        cache[1][block, :, offset] = value

    def copy_blocks(self, destination: Tensor, source: Tensor, pairs: Tensor) -> None:
        """Copy whole blocks by one launch; see `AttentionBackend.copy_blocks`.

        One of the pools may be pinned memory of the host.
        """
        ops.copy_blocks(destination, source, pairs.to(self.device, non_blocking=True))

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
        if out is None:
            out = torch.empty_like(query, memory_format=torch.contiguous_format)
        work, table = metadata.work[group], metadata.block_tables[group]
        if work.splits is not None:
            ops.paged_decode(
                out,
                query,
                cache,
                table,
                work=work.splits,
                num_work=work.num_splits,
                num_rows=work.split_rows,
                workspace=self._workspace,
                counters=self._counters,
                split_len=self._split_len,
                window=scoring.window or 0,
                scale=scoring.scale,
                soft_cap=scoring.soft_cap or 0.0,
                sinks=scoring.sinks,
            )
        if len(work.tiles):
            ops.paged_prefill(
                out,
                query,
                cache,
                table,
                rows=metadata.rows,
                query_start_loc=metadata.query_start_loc,
                seq_lens=metadata.seq_lens,
                tiles=work.tiles,
                tile_rows=work.tile_rows,
                window=scoring.window or 0,
                scale=scoring.scale,
                soft_cap=scoring.soft_cap or 0.0,
                sinks=scoring.sinks,
            )
        return out


def _norm_all_heads(projections: Projections, rotation: Rotation) -> Rotation:
    """Norm all heads of queries and keys together, in place; return the rotation without norms."""
    norms = rotation.query_norm, rotation.key_norm
    wholes = rotation.whole_queries, rotation.whole_keys
    parts = zip((projections.query, projections.key), norms, wholes, strict=True)
    for heads, norm, whole in parts:
        if heads.shape[1] == 0:
            continue  # keys of another layer
        assert norm is not None, "of both"
        change = partial(_norm_rows, rotation, norm)
        if whole is None:
            change(heads.flatten(1))
        else:
            whole.change(heads.flatten(1), change)
    return rotation._replace(query_norm=None, key_norm=None)


def _norm_rows(rotation: Rotation, weight: Tensor, rows: Tensor) -> None:
    ops.rms_norm(rows, weight, rotation.eps, out=rows, offset=rotation.norm_offset)
