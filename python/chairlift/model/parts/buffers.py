"""Intermediate values of a forward pass: one definition of their sizes, for plan and allocation."""

from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.attention.backend import Heads, Projections
from chairlift.kernels import Kernels
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec

_ALIGNMENT = 8
"""Numbers that a vector load of a kernel may begin at a multiple of."""
_STREAM = "x", "normed", "update", "routed"
"""The buffers of the residual stream, which have its dtype."""


def _widths(spec: ModelSpec) -> dict[str, int]:
    """Return the numbers per token of each buffer, which its widest layer needs.

    A name is a field of `Buffers`; `HeadBuffers` lie in `qkv`, `values` and `attended`.
    """
    hidden, inner = spec.shape.hidden_size, spec.shape.intermediate_size
    inputs = 0 if spec.layer_inputs is None else spec.layer_inputs.size
    recurrent = [mixer for layer in spec.layers if (mixer := layer.recurrent) is not None]
    is_gated = any(mlp.gated for layer in spec.layers if (mlp := layer.dense) is not None)
    return {
        "x": hidden,
        "normed": hidden,
        "update": hidden,
        "routed": hidden if spec.router_size else 0,
        "qkv": max(heads.projected_size for heads in spec.heads),
        "values": max(heads.normed_size for heads in spec.heads),
        "attended": max(heads.query_size for heads in spec.heads),
        "projected": _aligned(max((mixer.projected_size for mixer in recurrent), default=0)),
        "convolved": max((mixer.conv_size for mixer in recurrent), default=0),
        "mixed": max((mixer.mixed_size for mixer in recurrent), default=0),
        "gate_up": max(2 * inner if is_gated else inner, inputs),
        "gated": max(inner, inputs),
        "layer_inputs": spec.num_layers * inputs,
        "context": spec.num_layers * inputs,
        "router": spec.router_size,
    }


def _dtype(name: str, dtype: torch.dtype, stream_dtype: torch.dtype) -> torch.dtype:
    if name == "router":
        return torch.float32
    return stream_dtype if name in _STREAM else dtype


def buffer_bytes(
    spec: ModelSpec, num_tokens: int, dtype: torch.dtype, stream_dtype: torch.dtype
) -> int:
    """Return the bytes of the buffers of so many tokens.

    Args:
        spec: The model.
        num_tokens: Tokens of the largest step.
        dtype: The dtype of the layers' inner values.
        stream_dtype: The dtype of the residual stream and its norm.
    """
    return num_tokens * sum(
        width * _dtype(name, dtype, stream_dtype).itemsize for name, width in _widths(spec).items()
    )


def _aligned(width: int) -> int:
    """Return a width whose rows begin where the vectors of every kernel may."""
    return -(-width // _ALIGNMENT) * _ALIGNMENT


class HeadBuffers(NamedTuple):
    """The buffers of layers that project the same heads: the first numbers of wider ones."""

    projections: Projections
    attended: Tensor
    """`[T, num_heads, head_dim]`"""

    @classmethod
    def of(cls, heads: Heads, qkv: Tensor, values: Tensor, attended: Tensor) -> "HeadBuffers":
        """Cut buffers of all layers, `[T, ...]`, to what such layers need."""
        out = _narrowed(attended, heads.query_size)
        normed = _narrowed(values, heads.normed_size)
        return cls(
            Projections.of(_narrowed(qkv, heads.projected_size), heads, normed),
            out.view(-1, heads.num_heads, heads.head_dim),
        )

    def first(self, num_tokens: int) -> "HeadBuffers":
        """Return the part that so many tokens need."""
        parts = (part[:num_tokens] for part in self.projections)
        return HeadBuffers(Projections._make(parts), self.attended[:num_tokens])


def _narrowed(buffer: Tensor, width: int) -> Tensor:
    """Return contiguous rows of another width in the memory of a buffer."""
    num_rows = buffer.shape[0]
    return buffer.view(-1)[: num_rows * width].view(num_rows, width)


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
    heads: tuple[HeadBuffers, ...]
    """The buffers of each of `ModelSpec.heads`, all in the same memory."""
    projected: Tensor
    """`[T, projected_size]` of the layers with a recurrent state, or a few numbers more; none
    without one."""
    convolved: Tensor
    """`[T, conv_size]` of these layers."""
    mixed: Tensor
    """`[T, mixed_size]` of these layers."""
    gate_up: Tensor
    """`[T, 2 I]`; `[T, I]` where no layer has a gate."""
    gated: Tensor
    """`[T, I]`"""
    layer_inputs: Tensor
    """`[T, num_layers * size]`: of `ModelSpec.layer_inputs`; no numbers without these."""
    context: Tensor
    """`[T, num_layers * size]`: a part of `layer_inputs` while they are computed."""
    router: Tensor
    """float32 `[T, router_size]`"""
    experts: Tensor
    """uint8 `[T, workspace_bytes]`: what lies between the kernels of a mixture of experts."""

    @classmethod
    def empty(
        cls,
        spec: ModelSpec,
        num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        stream_dtype: torch.dtype | None = None,
        workspace_bytes: int = 0,
    ) -> "Buffers":
        """Allocate the buffers of so many tokens.

        Args:
            spec: The model.
            num_tokens: Tokens of the largest step.
            dtype: The dtype of the layers' inner values.
            device: Where they are.
            stream_dtype: The dtype of the residual stream and its norm; None is `dtype`.
            workspace_bytes: Bytes per token that mixtures of experts need.
        """
        memory = {
            name: torch.empty(
                num_tokens, width, dtype=_dtype(name, dtype, stream_dtype or dtype), device=device
            )
            for name, width in _widths(spec).items()
        }
        qkv, values, attended = (memory.pop(name) for name in ("qkv", "values", "attended"))
        return cls(
            heads=tuple(HeadBuffers.of(heads, qkv, values, attended) for heads in spec.heads),
            experts=torch.empty(num_tokens, workspace_bytes, dtype=torch.uint8, device=device),
            **memory,
        )

    def first(self, num_tokens: int) -> "Buffers":
        """Return the part of these buffers that so many tokens need."""
        parts = self._replace(heads=tuple(heads.first(num_tokens) for heads in self.heads))
        return Buffers._make(
            part[:num_tokens] if isinstance(part, Tensor) else part for part in parts
        )

    def select(
        self, tokens: Tensor, kernels: Kernels, layer: LayerSpec, heads: int | None
    ) -> "Buffers":
        """Return buffers for some of the tokens, with what the mixer of a layer computed for them.

        Nothing is allocated: the buffers of the stream swap memory, and the selected results are
        written where the projections were, which are not read again.

        Args:
            tokens: int32 `[S]`, indices into T.
            kernels: The kernels of the device.
            layer: The layer, whose feed-forward is to be computed.
            heads: Which heads the layer projects; None without attention.
        """
        num_tokens = tokens.shape[0]
        small = self.first(num_tokens)
        if self.layer_inputs.shape[1] > 0:
            kernels.select_rows(self.layer_inputs, tokens, small.context)
            small = small._replace(layer_inputs=small.context)
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
        if heads is not None:
            layer_heads, shape = self.heads[heads], small.heads[heads].attended.shape
            attended = layer_heads.projections.qkv.view(-1)[: shape.numel()].view(shape)
            kernels.select_rows(layer_heads.attended, tokens, attended)
            selected = list(small.heads)
            selected[heads] = selected[heads]._replace(attended=attended)
            small = small._replace(heads=tuple(selected))
        return small
