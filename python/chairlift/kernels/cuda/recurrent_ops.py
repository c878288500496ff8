"""The operations on recurrent states; see `ops.py`.

The states of a row are one run of memory, in which each layer has its own: a state is strided.
"""

from ctypes import c_float, c_int, c_longlong
from typing import Final

from torch import Tensor

from chairlift.kernels.cuda.launch import launcher_of
from chairlift.kernels.cuda.operation import operation
from chairlift.kernels.cuda.row_ops import VECTOR_BYTES
from chairlift.kernels.cuda.sources import STATE_KEYS, kernel_name
from chairlift.kernels.interface import DeltaRules, RaggedBatch, ScanRules

_COPIED: Final = 4 * 256 * 16
"""Numbers that a block of `copy_states` copies."""
_TOKENS: Final = 8
"""Tokens that a block stages at a time."""
_MAX_THREADS: Final = {128: 768, 256: 512}
"""Threads of a block that holds so many keys in registers."""
_THREADS_OF_COLUMN: Final = 4


def state_keys(num_keys: int) -> int:
    """Return the smallest instantiation that has so many keys; the largest where none has."""
    return next((keys for keys in STATE_KEYS if num_keys <= keys), STATE_KEYS[-1])


def holds_state(num_keys: int, num_values: int) -> bool:
    """Return whether the registers of a block hold a state `[num_keys, num_values]`."""
    keys = state_keys(num_keys)
    return num_keys <= keys and _THREADS_OF_COLUMN * num_values <= _MAX_THREADS[keys]


def causal_conv(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    batch: RaggedBatch,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    gates: tuple[Tensor, Tensor] | None = None,
    has_silu: bool = False,
) -> None:
    """Convolve each channel of `x` `[T, C]` along the tokens of its row; see `Kernels`."""
    rows = batch.rows, batch.query_start_loc, batch.seq_lens
    causal_conv_out(out, state, x, weight, *rows, bias, *(gates or (None, None)), has_silu)


def gated_delta(
    qkv: Tensor,
    gate: Tensor,
    beta_alpha: Tensor,
    rules: DeltaRules,
    state: Tensor,
    batch: RaggedBatch,
    out: Tensor,
) -> None:
    """Compute the gated delta rule of each head along the tokens of its row; see `Kernels`."""
    rows = batch.rows, batch.query_start_loc, batch.seq_lens
    gated_delta_out(out, state, qkv, gate, beta_alpha, *rows, *rules)


def selective_scan(
    xbc: Tensor,
    dt: Tensor,
    rules: ScanRules,
    num_groups: int,
    state: Tensor,
    batch: RaggedBatch,
    out: Tensor,
) -> None:
    """Compute the selective scan of each head along the tokens of its row; see `Kernels`."""
    rows = batch.rows, batch.query_start_loc, batch.seq_lens
    selective_scan_out(out, state, xbc, dt, *rows, *rules, num_groups)


