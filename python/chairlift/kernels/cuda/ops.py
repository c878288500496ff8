"""Each kernel as an operation on tensors, and the `Kernels` of a GPU that a model is given.

An operation does not repeat the checks of its kernel; it chooses grid, block and shared memory, and
calls the launcher of its tensors' device. All operations write to tensors of the caller: which
arguments they write is all that `operation` has to know.
"""

from ctypes import c_float, c_int, c_longlong
from typing import Final

import torch
from torch import Tensor

from chairlift.kernels.cuda.experts import expert_bytes as expert_bytes
from chairlift.kernels.cuda.experts import experts as experts
from chairlift.kernels.cuda.launch import launcher_of
from chairlift.kernels.cuda.linear import Linear as Linear
from chairlift.kernels.cuda.linear import linear as linear
from chairlift.kernels.cuda.operation import operation
from chairlift.kernels.cuda.recurrent_ops import causal_conv as causal_conv
from chairlift.kernels.cuda.recurrent_ops import copy_states as copy_states
from chairlift.kernels.cuda.recurrent_ops import gated_delta as gated_delta
from chairlift.kernels.cuda.recurrent_ops import gated_rms_norm as gated_rms_norm
from chairlift.kernels.cuda.recurrent_ops import selective_scan as selective_scan
from chairlift.kernels.cuda.row_ops import activate as activate
from chairlift.kernels.cuda.row_ops import activate_mul as activate_mul
from chairlift.kernels.cuda.row_ops import add_layer_norm as add_layer_norm
from chairlift.kernels.cuda.row_ops import add_rms_norm as add_rms_norm
from chairlift.kernels.cuda.row_ops import add_scaled as add_scaled
from chairlift.kernels.cuda.row_ops import gate_by_sigmoid as gate_by_sigmoid
from chairlift.kernels.cuda.row_ops import layer_norm as layer_norm
from chairlift.kernels.cuda.row_ops import rms_norm as rms_norm
from chairlift.kernels.cuda.row_ops import scale as scale
from chairlift.kernels.cuda.row_ops import select_rows as select_rows
from chairlift.kernels.cuda.row_ops import silu_mul as silu_mul
from chairlift.kernels.cuda.sources import DECODE_ROWS, kernel_name

MAX_DECODE_ROWS: Final = max(DECODE_ROWS)
"""Packed rows (queries times heads of a KV head) that a decode tile has room for."""

_BUS_GRID: Final = 64
"""Blocks of threads that copy across the bus: 512 KiB under way, several times what a bus needs."""


linear_from_blocks: Final = None
"""No kernel of a GPU reads the blocks of GGUF files: they are widened to the dtype."""


def linear_bytes(
    out_features: int,
    in_features: int,
    dtype: torch.dtype,
    weight_format: str | None,  # noqa: ARG001, none is
) -> int:
    """Return the bytes of the weights of a layer."""
    return out_features * in_features * dtype.itemsize


