"""Intermediate values of a forward pass: one definition of their sizes, for plan and allocation."""

from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.attention.backend import Projections
from chairlift.kernels import Kernels
from chairlift.model.spec import LayerSpec, ModelSpec

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
    projected: int
    convolved: int
    mixed: int
    gate_up: int
    gated: int
    router: int = 0
    """float32, whatever the dtype."""

    @classmethod
    def of(cls, spec: ModelSpec) -> "BufferWidths":
        """Return the widths of a model, whose layers have one shape."""
        hidden, inner, num_heads, num_kv_heads, head_dim = spec.shape
        heads, kv_heads = num_heads * head_dim, num_kv_heads * head_dim
        recurrent = [own for layer in spec.layers if (own := layer.recurrent) is not None]
        is_gated = any(mlp.gated for layer in spec.layers if (mlp := layer.dense) is not None)
        return cls(
            x=hidden,
            normed=hidden,
            update=hidden,
            routed=hidden if spec.router_size else 0,
            qkv=(2 if spec.has_gate else 1) * heads + 2 * kv_heads,
            attended=heads,
            projected=max((own.projected_size for own in recurrent), default=0),
            convolved=max((own.conv_size for own in recurrent), default=0),
            mixed=max((own.mixed_size for own in recurrent), default=0),
            gate_up=2 * inner if is_gated else inner,
            gated=inner,
            router=spec.router_size,
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
    projected: Tensor
    """`[T, projected_size]` of the layers with a recurrent state; no numbers without one."""
    convolved: Tensor
    """`[T, conv_size]` of these layers."""
    mixed: Tensor
    """`[T, mixed_size]` of these layers."""
    gate_up: Tensor
    """`[T, 2 I]`; `[T, I]` where no layer has a gate."""
    gated: Tensor
    """`[T, I]`"""
    router: Tensor
    """float32 `[T, router_size]`"""

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
        x, normed, update, routed, qkv, attended, *recurrent, gate_up, gated, router = (
            torch.empty(*(num_tokens, width), dtype=own, device=device)
            for width, own in zip(widths, dtypes, strict=True)
        )
        projected, convolved, mixed = recurrent
        _, _, heads, kv_heads, head_dim = spec.shape
        return cls(
            x=x,
            normed=normed,
            update=update,
            routed=routed,
            projections=Projections.of(qkv, heads, kv_heads, head_dim, has_gate=spec.has_gate),
            attended=attended.view(num_tokens, heads, head_dim),
            projected=projected,
            convolved=convolved,
            mixed=mixed,
            gate_up=gate_up,
            gated=gated,
            router=router,
        )

    def first(self, num_tokens: int) -> "Buffers":
        """Return the part of these buffers that so many tokens need."""
        projections = Projections._make(part[:num_tokens] for part in self.projections)
        parts = self._replace(projections=projections)
        return Buffers._make(
            part[:num_tokens] if isinstance(part, Tensor) else part for part in parts
        )

    def select(self, tokens: Tensor, kernels: Kernels, layer: LayerSpec) -> "Buffers":
        """Return buffers for some of the tokens, with what the mixer of a layer computed for them.

        Nothing is allocated: the buffers of the stream swap memory, and the selected results are
        written where the projections were, which are not read again.

        Args:
            tokens: int32 `[S]`, indices into T.
            kernels: Of the device.
            layer: Whose feed-forward is to be computed.
        """
        num_tokens = tokens.shape[0]
        small = self.first(num_tokens)
        # The feed-forward reads the norm of the stream before the layer.
        if layer.parallel or not layer.mixers:
            small = small._replace(x=small.update, normed=small.x, update=small.normed)
            kernels.select_rows(self.x, tokens, small.x)
            kernels.select_rows(self.normed, tokens, small.normed)
        else:
            small = small._replace(x=small.normed, normed=small.x)
            kernels.select_rows(self.x, tokens, small.x)
        if layer.recurrent is not None:
            mixed = self.projected.view(-1)[: small.mixed.numel()].view(small.mixed.shape)
            kernels.select_rows(self.mixed, tokens, mixed)
            small = small._replace(mixed=mixed)
        if layer.attention is not None:
            projected = self.projections.qkv.view(-1)[: small.attended.numel()]
            attended = projected.view(small.attended.shape)
            kernels.select_rows(self.attended, tokens, attended)
            small = small._replace(attended=attended)
        return small
