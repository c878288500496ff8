"""Encoders whose layers are those of a decoder: `Transformer` with attention to both sides.

Source: EmbeddingGemma (Schechter Vera et al., 2025).
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from chairlift.api.choices import Quantize
from chairlift.attention.metadata import AttentionMetadata
from chairlift.attention.packed import PackedBackend
from chairlift.model.config import ModelConfig
from chairlift.model.encoders.encoder import Encoder, Packed
from chairlift.model.encoders.spec import EncoderConfig
from chairlift.model.encoders.weights import load_encoder_weights
from chairlift.model.forward.transformer import Transformer
from chairlift.model.parts.weights import Weights
from chairlift.model.weights.layers import load_weights


class BidirectionalEncoder:
    """An encoder of decoder layers; `forward` computes the hidden states of a batch.

    Attributes:
        config: The configuration.
        adapters: None: no adapter changes an encoder.
    """

    adapters = None

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self._transformer = Transformer(config, weights, PackedBackend())
        self._no_cache = torch.empty(config.spec.num_layers, 0)
        self._nothing = torch.empty(1, 0, dtype=torch.int32)

    def reserve(self, max_tokens: int) -> None:
        """Allocate the buffers for batches of at most so many tokens."""
        self._transformer.reserve(max_tokens)

    def forward(self, batch: Packed) -> Tensor:
        """Compute the hidden states `[T, H]`; they lie in a buffer that the next batch overwrites.

        Args:
            batch: T tokens with ids below `vocab_size`, in texts no longer than the model takes.
        """
        metadata = AttentionMetadata(
            rows=self._nothing[0],
            query_start_loc=batch.starts,
            seq_lens=batch.starts.diff(),
            positions=batch.positions,
            slot_mapping=self._nothing,
            block_tables=self._nothing,
            block_size=1,
        )
        return self._transformer.forward(batch.input_ids, metadata, self._no_cache)


def load_encoder_model(
    folder: Path,
    config: EncoderConfig | ModelConfig,
    quantize: Quantize = Quantize.NONE,
    on_progress: Callable[[int, int], None] | None = None,
) -> Encoder | BidirectionalEncoder:
    """Load an encoder of either kind.

    Args:
        folder: Folder of the model.
        config: From `load_encoder_config`.
        quantize: How linear layers are stored.
        on_progress: Called with the bytes done and the bytes in total after every tensor.

    Raises:
        ModelError: The checkpoint does not fit the configuration, or is corrupt.
    """
    if isinstance(config, EncoderConfig):
        return Encoder(config, load_encoder_weights(folder, config, quantize, on_progress))
    return BidirectionalEncoder(config, load_weights(folder, config, on_progress, quantize))
