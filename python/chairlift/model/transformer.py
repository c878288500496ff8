"""The forward pass of every model, top down; what differs between models is in the spec.

The pass is the same on every device: all sums go through the kernels of the attention backend and
the backend itself; PyTorch only holds the memory. On a CPU each token is computed as if it were
alone, so that its logits have the same bits whatever else is in the batch.

Source of the method: Llama (Touvron et al., 2023).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from chairlift._core import Recording
from chairlift.attention.backend import AttentionBackend, Rotation
from chairlift.attention.metadata import AttentionMetadata
from chairlift.model.adapters.tables import AdapterTables, LayerAdapters
from chairlift.model.buffers import Buffers
from chairlift.model.config import ModelConfig
from chairlift.model.kv_cache import layer_slots
from chairlift.model.rope import cos_sin_table
from chairlift.model.spec import LayerSpec
from chairlift.model.weights import LayerWeights, Weights

MOST_RECORDED = 16
"""Forward passes that are kept; a call takes about a kilobyte, and a layer some eight of them."""


class Transformer:
    """A decoder over a paged KV cache.

    Shapes below: T tokens, row after row of the batch; H is `hidden_size`.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        backend: AttentionBackend,
        adapters: AdapterTables | None = None,
    ) -> None:
        self.config = config
        self.adapters = adapters
        self.weights = weights
        self.backend = backend
        spec, device = config.spec, weights.embedding.device
        head_dim, num_positions = spec.shape.head_dim, config.max_model_len
        tables = {
            rope: cos_sin_table(rope, head_dim, num_positions).to(device) for rope in spec.ropes
        }
        parts = zip(spec.layers, weights.layers, spec.layer_groups, layer_slots(spec), strict=True)
        self.layers = [
            DecoderLayer(layer, own_weights, backend, tables[layer.attention.rope], group, slot)
            for layer, own_weights, group, slot in parts
        ]
        # The norm after each layer: before the attention of the next one, at last the final norm.
        norms = [(layer.weights.attention_norm, layer.eps) for layer in self.layers]
        norms.append((weights.final_norm, spec.final_norm.eps))
        self._first_norm, *self._next_norms = norms
        if adapters is not None:
            for layer, own_tables in zip(self.layers, adapters.layers, strict=True):
                layer.adapters = own_tables
        self._reserved: Buffers | None = None
        self._recorded: dict[tuple[int, ...], tuple[Recording, Tensor]] = {}

    def reserve(self, max_tokens: int) -> None:
        """Allocate the buffers for steps of at most so many tokens, and drop recorded passes.

        A recorded pass reads the tables of the runner that it was recorded for.
        """
        self._reserved = self._new_buffers(max_tokens)
        self._recorded.clear()

    def forward(
        self,
        input_ids: Tensor,
        metadata: AttentionMetadata,
        kv_cache: Tensor,
        selected: Tensor | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """Compute the hidden states of a ragged batch, and write its keys and values.

        Most tokens of a prompt are needed for their keys and values alone: the last layer computes
        the rest for the selected tokens only, as llama.cpp does.

        Args:
            input_ids: int32 `[T]`.
            metadata: The row, position and cache slots of each token.
            kv_cache: From `allocate_kv_cache`; the same for batches of equal `metadata.views`.
            selected: int32 `[S]`: the tokens whose hidden states are wanted, as indices into T;
                None wants all.
            adapters: int32 `[T]`: the slot of each token's adapter, 0 for none; None where no token
                has one.

        Returns:
            `[S, H]`, after the final norm; it lies in a buffer that the next step overwrites.
        """
        batch = (input_ids, metadata, kv_cache, selected, adapters)
        if not self.backend.records:
            return self._forward(*batch)
        # Python runs once per step, and not at all for a batch whose views are known: two hundred
        # calls take as long as some of the layers, and other threads may hold the lock.
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
        adapters: Tensor | None,
    ) -> Tensor:
        rows = None if adapters is None else AdaptedRows(adapters, None)
        buffers, (first_norm, first_eps) = self._buffers(input_ids.shape[0]), self._first_norm
        kernels, last = self.backend.kernels, self.layers[-1]
        kernels.select_rows(self.weights.embedding, input_ids, buffers.x)
        kernels.rms_norm(buffers.x, first_norm, first_eps, out=buffers.normed)
        # One view per layer and per KV group, made once per pass.
        caches, slots = kv_cache.unbind(), metadata.slot_mapping.unbind()
        for layer, (next_norm, next_eps) in zip(self.layers, self._next_norms, strict=True):
            cache, weights = caches[layer.slot], layer.weights
            layer.write(metadata, cache, slots[layer.group], buffers, rows)
            if selected is not None and layer is last and selected.shape[0] == 0:
                return buffers.normed[:0]
            layer.attend(metadata, cache, buffers)
            if selected is not None and layer is last:
                buffers = buffers.select(selected, kernels)
                rows = None if adapters is None else AdaptedRows(adapters, selected)
            x, normed, update = buffers.x, buffers.normed, buffers.update
            layer.output(buffers, rows)
            kernels.add_rms_norm(x, update, weights.feed_forward_norm, layer.eps, out=normed)
            layer.feed_forward(buffers, rows)
            kernels.add_rms_norm(x, update, next_norm, next_eps, out=normed)
        return buffers.normed

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Score the vocabulary: float32 `[S, vocab_size]` from the S rows `[S, H]` that sample."""
        return self.weights.head(hidden, out_dtype=torch.float32, out=out)

    def _buffers(self, num_tokens: int) -> Buffers:
        if self._reserved is None:
            return self._new_buffers(num_tokens)
        return self._reserved.first(num_tokens)

    def _new_buffers(self, num_tokens: int) -> Buffers:
        weights, config = self.weights, self.config
        device, stream_dtype = weights.embedding.device, weights.final_norm.dtype
        return Buffers.empty(config.spec, num_tokens, config.dtype, device, stream_dtype)


class AdaptedRows(NamedTuple):
    """The adapters of the rows of a layer's inputs."""

    slots: Tensor
    """int32 `[T]`: of each token; 0 is none."""
    selected: Tensor | None
    """int32 `[S]`: the token of each row, where rows are some of the tokens alone."""


