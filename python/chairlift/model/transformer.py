"""The forward pass of every model, top down; what differs between families is data.

Each token is computed as if it were alone: sums go through `chairlift.kernels` and the attention
backend, which fix their order; PyTorch only gathers rows and adds element by element. So the
logits of a token have the same bits whatever else is in the batch.

Source of the method: Llama (Touvron et al., 2023).
"""

import math

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
        for block in self.blocks:
            x = x + block.attention(x, metadata, kv_cache)
            x = x + block.feed_forward(x)
        return kernels.rms_norm(x, self.weights.norm, self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores the vocabulary: float32 `[S, vocab_size]` from the S rows `[S, H]` that sample."""
        return self.weights.lm_head(hidden, out_dtype=torch.float32)


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
        self.config = config
        self.weights = weights
        self.backend = backend
        self.cos_sin = cos_sin
        self.group = group
        self.slot = slot
        """Where the layer's keys and values are inside the blocks of its KV group."""

    def attention(self, x: Tensor, metadata: AttentionMetadata, kv_cache: Tensor) -> Tensor:
        """Lets each token of `x` `[T, H]` read the tokens up to itself in its row."""
        config, weights, positions = self.config, self.weights, metadata.positions
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = weights.qkv(kernels.rms_norm(x, weights.attention_norm, config.rms_norm_eps))
        qkv = qkv.view(-1, heads + 2 * kv_heads, head_dim)
        query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        kernels.rope_(query, positions, self.cos_sin, weights.query_norm, config.rms_norm_eps)
        kernels.rope_(key, positions, self.cos_sin, weights.key_norm, config.rms_norm_eps)

        cache = kv_cache[self.slot]
        self.backend.write(
            cache, key, value, metadata.slot_mapping[self.group], metadata.block_size
        )
        out = self.backend.attend(
            query,
            cache,
            metadata,
            group=self.group,
            scale=head_dim**-0.5,
            window=config.kv_windows[self.group],
        )
        return weights.output(out.flatten(1))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Maps each token of `x` `[T, H]` through SwiGLU (Shazeer, 2020)."""
        normed = kernels.rms_norm(x, self.weights.feed_forward_norm, self.config.rms_norm_eps)
        return self.weights.down(kernels.silu_mul(self.weights.gate_up(normed)))


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
