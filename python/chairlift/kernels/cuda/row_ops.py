"""The operations on the rows of a step, each of which is computed apart; see `ops.py`.

Norms and activations are kernels, the rest is PyTorch: elementwise, so that the bits of a row do
not depend on the others, and in place, so that a graph captures it.
"""

from ctypes import c_float, c_int, c_longlong
from typing import Final

import torch
from torch import Tensor

from chairlift.kernels.cuda.launch import launcher_of
from chairlift.kernels.cuda.operation import operation
from chairlift.kernels.cuda.sources import kernel_name

VECTOR_BYTES: Final = 16
"""What a thread reads at once: sizes and strides of rows are multiples of it."""
NORM_BYTES: Final = 64
"""Shared memory of `norm` beside what is normed."""
ACTIVATIONS: Final = ("silu", "gelu", "gelu_tanh", "relu2", "sigmoid")
"""Activations in the order of the numbers by which `activate` knows them."""


def select_rows(x: Tensor, rows: Tensor, out: Tensor, multiplier: float = 1.0) -> None:
    """Write `multiplier * x[rows]`; `x` `[N, ...]`, `rows` int32 `[T]`, `out` `[T, ...]`."""
    torch.index_select(x, 0, rows, out=out)
    if multiplier != 1.0:
        out.mul_(multiplier)


def add_scaled(x: Tensor, update: Tensor, multiplier: float = 1.0) -> None:
    """Add `multiplier * update` `[T, H]` to `x` in place."""
    x.add_(update, alpha=multiplier)


def scale(x: Tensor, multiplier: float = 1.0, soft_cap: float | None = None) -> None:
    """Multiply `x` `[T, W]` in place, then make of it `soft_cap * tanh(x / soft_cap)` if given."""
    x.mul_(multiplier)
    if soft_cap is not None:
        x.div_(soft_cap).tanh_().mul_(soft_cap)


def gate_by_sigmoid(x: Tensor, gate: Tensor) -> None:
    """Multiply `x` `[T, W]` in place by the sigmoid of a gate; see `Kernels`."""
    if gate.dtype == x.dtype:
        activate_out(x, gate, x, ACTIVATIONS.index("sigmoid"))
    else:
        # A number of each row, in float32: few numbers, each computed apart from the others.
        x.mul_(gate.sigmoid())


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None, offset: float = 0.0
) -> Tensor:
    """Return `x / rms(x) * (weight + offset)` over the last axis; `x` `[T, H]`; see `Kernels`."""
    out = _like(x) if out is None else out
    norm_out(out, x, None, weight, None, eps, offset, is_layer_norm=False)
    return out


def add_rms_norm(
    x: Tensor,
    update: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None = None,
    offset: float = 0.0,
) -> Tensor:
    """Add `update` `[T, H]` to `x` in place, then return the norm of the sum."""
    out = _like(x) if out is None else out
    norm_out(out, x, update, weight, None, eps, offset, is_layer_norm=False)
    return out


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None
) -> Tensor:
    """Return `(x - mean(x)) / deviation(x) * weight + bias`; `x` `[T, H]`."""
    out = _like(x) if out is None else out
    norm_out(out, x, None, weight, bias, eps, 0.0, is_layer_norm=True)
    return out


def add_layer_norm(
    x: Tensor,
    update: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """Add `update` `[T, H]` to `x` in place, then return the norm of the sum."""
    out = _like(x) if out is None else out
    norm_out(out, x, update, weight, bias, eps, 0.0, is_layer_norm=True)
    return out


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def activate(x: Tensor, activation: str, out: Tensor | None = None) -> Tensor:
    """Return an activation of `x` `[T, I]`; see `Kernels`."""
    out = _like(x) if out is None else out
    activate_out(out, x, None, ACTIVATIONS.index(activation))
    return out


def activate_mul(
    gate_up: Tensor, activation: str, out: Tensor | None = None, up: Tensor | None = None
) -> Tensor:
    """Return `activation(gate) * up`, `[T, I]`; see `Kernels`."""
    gate = gate_up
    if up is None:
        gate, up = gate_up.chunk(2, dim=1)
    out = up.new_empty(up.shape) if out is None else out
    activate_out(out, gate, up, ACTIVATIONS.index(activation))
    return out


def silu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `silu(gate) * up`; see `activate_mul`."""
    return activate_mul(gate_up, "silu", out)


@operation("norm", "out", "x")
def norm_out(
    out: Tensor,
    x: Tensor,
    update: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    offset: float,
    is_layer_norm: bool,
) -> None:
    """Add `update` to `x` in place if given, and write the norm; rows may be strided.

    Args:
        out: `[T, H]`; may be `x`.
        x: `[T, H]`.
        update: `[T, H]`.
        weight: `[H]`; with `[D]` each D numbers of a row are a norm of their own.
        bias: `[H]` or `[D]`, like the weight.
        eps: Added to the mean of the squares.
        offset: Added to the weight.
        is_layer_norm: Whether the mean is subtracted first.
    """
    size = weight.shape[0]
    strides = (0 if part is None else part.stride(0) for part in (out, x, update))
    launcher_of(x).launch(
        kernel_name("norm", x.dtype),
        (x.shape[0], x.shape[1] // size, 1),
        256,
        size * x.itemsize + NORM_BYTES,
        out,
        x,
        update,
        weight,
        bias,
        *map(c_longlong, strides),
        c_int(size),
        c_float(eps),
        c_float(offset),
        c_int(is_layer_norm),
    )


@operation("activate", "out")
def activate_out(out: Tensor, gate: Tensor, up: Tensor | None, activation: int) -> None:
    """Write an activation of `gate`, times `up` if given; all `[T, I]`, rows may be strided.

    Args:
        out: May be one of the others.
        gate: What the activation is taken of.
        up: The other factor.
        activation: Index into `ACTIVATIONS`.
    """
    num_tokens, size = out.shape
    per_block = 256 * VECTOR_BYTES // out.itemsize
    strides = (0 if x is None else x.stride(0) for x in (out, gate, up))
    launcher_of(out).launch(
        kernel_name("activate", out.dtype),
        (num_tokens, -(-size // per_block), 1),
        256,
        0,
        out,
        gate,
        up,
        *map(c_longlong, strides),
        c_int(size),
        c_int(activation),
    )
