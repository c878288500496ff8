"""The CPU kernels as functions of tensors: checks are in `_core`.

An output is allocated unless the caller passes `out`, of the shape and dtype of the result.

Activations are float32 or bfloat16; the result has the dtype of the input. The bits of a row do
not depend on the other rows of a call. `tests/kernels/reference.py` holds the plain PyTorch twins.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from chairlift import _core
from chairlift.kernels.interface import (
    DeltaRules,
    ExpertRules,
    LinearLayer,
    RaggedBatch,
    ScanRules,
)
from chairlift.kernels.limits import ShapeLimits

LIMITS: Final = ShapeLimits(
    head_dims=range(_core.HEAD_DIM_STEP, _core.MAX_HEAD_DIM + 1, _core.HEAD_DIM_STEP),
    head_dims_text=f"a multiple of {_core.HEAD_DIM_STEP} up to {_core.MAX_HEAD_DIM}",
)
"""The shapes that these kernels run, as `_core` declares them."""


class Linear:
    """A linear layer whose weights are packed once, at construction."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, quantize: str | None = None
    ) -> None:
        """Pack a copy of the weights.

        Args:
            weight: `[out_features, in_features]`.
            bias: `[out_features]`, of the same dtype.
            quantize: `int8` (a scale per 128 inputs of an output) or `int4` (a scale and a minimum
                per 32 inputs of an output): inputs then have eight bits, with a scale for as
                many of a row. None keeps the dtype.

        Raises:
            TypeError: A dtype or device is wrong.
            ValueError: A shape is wrong.
        """
        self._set(_core.Linear(weight, bias, quantize), weight.dtype, quantize)

    @classmethod
    def from_blocks(
        cls, blocks: Tensor, block_type: str, bias: Tensor | None, dtype: torch.dtype
    ) -> "Linear":
        """Pack weights that are stored in the blocks of a GGUF file; their values stay the same.

        Args:
            blocks: uint8 `[out_features, bytes of a row]`.
            block_type: The name that GGUF gives the blocks, such as `Q4_K`.
            bias: float32 `[out_features]`.
            dtype: The dtype of inputs and outputs.

        Raises:
            ValueError: The type is unknown, or a row is not a whole number of blocks.
        """
        layer = cls.__new__(cls)
        layer._set(_core.Linear.from_blocks(blocks, block_type, bias), dtype, block_type)
        return layer

    def _set(self, packed: _core.Linear, dtype: torch.dtype, weight_format: str | None) -> None:
        self._packed = packed
        self.in_features = packed.in_features
        self.out_features = packed.out_features
        self.dtype = dtype
        self.weight_format = weight_format

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed weights."""
        return _core.linear_bytes(
            self.out_features, self.in_features, self.dtype.itemsize, self.weight_format
        )

    def __call__(
        self, x: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return `x W^T + b`, `[T, out_features]`.

        Args:
            x: `[T, in_features]`; rows may be strided.
            out_dtype: float32 for the logits of a bfloat16 model; else the dtype of `x`.
            out: Where the result goes.
        """
        if out is None:
            out = torch.empty(x.shape[0], self.out_features, dtype=out_dtype or self.dtype)
        self._packed.forward(x, out)
        return out


def linear(weight: Tensor, bias: Tensor | None = None, quantize: str | None = None) -> Linear:
    """Pack the weights of a layer; see `Kernels.linear`."""
    return Linear(weight, bias, quantize)


linear_from_blocks = Linear.from_blocks


