"""The forward pass of every model, top down; what differs between families is data.

Each token is computed as if it were alone: sums go through `chairlift.kernels` and the attention
backend, which fix their order; PyTorch only gathers rows and adds element by element. So the
logits of a token have the same bits whatever else is in the batch.

Source of the method: Llama (Touvron et al., 2023).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift import kernels
from chairlift.attention.backend import AttentionBackend
from chairlift.attention.metadata import AttentionMetadata
from chairlift.model.config import LinearScaling, Llama3Scaling, ModelConfig
from chairlift.model.kv_cache import layer_slots
from chairlift.model.weights import BlockWeights, Weights


class Transformer:
    """A decoder over a paged KV cache.

    Shapes below: T tokens, row after row of the batch; H is `hidden_size`.
    """

    def __init__(self, config: ModelConfig, weights: Weights, backend: AttentionBackend) -> None:
        self.config = config
        self.weights = weights
        self.backend = backend
        cos_sin = cos_sin_table(config)
        slots = layer_slots(config)
        self.blocks = [
            Block(config, weights.blocks[layer], backend, cos_sin, group, slots[layer])
            for layer, group in enumerate(config.layer_group)
        ]

    def forward(self, input_ids: Tensor, metadata: AttentionMetadata, kv_cache: Tensor) -> Tensor:
        """Computes the hidden states of a ragged batch, and writes its keys and values.

        Args:
            input_ids: int32 `[T]`.
            metadata: The row, position and cache slots of each token.
            kv_cache: From `allocate_kv_cache`.

        Returns:
            `[T, H]`, after the last norm.
        """
        x = torch.nn.functional.embedding(input_ids, self.weights.embedding)
        buffers = Buffers.empty(self.config, self.weights.blocks[0], x)
        # One view per layer and per KV group, taken here once.
        caches, slots = kv_cache.unbind(), metadata.slot_mapping.unbind()
        for block in self.blocks:
            cache, slot_mapping = caches[block.slot], slots[block.group]
            x.add_(block.attention(x, metadata, cache, slot_mapping, buffers))
            x.add_(block.feed_forward(x, buffers))
        return kernels.rms_norm(x, self.weights.norm, self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores the vocabulary: float32 `[S, vocab_size]` from the S rows `[S, H]` that sample."""
        return self.weights.lm_head(hidden, out_dtype=torch.float32)


class Buffers(NamedTuple):
    """Intermediate values of one layer; the layers of a forward pass write over one another's.

    Allocations and views cost as much as a small kernel, so they are made per step, not per layer.
    """

    normed: Tensor
    """`[T, H]`, which also takes the result of the last linear layer of each half."""
    qkv: Tensor
    """`[T, (num_heads + 2 * num_kv_heads) * head_dim]`"""
    query: Tensor
    """`[T, num_heads, head_dim]`, a view of `qkv` as the next three."""
    key: Tensor
    """`[T, num_kv_heads, head_dim]`"""
    query_key: Tensor
    """`[T, num_heads + num_kv_heads, head_dim]`"""
    value: Tensor
    """`[T, num_kv_heads, head_dim]`"""
    gate_up: Tensor
    """`[T, 2 I]`"""
    gated: Tensor
    """`[T, I]`"""

    @classmethod
    def empty(cls, config: ModelConfig, weights: BlockWeights, x: Tensor) -> "Buffers":
        """Allocates for the tokens of `x` `[T, H]`."""
        num_tokens, heads, kv_heads = x.shape[0], config.num_heads, config.num_kv_heads
        qkv = x.new_empty(num_tokens, weights.qkv.out_features)
        parts = qkv.view(num_tokens, heads + 2 * kv_heads, config.head_dim)
        query, key, value = torch.split(parts, [heads, kv_heads, kv_heads], dim=1)
        return cls(
            normed=torch.empty_like(x),
            qkv=qkv,
            query=query,
            key=key,
            query_key=parts[:, : heads + kv_heads],
            value=value,
            gate_up=x.new_empty(num_tokens, weights.gate_up.out_features),
            gated=x.new_empty(num_tokens, weights.down.in_features),
        )