@operation("copy_states", "pool")
def copy_states(pool: Tensor, moves: Tensor) -> None:
    """Copy the states of whole rows.

    Args:
        pool: float32 `[rows, numbers]`: all states of a row.
        moves: int32 `[N, 2]`, on the device: the target row and the source row of each move. No row
            is the target of two moves, and no target is a source.
    """
    size = pool.shape[1]
    launcher_of(pool).launch(
        kernel_name("copy_states"),
        (moves.shape[0], -(-size // _COPIED), 1),
        256,
        0,
        pool,
        moves,
        c_int(size),
    )


@operation("causal_conv", "out", "state")
def causal_conv_out(
    out: Tensor,
    state: Tensor,
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    bias: Tensor | None,
    gate_in: Tensor | None,
    gate_out: Tensor | None,
    has_silu: bool,
) -> None:
    """Write the convolution of the tokens of a step; tokens without a row stay as they are.

    Args:
        out: `[T, C]`, as the next ones; rows may be strided.
        state: float32 `[., K - 1, C]`; rows without tokens are neither read nor written.
        x: The inputs.
        weight: float32 `[K, C]`.
        rows: int32 `[R]`.
        query_start_loc: int32 `[R + 1]`.
        seq_lens: int32 `[R]`.
        bias: float32 `[C]`.
        gate_in: Factors of inputs.
        gate_out: Factors of outputs.
        has_silu: Whether an output `y` becomes `silu(y)`, before its factor.
    """
    num_tokens, channels = x.shape
    per_block = 128 * VECTOR_BYTES // x.itemsize
    strides = (0 if part is None else part.stride(0) for part in (out, x, gate_in, gate_out, state))
    launcher_of(x).launch(
        kernel_name("causal_conv", x.dtype),
        (num_tokens, -(-channels // per_block), 1),
        128,
        0,
        out,
        x,
        gate_in,
        gate_out,
        weight,
        bias,
        state,
        rows,
        query_start_loc,
        seq_lens,
        *map(c_longlong, strides),
        c_int(rows.shape[0]),
        c_int(state.shape[1]),
        c_int(channels),
        c_int(has_silu),
    )


@operation("gated_delta", "out", "state")
def gated_delta_out(
    out: Tensor,
    state: Tensor,
    qkv: Tensor,
    gate: Tensor,
    beta_alpha: Tensor,
    rows: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    max_beta: float,
    interleaved_heads: bool,
) -> None:
    """Write the gated delta rule of the tokens of a step; see `causal_conv_out` and `DeltaRules`.

    Args:
        out: `[T, num_value_heads * value_dim]`; rows may be strided, as of the next ones.
        state: float32 `[., num_value_heads, key_dim, value_dim]`.
        qkv: `[T, ...]`: queries, keys and values of all heads.
        gate: `[T, num_value_heads * value_dim]`.
        beta_alpha: `[T, 2 * num_value_heads]`.
        rows: int32 `[R]`.
        query_start_loc: int32 `[R + 1]`.
        seq_lens: int32 `[R]`.
        rate: float32 `[num_value_heads]`.
        dt_bias: float32 `[num_value_heads]`.
        norm_weight: float32 `[value_dim]`.
        eps: Added to the mean of the squares in the norm.
        max_beta: The largest share of a correction that is made.
        interleaved_heads: Which key head a value head has.
    """
    _, num_heads, key_dim, value_dim = state.shape
    num_key_heads = (qkv.shape[1] - num_heads * value_dim) // (2 * key_dim)
    keys = state_keys(key_dim)
    launcher_of(qkv).launch(
        kernel_name("gated_delta", qkv.dtype, keys),
        (rows.shape[0], num_heads, 1),
        _THREADS_OF_COLUMN * value_dim,
        staged_bytes(keys, value_dim),
        out,
        qkv,
        gate,
        beta_alpha,
        rate,
        dt_bias,
        norm_weight,
        state,
        rows,
        query_start_loc,
        seq_lens,
        *(c_longlong(part.stride(0)) for part in (out, qkv, gate, beta_alpha, state)),
        c_int(num_key_heads),
        c_int(key_dim),
        c_int(value_dim),
        c_float(eps),
        c_float(max_beta),
        c_int(interleaved_heads),
    )


@operation("selective_scan", "out", "state")
def selective_scan_out(
    out: Tensor,
    state: Tensor,
    xbc: Tensor,
    dt: Tensor,
    rows: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    num_groups: int,
) -> None:
    """Write the selective scan of the tokens of a step; see `causal_conv_out` and `ScanRules`.

    Args:
        out: `[T, num_heads * head_dim]`; rows may be strided, as of the next ones.
        state: float32 `[., num_heads, state_dim, head_dim]`.
        xbc: `[T, ...]`: x of all heads, B and C of all groups.
        dt: `[T, num_heads]`.
        rows: int32 `[R]`.
        query_start_loc: int32 `[R + 1]`.
        seq_lens: int32 `[R]`.
        rate: float32 `[num_heads]`.
        dt_bias: float32 `[num_heads]`.
        skip: float32 `[num_heads]`.
        num_groups: Heads of a group share B and C.
    """
    _, num_heads, state_dim, head_dim = state.shape
    keys = state_keys(state_dim)
    launcher_of(xbc).launch(
        kernel_name("selective_scan", xbc.dtype, keys),
        (rows.shape[0], num_heads, 1),
        _THREADS_OF_COLUMN * head_dim,
        staged_bytes(keys, head_dim),
        out,
        xbc,
        dt,
        rate,
        dt_bias,
        skip,
        state,
        rows,
        query_start_loc,
        seq_lens,
        *(c_longlong(part.stride(0)) for part in (out, xbc, dt, state)),
        c_int(num_groups),
        c_int(state_dim),
        c_int(head_dim),
    )


def staged_bytes(keys: int, num_values: int) -> int:
    """Return the shared memory of a block with a state of so many values (`StagedTokens`)."""
    return 4 * _TOKENS * (2 * keys + num_values + 2)


@operation("gated_norm", "x")
def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor | None, group_size: int, eps: float
) -> None:
    """Make `x` `[T, W]` `x * silu(gate)`, or the RMS norm of that, group by group; see `Kernels`.

    Args:
        x: Rows may be strided.
        gate: `[T, W]`; rows may be strided.
        weight: float32 `[W]`; None norms nothing.
        group_size: Numbers that are normed together.
        eps: Added to the mean of the squares.
    """
    launcher_of(x).launch(
        kernel_name("gated_norm", x.dtype),
        (x.shape[0], x.shape[1] // group_size, 1),
        256,
        32,
        x,
        gate,
        weight,
        c_longlong(x.stride(0)),
        c_longlong(gate.stride(0)),
        c_int(group_size),
        c_float(eps),
    )