@operation("kv_write", "query_key", "cache")
def kv_write(
    query_key: Tensor,
    value: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    positions: Tensor,
    query_cos_sin: Tensor | None = None,
    key_cos_sin: Tensor | None = None,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 1e-6,
    norm_offset: float = 0.0,
    is_interleaved: bool = False,
) -> None:
    """Norm and rotate queries in place; write normed and rotated keys, and values, to the cache.

    Args:
        query_key: `[T, num_heads + num_kv_heads, head_dim]`; its keys stay as they were, and tokens
            may be strided.
        value: `[T, num_kv_heads, head_dim]`, likewise.
        cache: `[2, num_blocks, num_kv_heads, block_size, head_dim]`, of a layer; its first two axes
            may be strided.
        slot_mapping: int32 `[T]`; negative is padding.
        positions: int32 `[T]`.
        query_cos_sin: float32 `[max_position, rotary_dim]`: numbers of a head from there on stay;
            `rotary_dim` is a multiple of `rotary_step`. None rotates nothing.
        key_cos_sin: The same of keys; may be the same tensor.
        query_norm: `[head_dim]`, or None.
        key_norm: `[head_dim]`, or None.
        eps: Added to the mean of the squares in the norms.
        norm_offset: Added to their weights.
        is_interleaved: A number is rotated with its neighbour, else with the one half of them
            further.
    """
    num_kv_heads, head_dim = cache.shape[2], cache.shape[4]
    num_heads = query_key.shape[1] - num_kv_heads
    rotary_dim = 0 if key_cos_sin is None else key_cos_sin.shape[1]
    launcher_of(query_key).launch(
        kernel_name("kv_write", query_key.dtype, cache.dtype, head_dim),
        (query_key.shape[0], -(-(num_heads + 2 * num_kv_heads) // 4), 1),
        128,
        0,
        query_key,
        value,
        cache,
        slot_mapping,
        positions,
        query_cos_sin,
        key_cos_sin,
        query_norm,
        key_norm,
        None,
        c_longlong(query_key.stride(0)),
        c_longlong(value.stride(0)),
        c_int(num_heads),
        *_cache_arguments(cache),
        c_float(eps),
        c_float(norm_offset),
        c_int(rotary_dim),
        c_int(is_interleaved),
    )


@operation("rotate_queries", "query")
def rotate_queries(
    query: Tensor,
    positions: Tensor,
    kv_dtype: torch.dtype,
    cos_sin: Tensor,
    norm: Tensor | None = None,
    eps: float = 1e-6,
    norm_offset: float = 0.0,
    is_interleaved: bool = False,
) -> None:
    """Norm and rotate queries in place, as `kv_write` does.

    Args:
        query: `[T, num_heads, head_dim]`; tokens may be strided.
        positions: int32 `[T]`.
        kv_dtype: The dtype of the cache; it decides the instantiation and changes no bits.
        cos_sin: float32 `[max_position, rotary_dim]`; see `query_cos_sin` of `kv_write`.
        norm: `[head_dim]`, or None.
        eps: Added to the mean of the squares in the norm.
        norm_offset: Added to its weights.
        is_interleaved: See `kv_write`.
    """
    num_tokens, num_heads, head_dim = query.shape
    launcher_of(query).launch(
        kernel_name("kv_write", query.dtype, kv_dtype, head_dim),
        (num_tokens, -(-num_heads // 4), 1),
        128,
        0,
        query,
        None,
        None,
        None,
        positions,
        cos_sin,
        None,
        norm,
        None,
        None,
        c_longlong(query.stride(0)),
        c_longlong(0),
        c_int(num_heads),
        c_int(0),
        c_int(0),
        c_int(0),
        c_float(eps),
        c_float(norm_offset),
        c_int(cos_sin.shape[1]),
        c_int(is_interleaved),
    )


def decode_tile_rows(num_rows: int) -> int:
    """Return the packed rows of the `paged_decode` that computes so many of a row."""
    return next(rows for rows in DECODE_ROWS if rows >= num_rows)


@operation("paged_decode", "out", "workspace", "counters")
def paged_decode(
    out: Tensor,
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    work: Tensor,
    num_work: Tensor,
    num_rows: int,
    workspace: Tensor,
    counters: Tensor,
    split_len: int,
    window: int,
    scale: float,
    soft_cap: float,
    sinks: Tensor | None = None,
) -> None:
    """Compute the attention of rows with few queries, split by split.

    See `_core.attention_work`.

    Args:
        out: `[T, num_heads, head_dim]`; rows without work stay unchanged.
        query: The same shape; tokens may be strided.
        cache: `[2, num_blocks, num_kv_heads, block_size, head_dim]`, of a layer.
        block_table: int32 `[lines, max_blocks_per_row]`.
        work: int32 `[., 8]`.
        num_work: int32 `[1]`: how many of `work` there are.
        num_rows: The most packed rows of a row in `work`.
        workspace: float32 `[., workspace_rows, partial_width(head_dim)]`, or wider: partial
            results.
        counters: int32, at least `lines * num_kv_heads`: zero before and after.
        split_len: Tokens of a split of a long row.
        window: 0 sees all.
        scale: Factor of the scores.
        soft_cap: 0 is none.
        sinks: float32 `[num_heads]`: the score of one more key of each head, whose value is zero.
    """
    head_dim = query.shape[2]
    tile_rows = decode_tile_rows(num_rows)
    name = kernel_name("paged_decode", query.dtype, cache.dtype, head_dim, tile_rows)
    threads, shared_bytes = decode_block(head_dim, tile_rows)
    num_parts = attention_parts(head_dim)
    launcher = launcher_of(query)
    launcher.launch(
        name,
        (-(-launcher.num_resident(name, threads, shared_bytes) // num_parts), num_parts, 1),
        threads,
        shared_bytes,
        out,
        query,
        cache,
        block_table,
        work,
        num_work,
        workspace,
        counters,
        sinks,
        None,
        c_longlong(out.stride(0)),
        c_longlong(query.stride(0)),
        c_int(query.shape[1]),
        *_cache_arguments(cache),
        c_int(block_table.shape[1]),
        c_int(split_len),
        c_int(window),
        c_int(workspace.shape[1]),
        c_float(scale),
        c_float(soft_cap),
    )


@operation("paged_prefill", "out")
def paged_prefill(
    out: Tensor,
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    rows: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    tiles: Tensor,
    tile_rows: int,
    window: int,
    scale: float,
    soft_cap: float,
    sinks: Tensor | None = None,
) -> None:
    """Compute the attention of rows with many queries, tile by tile.

    Args:
        out: `[T, num_heads, head_dim]`; rows without tiles stay unchanged.
        query: The same shape; tokens may be strided.
        cache: `[2, num_blocks, num_kv_heads, block_size, head_dim]`, of a layer.
        block_table: int32 `[max_num_seqs, max_blocks_per_row]`, of the layer's KV group.
        rows: int32 `[R]`: lines of the block table.
        query_start_loc: int32 `[R + 1]`: where each row's queries start.
        seq_lens: int32 `[R]`.
        tiles: int32 `[num_tiles, 3]`.
        tile_rows: Packed rows of a tile; see `sources.tile_rows`.
        window: 0 sees all.
        scale: Factor of the scores.
        soft_cap: 0 is none.
        sinks: float32 `[num_heads]`: the score of one more key of each head, whose value is zero.
    """
    head_dim = query.shape[2]
    launcher_of(query).launch(
        kernel_name("paged_prefill", query.dtype, cache.dtype, head_dim, tile_rows),
        (tiles.shape[0], attention_parts(head_dim), 1),
        128,
        prefill_shared_bytes(head_dim, tile_rows, cache.itemsize),
        out,
        query,
        cache,
        block_table,
        rows,
        query_start_loc,
        seq_lens,
        tiles,
        sinks,
        None,
        c_longlong(out.stride(0)),
        c_longlong(query.stride(0)),
        c_int(query.shape[1]),
        *_cache_arguments(cache),
        c_int(block_table.shape[1]),
        c_int(window),
        c_float(scale),
        c_float(soft_cap),
    )


@operation("copy_blocks", "destination")
def copy_blocks(destination: Tensor, source: Tensor, pairs: Tensor) -> None:
    """Copy blocks of all layers from one pool to another, or within one.

    Args:
        destination: `[num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]`.
        source: The same but for the number of blocks; one of both may be pinned host memory.
        pairs: int32 `[., 2]`, on the device: source and destination; none is both within one pool.
    """
    num_pairs, num_parts = pairs.shape[0], 2 * destination.shape[0]
    num_items = num_pairs * num_parts
    crosses_bus = destination.data_ptr() != source.data_ptr()
    launcher_of(pairs).launch(
        kernel_name("copy_blocks"),
        (min(num_items, _BUS_GRID) if crosses_bus else num_items, 1, 1),
        128,
        0,
        destination,
        source,
        pairs,
        c_int(num_pairs),
        c_int(num_parts),
        c_longlong(destination.stride(1) * destination.itemsize),
        c_longlong(source.stride(1) * source.itemsize),
        c_int(destination.stride(2) * destination.itemsize),
    )


def _cache_arguments(cache: Tensor) -> tuple[c_int, c_int, c_int]:
    """Return KV heads and blocks of a cache, and the heads that its blocks lie apart."""
    return c_int(cache.shape[2]), c_int(cache.shape[1]), c_int(cache.stride(1) // cache.stride(2))


def rotary_step(head_dim: int) -> int:
    """Return what the rotated numbers of a head are a multiple of (`RotaryPairs`)."""
    return 2 if head_dim <= 64 else 4 if head_dim <= 128 else 8 if head_dim <= 256 else 16


def attention_parts(head_dim: int) -> int:
    """Return the parts of a result that blocks of threads compute apart (`kColumnsOfPart`)."""
    return max(1, head_dim // 256)


def decode_block(head_dim: int, tile_rows: int) -> tuple[int, int]:
    """Return threads and bytes of shared memory of `paged_decode` (`DecodeShape`)."""
    warps, stages = {64: (4, 3), 96: (4, 3), 128: (4, 2), 256: (2, 2), 512: (1, 2)}[head_dim]
    slot = 32 * (head_dim + head_dim // attention_parts(head_dim))
    queries = 2 * tile_rows * head_dim if head_dim > 128 else 0
    return 32 * warps, warps * stages * slot + queries + 8 * tile_rows * warps + 16


def partial_width(head_dim: int) -> int:
    """Return the numbers that `paged_decode` keeps of a row of a split: o, m, d and padding."""
    return head_dim + 4


def prefill_shared_bytes(head_dim: int, tile_rows: int, kv_bytes: int) -> int:
    """Return the shared memory of `paged_prefill` for keys of so many bytes a number."""
    tokens = 16 if head_dim > 256 else 32 if head_dim > 128 else 64
    key_and_value = head_dim + head_dim // attention_parts(head_dim)
    return tile_rows * head_dim * 2 + tokens * key_and_value * kv_bytes
