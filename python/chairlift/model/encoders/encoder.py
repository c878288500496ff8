"""The forward pass of every encoder, over packed sequences without padding.

All sums go through the kernels, so that the bits of a text depend on that text alone.

Sources: BERT (Devlin et al., 2019), MPNet (Song et al., 2020), ModernBERT (Warner et al., 2024).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift import _core
from chairlift.kernels import cpu
from chairlift.model.encoders.spec import EncoderConfig, EncoderSpec, RelativeBias
from chairlift.model.encoders.weights import EncoderLayerWeights, EncoderWeights, Norm
from chairlift.model.specs.rope import cos_sin_table


class Packed(NamedTuple):
    """Sequences, one behind the other; T tokens, S sequences."""

    input_ids: Tensor
    """int32 `[T]`"""
    positions: Tensor
    """int32 `[T]`: of each token in its text, from 0 on."""
    starts: Tensor
    """int32 `[S + 1]`: where each sequence begins, and T."""
    token_types: Tensor | None = None
    """int32 `[T]`; None is 0 for all."""


class Encoder:
    """An encoder; `forward` computes the hidden states of a batch.

    Attributes:
        config: The configuration.
        weights: The weights.
        adapters: None: no adapter changes an encoder.
    """

    adapters = None

    def __init__(self, config: EncoderConfig, weights: EncoderWeights) -> None:
        self.config = config
        self.weights = weights
        spec = config.spec
        self._tables = {
            rope: cos_sin_table(rope, spec.head_dim, config.max_model_len) for rope in spec.ropes
        }
        self._bias = None
        if spec.relative_bias is not None:
            assert weights.relative_bias is not None, "read where the spec has one"
            self._bias = _bias_table(spec.relative_bias, weights.relative_bias, config)
        self._reserved: _Buffers | None = None

    def reserve(self, max_tokens: int) -> None:
        """Allocate the buffers for batches of at most so many tokens."""
        self._reserved = self._new_buffers(max_tokens)

    def forward(self, batch: Packed) -> Tensor:
        """Compute the hidden states `[T, H]`; they lie in a buffer that the next batch overwrites.

        Args:
            batch: T tokens with ids below `vocab_size`, in texts no longer than the model takes.
        """
        num_tokens, spec = len(batch.input_ids), self.config.spec
        is_small = self._reserved is not None and num_tokens <= len(self._reserved.x)
        buffers = self._reserved if is_small else self._new_buffers(num_tokens)
        assert buffers is not None, "reserved, or made for this batch"
        buffers = buffers.first(num_tokens)
        x, normed = self._embed(batch, buffers)
        if spec.norm_first:
            return self._norm_first(batch, normed, x, buffers)
        for number, layer in enumerate(self.weights.layers):
            assert layer.attention_norm is not None, "after each half"
            self._attend(number, batch, normed, buffers)
            _add_norm(normed, buffers.update, layer.attention_norm, spec.norm_eps, x)
            self._feed_forward(layer, x, buffers)
            _add_norm(x, buffers.update, layer.feed_forward_norm, spec.norm_eps, normed)
        return normed

    def _embed(self, batch: Packed, buffers: "_Buffers") -> tuple[Tensor, Tensor]:
        """Return the buffers of the residual stream, the second with normed embeddings."""
        weights, update = self.weights, buffers.update
        cpu.select_rows(weights.embedding, batch.input_ids, buffers.x)
        if weights.token_types is not None:
            if batch.token_types is None:
                buffers.x.add_(weights.token_types[0])
            else:
                cpu.select_rows(weights.token_types, batch.token_types, update)
                buffers.x.add_(update)
        norm, eps = weights.embedding_norm, self.config.spec.norm_eps
        if weights.positions is None:
            cpu.layer_norm(buffers.x, norm.weight, norm.bias, eps, out=buffers.normed)
        else:
            cpu.select_rows(weights.positions, batch.positions, update)
            _add_norm(buffers.x, update, norm, eps, buffers.normed)
        return buffers.x, buffers.normed

    def _norm_first(
        self, batch: Packed, stream: Tensor, normed: Tensor, buffers: "_Buffers"
    ) -> Tensor:
        eps, layers = self.config.spec.norm_eps, self.weights.layers
        final_norm = self.weights.final_norm
        assert final_norm is not None, "of a model whose norms stand first"
        next_norms = [*(layer.attention_norm for layer in layers[1:]), final_norm]
        first = layers[0].attention_norm
        if first is None:
            normed.copy_(stream)
        else:
            cpu.layer_norm(stream, first.weight, first.bias, eps, out=normed)
        for number, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            assert next_norm is not None, "of all layers but the first"
            self._attend(number, batch, normed, buffers)
            _add_norm(stream, buffers.update, layer.feed_forward_norm, eps, normed)
            self._feed_forward(layer, normed, buffers)
            _add_norm(stream, buffers.update, next_norm, eps, normed)
        return normed

    def _attend(self, number: int, batch: Packed, x: Tensor, buffers: "_Buffers") -> None:
        spec, layer = self.config.spec.layers[number], self.weights.layers[number]
        heads, head_dim = self.config.spec.num_heads, self.config.spec.head_dim
        hidden = self.config.spec.hidden_size
        qkv = layer.qkv(x, out=buffers.qkv)
        if spec.rope is not None:
            rotated = qkv[:, : 2 * hidden].view(len(qkv), 2 * heads, head_dim)
            cpu.rope_(rotated, batch.positions, self._tables[spec.rope])
        query, key, value = torch.split(qkv, hidden, dim=1)
        _core.full_attention(
            query,
            key,
            value,
            batch.starts,
            buffers.attended,
            num_heads=heads,
            scale=head_dim**-0.5,
            reach=spec.reach,
            bias=self._bias,
        )
        layer.output(buffers.attended, out=buffers.update)

    def _feed_forward(self, layer: EncoderLayerWeights, x: Tensor, buffers: "_Buffers") -> None:
        spec = self.config.spec
        inner = layer.gate_up(x, out=buffers.gate_up)
        activate = cpu.activate_mul if spec.is_gated else cpu.activate
        layer.down(activate(inner, spec.activation, out=buffers.activated), out=buffers.update)

    def classify(self, pooled: Tensor) -> Tensor:
        """Return the logits of the labels, float32 `[S, labels]`; `pooled` float32 `[S, H]`."""
        head, spec = self.weights.head, self.config.spec.classifier
        assert head is not None, "asked for where there is a classifier"
        assert spec is not None, "as above"
        if head.dense is not None:
            pooled = head.dense(pooled)
            pooled = (
                torch.tanh(pooled)
                if spec.activation == "tanh"
                else cpu.activate(pooled, spec.activation or "gelu")
            )
        if head.norm is not None:
            norm = head.norm
            pooled = cpu.layer_norm(pooled, norm.weight, norm.bias, self.config.spec.norm_eps)
        return head.output(pooled)

    def _new_buffers(self, num_tokens: int) -> "_Buffers":
        stream, dtype = self.weights.embedding.dtype, self.config.dtype
        return _Buffers.empty(self.config.spec, num_tokens, stream, dtype)


class _Buffers(NamedTuple):
    """Intermediate values of one layer; the layers of a pass write over one another's."""

    x: Tensor
    normed: Tensor
    update: Tensor
    qkv: Tensor
    attended: Tensor
    gate_up: Tensor
    activated: Tensor

    @classmethod
    def empty(
        cls, spec: EncoderSpec, num_tokens: int, stream: torch.dtype, dtype: torch.dtype
    ) -> "_Buffers":
        hidden, inner = spec.hidden_size, spec.intermediate_size

        def tensor(width: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(num_tokens, width, dtype=dtype)

        return cls(
            x=tensor(hidden, stream),
            normed=tensor(hidden, stream),
            update=tensor(hidden, stream),
            qkv=tensor(3 * hidden, dtype),
            attended=tensor(hidden, dtype),
            gate_up=tensor(inner * (2 if spec.is_gated else 1), dtype),
            activated=tensor(inner, dtype),
        )

    def first(self, num_tokens: int) -> "_Buffers":
        return _Buffers(*(buffer[:num_tokens] for buffer in self))


def _add_norm(x: Tensor, update: Tensor, norm: Norm, eps: float, out: Tensor) -> None:
    cpu.add_layer_norm(x, update, norm.weight, norm.bias, eps, out=out)


def _bias_table(spec: RelativeBias, buckets: Tensor, config: EncoderConfig) -> Tensor:
    """Return the bias of each head and distance, float32 `[num_heads, 2 * longest - 1]`."""
    longest = config.max_model_len
    distance = torch.arange(1 - longest, longest)
    half = spec.num_buckets // 2
    exact = half // 2
    size = distance.abs()
    # The logarithm is rounded to float32, as `transformers` rounds it: bucket bounds depend on it.
    grown = torch.log(size.clamp(min=1).float() / exact) / math.log(spec.max_distance / exact)
    far = (exact + (grown * (half - exact)).long()).clamp(max=half - 1)
    bucket = torch.where(size < exact, size, far) + (distance > 0).long() * half
    return buckets[bucket].T.contiguous()
