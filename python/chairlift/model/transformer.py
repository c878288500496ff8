"""The forward pass of every model, top down; what differs between families is data.

The pass is the same on every device: all sums go through the kernels of the attention backend and
the backend itself; PyTorch lends the memory. On a CPU they compute each token as if it were alone,
so that its logits have the same bits whatever else is in the batch.

Source of the method: Llama (Touvron et al., 2023).
"""

import math

import torch
from torch import Tensor

from chairlift._core import Recording
from chairlift.attention.backend import AttentionBackend, Rotation
from chairlift.attention.metadata import AttentionMetadata
from chairlift.model.buffers import Buffers
from chairlift.model.config import LinearScaling, Llama3Scaling, ModelConfig
from chairlift.model.kv_cache import layer_slots
from chairlift.model.weights import BlockWeights, Weights

MOST_RECORDED = 16
"""Forward passes that are kept; a call takes about a kilobyte, and a layer some eight of them."""

_POSITIONS_AT_ONCE = 65_536
"""Of the table of RoPE, whose intermediate values take several times its memory."""


class Transformer:
    """A decoder over a paged KV cache.

    Shapes below: T tokens, row after row of the batch; H is `hidden_size`.
    """

    def __init__(self, config: ModelConfig, weights: Weights, backend: AttentionBackend) -> None:
        self.config = config
        self.weights = weights
        self.backend = backend
        cos_sin = cos_sin_table(config).to(weights.embedding.device)
        slots = layer_slots(config)
        self.blocks = [
            Block(config, weights.blocks[layer], backend, cos_sin, group, slots[layer])
            for layer, group in enumerate(config.layer_group)
        ]
        # The norm that follows each block: that of the next one's attention, at last the model's.
        norms = [block.attention_norm for block in weights.blocks] + [weights.norm]
        self._first_norm, *self._next_norms = norms
        self._reserved: Buffers | None = None
        self._recorded: dict[tuple[int, ...], tuple[Recording, Tensor]] = {}

    def reserve(self, max_tokens: int) -> None:
        """Allocates for the steps of a runner, of so many tokens, and forgets those of another.

        What was recorded for a runner reads that one's tables.
        """
        self._reserved = self._new_buffers(max_tokens)
        self._recorded.clear()

    def forward(
        self,
        input_ids: Tensor,
        metadata: AttentionMetadata,
        kv_cache: Tensor,
        selected: Tensor | None = None,
    ) -> Tensor:
        """Computes the hidden states of a ragged batch, and writes its keys and values.

        A prompt's tokens are there for their keys and values: the last layer goes on with the
        selected ones alone, as llama.cpp does.

        Args:
            input_ids: int32 `[T]`.
            metadata: The row, position and cache slots of each token.
            kv_cache: From `allocate_kv_cache`; the same for batches of equal `metadata.views`.
            selected: int32 `[S]`: the tokens whose hidden states are wanted, as indices into T;
                None wants all.

        Returns:
            `[S, H]`, after the last norm; in a buffer of the next step, where `reserve` was called.
        """
        batch = (input_ids, metadata, kv_cache, selected)
        if not self.backend.records:
            return self._forward(*batch)
        # Python is asked once for a step, or not at all for a batch whose views are known: two
        # hundred calls take as long as some of the layers, and others may hold its lock.
        recorded = None if metadata.views is None else self._recorded.get(metadata.views)
        if recorded is None:
            with Recording() as recording:
                recorded = recording, self._forward(*batch)
            if metadata.views is not None:
                if len(self._recorded) == MOST_RECORDED:
                    self._recorded.pop(next(iter(self._recorded)))
                self._recorded[metadata.views] = recorded
        recording, hidden = recorded
        recording.run()
        return hidden

    def _forward(
        self,
        input_ids: Tensor,
        metadata: AttentionMetadata,
        kv_cache: Tensor,
        selected: Tensor | None,
    ) -> Tensor:
        buffers, eps = self._buffers(input_ids.shape[0]), self.config.rms_norm_eps
        kernels, last = self.backend.kernels, self.blocks[-1]
        kernels.select_rows(self.weights.embedding, input_ids, buffers.x)
        kernels.rms_norm(buffers.x, self._first_norm, eps, out=buffers.normed)
        # One view per layer and per KV group, taken here once.
        caches, slots = kv_cache.unbind(), metadata.slot_mapping.unbind()
        for block, next_norm in zip(self.blocks, self._next_norms, strict=True):
            cache = caches[block.slot]
            block.write(metadata, cache, slots[block.group], buffers)
            if selected is not None and block is last and selected.shape[0] == 0:
                return buffers.normed[:0]
            block.attend(metadata, cache, buffers)
            if selected is not None and block is last:
                buffers = buffers.select(selected, kernels)
            x, normed, update = buffers.x, buffers.normed, buffers.update
            block.weights.output(buffers.attended.flatten(1), out=update)
            kernels.add_rms_norm(x, update, block.weights.feed_forward_norm, eps, out=normed)
            block.feed_forward(buffers)
            kernels.add_rms_norm(x, update, next_norm, eps, out=normed)
        return buffers.normed

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Scores the vocabulary: float32 `[S, vocab_size]` from the S rows `[S, H]` that sample."""
        return self.weights.lm_head(hidden, out_dtype=torch.float32, out=out)

    def _buffers(self, num_tokens: int) -> Buffers:
        if self._reserved is None:
            return self._new_buffers(num_tokens)
        return self._reserved.first(num_tokens)

    def _new_buffers(self, num_tokens: int) -> Buffers:
        return Buffers.empty(self.config, num_tokens, self.weights.embedding.device)


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
        self.rotation = Rotation(cos_sin, weights.query_norm, weights.key_norm, config.rms_norm_eps)
        self.scale = config.head_dim**-0.5
        self.window = config.kv_windows[group]
        self.group = group
        self.slot = slot
        """Where the layer's keys and values are inside the blocks of its KV group."""

    def write(
        self, metadata: AttentionMetadata, cache: Tensor, slot_mapping: Tensor, buffers: Buffers
    ) -> None:
        """Projects each normed token, and writes its key and value to the cache.

        Args:
            metadata: Of the batch.
            cache: Of this layer.
            slot_mapping: Of the layer's KV group, int32 `[T]`.
            buffers: Of the forward pass.
        """
        projections = buffers.projections
        self.weights.qkv(buffers.normed, out=projections.qkv)
        self.backend.rotate_and_write(projections, self.rotation, cache, metadata, slot_mapping)

    def attend(self, metadata: AttentionMetadata, cache: Tensor, buffers: Buffers) -> None:
        """Lets each token read the tokens up to itself in its row."""
        self.backend.attend(
            buffers.projections.query,
            cache,
            metadata,
            group=self.group,
            scale=self.scale,
            window=self.window,
            out=buffers.attended,
        )

    def feed_forward(self, buffers: Buffers) -> None:
        """Maps each normed token through SwiGLU (Shazeer, 2020)."""
        weights = self.weights
        weights.gate_up(buffers.normed, out=buffers.gate_up)
        self.backend.kernels.silu_mul(buffers.gate_up, out=buffers.gated)
        weights.down(buffers.gated, out=buffers.update)


def cos_sin_table(config: ModelConfig) -> Tensor:
    """Gives the rotations of RoPE (Su et al., 2021) for every position of the model.

    The angle is rounded to float32 as `transformers` rounds it: far positions need the same
    rounding for the same tokens. Its cosine is then taken exactly, for the same bits everywhere.

    Returns:
        float32 `[max_model_len, head_dim]`: cosines in the first half, sines in the second.
    """
    frequencies, half = _frequencies(config), config.head_dim // 2
    table = torch.empty(config.max_model_len, config.head_dim)
    for first in range(0, config.max_model_len, _POSITIONS_AT_ONCE):
        part = table[first : first + _POSITIONS_AT_ONCE]
        positions = torch.arange(first, first + len(part), dtype=torch.float32)
        angles = torch.outer(positions, frequencies).double()
        part[:, :half], part[:, half:] = angles.cos(), angles.sin()
    return table


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