class Block:
    """One layer: attention, then a gated feed-forward, each on the normed residual stream."""

    def __init__(
        self,
        config: ModelConfig,
        weights: BlockWeights,
        backend: AttentionBackend,
        cos_sin: Tensor,
        group: int,
        slot: int,
    ) -> None:
        self.weights = weights
        self.backend = backend
        self.cos_sin = cos_sin
        self.eps = config.rms_norm_eps
        self.scale = config.head_dim**-0.5
        self.window = config.kv_windows[group]
        self.group = group
        self.slot = slot
        """Where the layer's keys and values are inside the blocks of its KV group."""

    def attention(
        self,
        x: Tensor,
        metadata: AttentionMetadata,
        cache: Tensor,
        slot_mapping: Tensor,
        buffers: Buffers,
    ) -> Tensor:
        """Lets each token of `x` `[T, H]` read the tokens up to itself in its row.

        Args:
            x: The residual stream, which stays as it is.
            metadata: Of the batch.
            cache: Of this layer.
            slot_mapping: Of the layer's KV group, int32 `[T]`.
            buffers: Of the forward pass; the result is in one of them.
        """
        weights = self.weights
        kernels.rms_norm(x, weights.attention_norm, self.eps, out=buffers.normed)
        weights.qkv(buffers.normed, out=buffers.qkv)
        self._rotate(metadata.positions, buffers)
        self.backend.write(cache, buffers.key, buffers.value, slot_mapping, metadata.block_size)
        out = self.backend.attend(
            buffers.query,
            cache,
            metadata,
            group=self.group,
            scale=self.scale,
            window=self.window,
        )
        return weights.output(out.flatten(1), out=buffers.normed)

    def _rotate(self, positions: Tensor, buffers: Buffers) -> None:
        """Rotates queries and keys; where they have no norms of their own, in one call."""
        weights = self.weights
        if weights.query_norm is None and weights.key_norm is None:
            kernels.rope_(buffers.query_key, positions, self.cos_sin)
            return
        kernels.rope_(buffers.query, positions, self.cos_sin, weights.query_norm, self.eps)
        kernels.rope_(buffers.key, positions, self.cos_sin, weights.key_norm, self.eps)

    def feed_forward(self, x: Tensor, buffers: Buffers) -> Tensor:
        """Maps each token of `x` `[T, H]` through SwiGLU (Shazeer, 2020)."""
        weights = self.weights
        kernels.rms_norm(x, weights.feed_forward_norm, self.eps, out=buffers.normed)
        weights.gate_up(buffers.normed, out=buffers.gate_up)
        kernels.silu_mul(buffers.gate_up, out=buffers.gated)
        return weights.down(buffers.gated, out=buffers.normed)


def cos_sin_table(config: ModelConfig) -> Tensor:
    """Gives the rotations of RoPE (Su et al., 2021) for every position of the model.

    The angle is rounded to float32 as `transformers` rounds it: far positions need the same
    rounding for the same tokens. Its cosine is then taken exactly, for the same bits everywhere.

    Returns:
        float32 `[max_model_len, head_dim]`: cosines in the first half, sines in the second.
    """
    positions = torch.arange(config.max_model_len, dtype=torch.float32)
    angles = torch.outer(positions, _frequencies(config)).double()
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


def _frequencies(config: ModelConfig) -> Tensor:
    """Gives radians per position, float32 `[head_dim / 2]`; the operations are `transformers`'."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    match config.rope_scaling:
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling() as scaling:
            return _blend(frequencies, scaling)
        case None:
            return frequencies


def _blend(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slows the frequencies that turn less than `low_freq_factor` times in the original length.

    Those that turn more than `high_freq_factor` times stay; between the two the slowdown fades
    linearly with the number of turns.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    length = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    kept = (length / wavelengths - low) / (high - low)
    blended = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    slowed = torch.where(wavelengths > length / low, frequencies / scaling.factor, blended)
    return torch.where(wavelengths < length / high, frequencies, slowed)
