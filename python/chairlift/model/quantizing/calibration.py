"""A model layer by layer: what each linear layer gets as inputs, after the layers before it.

Memory holds the weights of one layer. A layer is computed as it is, to see the inputs of its parts,
then quantized, for what the next layer gets.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from chairlift.attention.cpu import CpuBackend
from chairlift.attention.metadata import AttentionMetadata
from chairlift.kernels import ExpertLayers, LinearLayer
from chairlift.model.config import ModelConfig
from chairlift.model.forward.decoder_layer import DecoderLayer
from chairlift.model.forward.kv_cache import LayerViews, allocate_kv_cache
from chairlift.model.forward.transformer import Transformer, rope_tables
from chairlift.model.parts.buffers import Buffers
from chairlift.model.parts.norms import Norm
from chairlift.model.parts.recurrent import allocate_states
from chairlift.model.parts.weights import LayerWeights, Weights
from chairlift.model.quantizing.compensation import SecondMoments
from chairlift.model.tensors.part_tensors import LinearTensors, Part
from chairlift.model.weights.reader import WeightReader

_BLOCK_SIZE = 16
"""Tokens of a KV block."""


class ObservedLinear:
    """A linear layer that sums the products of its inputs."""

    def __init__(self, layer: LinearLayer, tensors: LinearTensors) -> None:
        """Take a layer.

        Args:
            layer: The layer, as it is stored.
            tensors: Which one it is.
        """
        self._layer = layer
        self.tensors = tensors
        self.moments = SecondMoments(layer.in_features)
        self.in_features = layer.in_features
        self.out_features = layer.out_features

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are stored."""
        return self._layer.num_bytes

    def __call__(
        self, x: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return `x W^T + b`; see `LinearLayer`."""
        self.moments.add(x)
        return self._layer(x, out_dtype, out)


class ObservingReader(WeightReader):
    """Packs the parts of a layer as they are stored; some linear layers observe their inputs."""

    observes: Callable[[LinearTensors], bool] = staticmethod(lambda _: False)

    def part(self, part: Part) -> Norm | LinearLayer | ExpertLayers | Tensor:
        """Read a part of a model; see `WeightReader`."""
        if isinstance(part, LinearTensors) and self.observes(part):
            return ObservedLinear(self.linear(part, None), part)
        return super().part(part)


class LayerByLayer:
    """Some rows of tokens on their way through a model, all of them through one layer at a time."""

    def __init__(self, config: ModelConfig, weights: Weights, ids: Tensor) -> None:
        """Embed the tokens.

        Args:
            config: The model's.
            weights: What is no layer's; the layers have no parts.
            ids: int32 `[rows, T]`.
        """
        backend, spec, num_tokens = CpuBackend(), config.spec, ids.numel()
        self._config, self._backend = config, backend
        self._tables = rope_tables(config, weights.embedding.device)
        self._metadata, num_blocks = _batch(ids, len(spec.kv_windows))
        pool = allocate_kv_cache(config, backend, num_blocks, _BLOCK_SIZE)
        self._caches = LayerViews(spec, backend, config.dtype)(pool, _BLOCK_SIZE)
        self._states = allocate_states(spec, len(ids))
        self._buffers = Buffers.empty(
            spec, num_tokens, config.dtype, weights.embedding.device, torch.float32
        )
        Transformer(config, weights, backend).embed(ids.flatten(), self._buffers)

    def observe(self, number: int, weights: LayerWeights) -> Iterator[ObservedLinear]:
        """Compute a layer for what its parts observe; the stream stays before it.

        Args:
            number: The number of the layer.
            weights: Its parts, of an `ObservingReader`.

        Yields:
            The parts that observed something.
        """
        before = self._buffers
        stream = before.x.clone()
        self.advance(number, weights)
        self._buffers = before
        before.x.copy_(stream)
        for state in self._states[number]:
            state.zero_()
        yield from (part for part in weights.leaves() if isinstance(part, ObservedLinear))

    def advance(self, number: int, weights: LayerWeights) -> None:
        """Compute a layer, after which the stream is that of the next one."""
        config, buffers, metadata = self._config, self._buffers, self._metadata
        group = config.spec.layer_groups[number]
        layer = DecoderLayer(config.spec, number, weights, self._backend, self._tables, group)
        if weights.first_norm is not None:
            weights.first_norm(self._backend.kernels, buffers.x, buffers.normed)
        if layer.recurrent is not None:
            layer.update_states(metadata, self._states[number], buffers)
        cache = self._caches[number]
        if group is not None and cache is not None:
            layer.write(metadata, cache, metadata.slot_mapping[group], buffers)
            layer.attend(metadata, cache, group, buffers)
        # The next layer norms the stream itself.
        self._buffers = layer.add_feed_forward(layer.add_mixed(buffers, None), None)


def _batch(ids: Tensor, num_groups: int) -> tuple[AttentionMetadata, int]:
    """Return a batch of whole prompts, each with blocks of its own, and the number of blocks."""
    num_rows, length = ids.shape
    columns = -(-length // _BLOCK_SIZE)
    tables = 1 + torch.arange(num_groups * num_rows * columns).int()
    tables = tables.view(num_groups, num_rows, columns)
    places = torch.arange(length)
    slots = tables[:, :, places // _BLOCK_SIZE] * _BLOCK_SIZE + (places % _BLOCK_SIZE).int()
    metadata = AttentionMetadata(
        rows=torch.arange(num_rows).int(),
        query_start_loc=(torch.arange(num_rows + 1) * length).int(),
        seq_lens=torch.full((num_rows,), length).int(),
        positions=places.repeat(num_rows).int(),
        slot_mapping=slots.flatten(1),
        block_tables=tables,
        block_size=_BLOCK_SIZE,
    )
    return metadata, 1 + tables.numel()
