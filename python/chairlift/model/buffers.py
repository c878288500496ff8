"""Intermediate values of a forward pass: one definition of their sizes, for plan and allocation."""

from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.attention.backend import Projections
from chairlift.kernels import Kernels
from chairlift.model.spec import ModelSpec

_NUM_STREAM = 4
"""Buffers of the residual stream, which come first."""


class BufferWidths(NamedTuple):
    """Numbers per token of each buffer: of the residual stream, then inside the layers."""

    x: int
    normed: int
    update: int
    routed: int
    qkv: int
    attended: int
    gate_up: int
    gated: int
    router: int = 0
    """float32, whatever the dtype."""

    @classmethod
    def of(cls, spec: ModelSpec) -> "BufferWidths":
        """Return the widths of a model, whose layers have one shape."""
        hidden, inner, num_heads, num_kv_heads, head_dim = spec.shape
        heads, kv_heads = num_heads * head_dim, num_kv_heads * head_dim
        return cls(
            x=hidden,
            normed=hidden,
            update=hidden,
            routed=hidden if spec.num_experts else 0,
            qkv=heads + 2 * kv_heads,
            attended=heads,
            gate_up=2 * inner if any(layer.feed_forward.gated for layer in spec.layers) else inner,
            gated=inner,
            router=spec.num_experts,
        )

    def num_bytes(self, num_tokens: int, dtype: torch.dtype, stream_dtype: torch.dtype) -> int:
        """Return the bytes of the buffers of so many tokens.

        Args:
            num_tokens: Of the largest step.
            dtype: Of the layers' inner values.
            stream_dtype: Of the residual stream and its norm.
        """
        *inner, router = self[_NUM_STREAM:]
        stream = sum(self[:_NUM_STREAM])
        item = stream * stream_dtype.itemsize + sum(inner) * dtype.itemsize
        return num_tokens * (item + router * torch.float32.itemsize)


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
    routed: Tensor
    """`[T, H]`, what experts add beside one that is shared; no numbers where there are none."""
    projections: Projections
    attended: Tensor
    """`[T, num_heads, head_dim]`"""
    gate_up: Tensor
    """`[T, 2 I]`; `[T, I]` where no layer has a gate."""
    gated: Tensor
    """`[T, I]`"""
    router: Tensor
    """float32 `[T, num_experts]`"""

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
        widths = BufferWidths.of(spec)
        inner_types = [dtype] * (len(widths) - _NUM_STREAM - 1)
        dtypes = (*[stream_dtype] * _NUM_STREAM, *inner_types, torch.float32)
        x, normed, update, routed, qkv, attended, gate_up, gated, router = (
            torch.empty(*(num_tokens, width), dtype=own, device=device)
            for width, own in zip(widths, dtypes, strict=True)
        )
        _, _, heads, kv_heads, head_dim = spec.shape
        return cls(
            x=x,
            normed=normed,
            update=update,
            routed=routed,
            projections=Projections.of(qkv, heads, kv_heads, head_dim),
            attended=attended.view(num_tokens, heads, head_dim),
            gate_up=gate_up,
            gated=gated,
            router=router,
        )

    def first(self, num_tokens: int) -> "Buffers":
        """Return the part of these buffers that so many tokens need."""
        x, normed, update, routed, projections, attended, gate_up, gated, router = self
        return Buffers(
            x[:num_tokens],
            normed[:num_tokens],
            update[:num_tokens],
            routed[:num_tokens],
            Projections._make(part[:num_tokens] for part in projections),
            attended[:num_tokens],
            gate_up[:num_tokens],
            gated[:num_tokens],
            router[:num_tokens],
        )

    def select(self, tokens: Tensor, kernels: Kernels, *, keeps_normed: bool) -> "Buffers":
        """Return buffers for some of the tokens, with what attention computed for them.

        Nothing is allocated: the buffers of the stream swap memory, and the selected results of
        attention are written where the projections were, which are not read again.

        Args:
            tokens: int32 `[S]`, indices into T.
            kernels: Of the device.
            keeps_normed: Whether the normed stream is read again.
        """
        num_tokens = tokens.shape[0]
        small = self.first(num_tokens)
        if keeps_normed:
            small = small._replace(x=small.update, normed=small.x, update=small.normed)
            kernels.select_rows(self.x, tokens, small.x)
            kernels.select_rows(self.normed, tokens, small.normed)
        else:
            small = small._replace(x=small.normed, normed=small.x)
            kernels.select_rows(self.x, tokens, small.x)
        projected = self.projections.qkv.view(-1)[: small.attended.numel()]
        attended = projected.view(small.attended.shape)
        kernels.select_rows(self.attended, tokens, attended)
        return small._replace(attended=attended)