class DecoderLayer:
    """One layer: attention, then a gated feed-forward, each on the normed residual stream."""

    def __init__(
        self,
        spec: LayerSpec,
        weights: LayerWeights,
        backend: AttentionBackend,
        cos_sin: Tensor,
        group: int,
        slot: int,
    ) -> None:
        attention = spec.attention
        self.weights = weights
        self.backend = backend
        self.eps = spec.norm.eps
        qk_eps = self.eps if attention.qk_norm is None else attention.qk_norm.eps
        self.rotation = Rotation(cos_sin, weights.query_norm, weights.key_norm, qk_eps)
        self.scale = attention.scale
        self.window = attention.window
        self.group = group
        self.slot = slot
        """Where the layer's keys and values are inside the blocks of its KV group."""
        self.adapters: LayerAdapters | None = None

    def write(
        self,
        metadata: AttentionMetadata,
        cache: Tensor,
        slot_mapping: Tensor,
        buffers: Buffers,
        rows: AdaptedRows | None = None,
    ) -> None:
        """Project each normed token, and write its key and value to the cache.

        Args:
            metadata: Of the batch.
            cache: Of this layer.
            slot_mapping: Of the layer's KV group, int32 `[T]`.
            buffers: Of the forward pass.
            rows: The adapters of the tokens.
        """
        projections = buffers.projections
        self.weights.qkv(buffers.normed, out=projections.qkv)
        if rows is not None:
            self._adapters.qkv.add(buffers.normed, projections.qkv, *rows)
        self.backend.rotate_and_write(projections, self.rotation, cache, metadata, slot_mapping)

    def attend(self, metadata: AttentionMetadata, cache: Tensor, buffers: Buffers) -> None:
        """Compute the attention of each token to the tokens of its row up to itself."""
        self.backend.attend(
            buffers.projections.query,
            cache,
            metadata,
            group=self.group,
            scale=self.scale,
            window=self.window,
            out=buffers.attended,
        )

    def output(self, buffers: Buffers, rows: AdaptedRows | None = None) -> None:
        """Map what attention computed to an update of the stream."""
        attended = buffers.attended.flatten(1)
        self.weights.output(attended, out=buffers.update)
        if rows is not None:
            self._adapters.output.add(attended, buffers.update, *rows)

    def feed_forward(self, buffers: Buffers, rows: AdaptedRows | None = None) -> None:
        """Map each normed token through SwiGLU (Shazeer, 2020)."""
        weights = self.weights
        weights.gate_up(buffers.normed, out=buffers.gate_up)
        if rows is not None:
            self._adapters.gate_up.add(buffers.normed, buffers.gate_up, *rows)
        self.backend.kernels.silu_mul(buffers.gate_up, out=buffers.gated)
        weights.down(buffers.gated, out=buffers.update)
        if rows is not None:
            self._adapters.down.add(buffers.gated, buffers.update, *rows)

    @property
    def _adapters(self) -> LayerAdapters:
        assert self.adapters is not None, "no row has an adapter where there is no table"
        return self.adapters