class Experts:
    """A mixture of experts; see `ExpertLayers`."""

    def __init__(
        self,
        gate_up: Sequence[LinearLayer],
        down: Sequence[LinearLayer],
        rules: ExpertRules,
        choice_bias: Sequence[float] | None = None,
        factors: Sequence[float] | None = None,
    ) -> None:
        self._packed = _core.Experts(
            [_packed(layer) for layer in gate_up],
            [_packed(layer) for layer in down],
            top_k=rules.top_k,
            scores=rules.scores,
            activation=rules.activation,
            bias=choice_bias,
            min_weight_sum=rules.min_weight_sum,
            multiplier=rules.multiplier,
            gated=rules.gated,
            factors=factors,
            limit=rules.limit,
            alpha=rules.alpha,
        )
        self.num_bytes = sum(layer.num_bytes for layer in (*gate_up, *down))
        self.workspace_bytes = 0
        self.inner_dtype = torch.float32

    def __call__(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:  # noqa: ARG002, as `ExpertLayers`
        """Write what the chosen experts compute of `x`; see `ExpertLayers`."""
        self._packed.forward(x, logits, out)

    def inside(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:  # noqa: ARG002, as `SplitExpertLayers`
        """Write the numbers between both layers; see `SplitExpertLayers` and `_core.Experts`."""
        self._packed.inside(x, logits, out)

    def outside(self, x: Tensor, logits: Tensor, out: Tensor, workspace: Tensor) -> None:  # noqa: ARG002, as `SplitExpertLayers`
        """Write the weighed sums of the second layers; see `SplitExpertLayers`."""
        self._packed.outside(x, logits, out)


experts = Experts


def expert_bytes(rules: ExpertRules, hidden_size: int, dtype: torch.dtype) -> int:  # noqa: ARG001, all are the same
    """Return the bytes that a token takes inside a mixture of experts.

    Each of its experts has the input or output, what is between the layers, and the wider of both
    inputs once more, rounded.
    """
    inner = rules.intermediate_size
    wide = hidden_size + (2 + rules.gated) * inner
    rounded = max(hidden_size, inner) * torch.bfloat16.itemsize
    return rules.top_k * (wide * torch.float32.itemsize + rounded)


def _packed(layer: LinearLayer) -> _core.Linear:
    if not isinstance(layer, Linear):
        message = "experts: expected gate and up that are stored alike"
        raise TypeError(message)
    return layer._packed


def linear_bytes(
    out_features: int, in_features: int, dtype: torch.dtype, weight_format: str | None
) -> int:
    """Return the bytes of the packed weights of a layer."""
    return _core.linear_bytes(out_features, in_features, dtype.itemsize, weight_format)


def select_rows(x: Tensor, rows: Tensor, out: Tensor, multiplier: float = 1.0) -> None:
    """Write `multiplier * x[rows]`; `x` `[N, ...]`, `rows` int32 `[T]`, `out` `[T, ...]`."""
    _core.select_rows(x, rows, out, multiplier)


def add_scaled(x: Tensor, update: Tensor, multiplier: float = 1.0) -> None:
    """Add `multiplier * update` `[T, H]` to `x` in place."""
    _core.add_scaled(x, update, multiplier)


def scale(x: Tensor, multiplier: float = 1.0, soft_cap: float | None = None) -> None:
    """Multiply `x` `[T, W]` in place, then make of it `soft_cap * tanh(x / soft_cap)` if given."""
    _core.scale(x, multiplier, soft_cap)


def gate_by_sigmoid(x: Tensor, gate: Tensor) -> None:
    """Multiply `x` in place by the sigmoid of a gate; see `Kernels`. Rows may be strided."""
    _core.gate_by_sigmoid(x, gate)


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
    """Convolve each channel of `x` along the tokens of its row; see `Kernels`."""
    rows = batch.rows, batch.query_start_loc, batch.seq_lens
    _core.causal_conv(x, weight, state, *rows, out, bias=bias, gates=gates, has_silu=has_silu)


def copy_states(state: Tensor, moves: Tensor) -> None:
    """Copy rows of `state` `[rows, ...]`; int32 `moves` `[N, 2]` has the target and the source."""
    _core.copy_states(state, moves)


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
    _core.gated_delta(qkv, gate, beta_alpha, *rules, state, *rows, out)


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
    _core.selective_scan(xbc, dt, *rules, num_groups, state, *rows, out)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor | None, group_size: int, eps: float
) -> None:
    """Make `x` `x * silu(gate)`, or the RMS norm of that, group by group; see `Kernels`."""
    _core.gated_rms_norm(x, gate, weight, group_size, eps)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None, offset: float = 0.0
) -> Tensor:
    """Return `x / rms(x) * (weight + offset)` over the last axis; `x` `[T, H]`, `weight` `[H]`.

    With a `weight` `[D]` each D numbers of a row are normed apart.
    """
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype)
    _core.rms_norm(x, weight, eps, out, offset)
    return out


def add_rms_norm(
    x: Tensor,
    update: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None = None,
    offset: float = 0.0,
) -> Tensor:
    """Add `update` `[T, H]` to `x` in place, then return the norm of the sum as `rms_norm`."""
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype)
    _core.add_rms_norm(x, update, weight, eps, out, offset)
    return out


def rope_(
    x: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    norm_offset: float = 0.0,
    *,
    is_interleaved: bool = False,
) -> None:
    """Rotate `x` `[T, num_heads, head_dim]` in place, after an RMS norm if given.

    Args:
        x: Rows may be strided.
        positions: int32 `[T]`.
        cos_sin: float32 `[max_position, rotary_dim]`: cosines, then sines; numbers of a head from
            `rotary_dim` on stay.
        norm_weight: `[head_dim]` for a norm of each head, `[num_heads * head_dim]` for one of all.
        eps: Added to the mean of the squares in that norm.
        norm_offset: Added to its weight.
        is_interleaved: A number is rotated with its neighbour, else with the one half of them
            further.
    """
    _core.rope(x, positions, cos_sin, norm_weight, eps, norm_offset, is_interleaved)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None
) -> Tensor:
    """Return `(x - mean(x)) / deviation(x) * weight + bias`; `x` `[T, H]`, the others `[H]`."""
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype)
    _core.layer_norm(x, weight, bias, eps, out)
    return out


def add_layer_norm(
    x: Tensor,
    update: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """Add `update` `[T, H]` to `x` in place, then return the norm of the sum as `layer_norm`."""
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype)
    _core.add_layer_norm(x, update, weight, bias, eps, out)
    return out


def activate(x: Tensor, activation: str, out: Tensor | None = None) -> Tensor:
    """Return an activation of `x` `[T, I]`; see `Kernels`."""
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype)
    _core.activate(x, activation, out)
    return out


def activate_mul(
    gate_up: Tensor, activation: str, out: Tensor | None = None, up: Tensor | None = None
) -> Tensor:
    """Return `activation(gate) * up`, `[T, I]`; `gate_up` `[T, 2 I]` holds both side by side.

    Where there is `up` `[T, I]`, `gate_up` `[T, I]` holds the gates alone.
    """
    if out is None:
        width = gate_up.shape[1] // 2 if up is None else up.shape[1]
        out = torch.empty(gate_up.shape[0], width, dtype=gate_up.dtype)
    _core.activate_mul(gate_up, activation, out, up)
    return out


def silu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `silu(gate) * up`; see `activate_mul`."""
    return activate_mul(gate_up, "silu", out)
