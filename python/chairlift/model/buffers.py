"""Intermediate values of a forward pass: one definition of their sizes, for plan and allocation."""

from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.attention.backend import Projections
from chairlift.kernels import Kernels
from chairlift.model.spec import ModelSpec

_NUM_STREAM = 3
"""Buffers of the residual stream, which come first."""


class BufferWidths(NamedTuple):
    """Numbers per token of each buffer: of the residual stream, then inside the layers."""

    x: int
    normed: int
    update: int
    qkv: int
    attended: int
    gate_up: int
    gated: int

    @classmethod
    def of(cls, spec: ModelSpec) -> "BufferWidths":
        """Return the widths of a model, whose layers have one shape."""
        hidden, inner, num_heads, num_kv_heads, head_dim = spec.shape
        heads, kv_heads = num_heads * head_dim, num_kv_heads * head_dim
        return cls(
            x=hidden,
            normed=hidden,
            update=hidden,
            qkv=heads + 2 * kv_heads,
            attended=heads,
            gate_up=2 * inner,
            gated=inner,
        )

    def num_bytes(self, num_tokens: int, dtype: torch.dtype, stream_dtype: torch.dtype) -> int:
        """Return the bytes of the buffers of so many tokens.

        Args:
            num_tokens: Of the largest step.
            dtype: Of the layers' inner values.
            stream_dtype: Of the residual stream and its norm.
        """
        stream, inner = sum(self[:_NUM_STREAM]), sum(self[_NUM_STREAM:])
        return num_tokens * (stream * stream_dtype.itemsize + inner * dtype.itemsize)


class Buffers(NamedTuple):
    """Intermediate values of one layer; the layers of a forward pass write over one another's.

    Allocations and views cost as much as a small kernel, so they are made per step, not per layer.
    """

    x: Tensor
    """`[T, H]`, the residual stream."""
    normed: Tensor
    """`[T, H]`"""
    update: Tensor
    """`[T, H]`, what each half of a layer adds to the stream."""
    projections: Projections
    attended: Tensor
    """`[T, num_heads, head_dim]`"""
    gate_up: Tensor
    """`[T, 2 I]`"""
    gated: Tensor
    """`[T, I]`"""

    @classmethod
    def empty(
        cls,
        spec: ModelSpec,
        num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        stream_dtype: torch.dtype | None = None,
    ) -> "Buffers":
        """Allocate the buffers of so many tokens.

        Args:
            spec: The model.
            num_tokens: Of the largest step.
            dtype: Of the layers' inner values.
            device: Where they are.
            stream_dtype: Of the residual stream and its norm; None is the same.
        """
        stream_dtype = stream_dtype or dtype
        x, normed, update, qkv, attended, gate_up, gated = (
            torch.empty(
                *(num_tokens, width),
                dtype=stream_dtype if place < _NUM_STREAM else dtype,
                device=device,
            )
            for place, width in enumerate(BufferWidths.of(spec))
        )
        _, _, heads, kv_heads, head_dim = spec.shape
        return cls(
            x=x,
            normed=normed,
            update=update,
            projections=Projections.of(qkv, heads, kv_heads, head_dim),
            attended=attended.view(num_tokens, heads, head_dim),
            gate_up=gate_up,
            gated=gated,
        )

    def first(self, num_tokens: int) -> "Buffers":
        """Return the part of these buffers that so many tokens need."""
        x, normed, update, projections, attended, gate_up, gated = self
        return Buffers(
            x[:num_tokens],
            normed[:num_tokens],
            update[:num_tokens],
            Projections._make(part[:num_tokens] for part in projections),
            attended[:num_tokens],
            gate_up[:num_tokens],
            gated[:num_tokens],
        )

    def select(self, tokens: Tensor, kernels: Kernels) -> "Buffers":
        """Return buffers for some of the tokens, with what attention computed for them.

        Nothing is allocated: the residual stream and its norm swap memory, and the selected results
        of attention are written where the projections were, which are not read again.

        Args:
            tokens: int32 `[S]`, indices into T.
            kernels: Of the device.
        """
        num_tokens = tokens.shape[0]
        small = self.first(num_tokens)
        small = small._replace(x=small.normed, normed=small.x)
        kernels.select_rows(self.x, tokens, small.x)
        projected = self.projections.qkv.view(-1)[: small.attended.numel()]
        attended = projected.view(small.attended.shape)
        kernels.select_rows(self.attended, tokens, attended)
        return small._replace(attended=attended)
