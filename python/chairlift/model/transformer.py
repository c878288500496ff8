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
from chairlift.attention.backend import AttentionBackend, Rotation, Scoring
from chairlift.attention.metadata import AttentionMetadata
from chairlift.model.adapters.tables import AdapterTables, LayerAdapters
from chairlift.model.buffers import Buffers
from chairlift.model.config import ModelConfig
from chairlift.model.kv_cache import layer_slots
from chairlift.model.norms import Norm
from chairlift.model.recurrent import LayerStates, RecurrentMixer, States
from chairlift.model.rope import PositionScale, Rope, cos_sin_table
from chairlift.model.spec import LayerSpec, Mlp
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
        tables: _Tables = {
            (rope, scale): cos_sin_table(rope, head_dim, num_positions, scale).to(device)
            for rope, scale in spec.rotations
        }
        # Where queries and keys are normed, and not rotated.
        tables[None, None] = torch.empty(num_positions, 0, device=device)
        self._embedding_multiplier = float(
            torch.tensor(spec.embedding.multiplier).to(weights.embedding.dtype)
        )
        places = zip(spec.layer_groups, layer_slots(spec), strict=True)
        parts = zip(spec.layers, weights.layers, places, strict=True)
        self.layers = [
            DecoderLayer(
                layer, own_weights, backend, _rotation(layer, own_weights, tables), group, slot
            )
            for layer, own_weights, (group, slot) in parts
        ]
        # The norm after each layer: before the first half of the next one, at last the final norm.
        norms = [layer.first_norm for layer in weights.layers]
        self._first_norm, *self._next_norms = [*norms, weights.final_norm]
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
        states: States | None = None,
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
            states: From `allocate_states`, of a hybrid: they move on by the tokens. The same for
                batches of equal `metadata.views`.

        Returns:
            `[S, H]`, after the final norm; it lies in a buffer that the next step overwrites.
        """
        batch = (input_ids, metadata, kv_cache, selected, adapters, states)
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
        states: States | None,
    ) -> Tensor:
        rows = None if adapters is None else AdaptedRows(adapters, None)
        buffers = self._buffers(input_ids.shape[0])
        kernels, last = self.backend.kernels, self.layers[-1]
        multiplier = self._embedding_multiplier
        kernels.select_rows(self.weights.embedding, input_ids, buffers.x, multiplier)
        if self._first_norm is not None:
            self._first_norm(kernels, buffers.x, buffers.normed)
        # One view per layer and per KV group, made once per pass.
        caches, slots = kv_cache.unbind(), metadata.slot_mapping.unbind()
        for number, (layer, next_norm) in enumerate(
            zip(self.layers, self._next_norms, strict=True)
        ):
            if layer.recurrent is not None:
                assert states is not None, "a hybrid has states"
                layer.advance(metadata, states[number], buffers)
            if layer.group is not None:
                cache = caches[layer.slot]
                layer.write(metadata, cache, slots[layer.group], buffers, rows)
            if selected is not None and layer is last and selected.shape[0] == 0:
                return buffers.normed[:0]
            if layer.group is not None:
                layer.attend(metadata, cache, layer.group, buffers)
            if selected is not None and layer is last:
                buffers = buffers.select(selected, kernels, layer.spec)
                rows = None if adapters is None else AdaptedRows(adapters, selected)
            buffers = layer.add_mixed(buffers, next_norm, rows)
            buffers = layer.add_feed_forward(buffers, next_norm, rows)
        return buffers.normed

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Score the vocabulary: float32 `[S, vocab_size]` from the S rows `[S, H]` that sample."""
        assert self.weights.head is not None, "of all but encoders"
        logits = self.weights.head(hidden, out_dtype=torch.float32, out=out)
        head = self.config.spec.head
        if head.multiplier != 1.0 or head.soft_cap is not None:
            self.backend.kernels.scale(logits, head.multiplier, head.soft_cap)
        return logits

    def _buffers(self, num_tokens: int) -> Buffers:
        if self._reserved is None:
            return self._new_buffers(num_tokens)
        return self._reserved.first(num_tokens)

    def _new_buffers(self, num_tokens: int) -> Buffers:
        weights, config = self.weights, self.config
        device, stream_dtype = weights.embedding.device, weights.final_norm.weight.dtype
        return Buffers.empty(config.spec, num_tokens, config.dtype, device, stream_dtype)


class AdaptedRows(NamedTuple):
    """The adapters of the rows of a layer's inputs."""

    slots: Tensor
    """int32 `[T]`: of each token; 0 is none."""
    selected: Tensor | None
    """int32 `[S]`: the token of each row, where rows are some of the tokens alone."""


_Tables = dict[tuple[Rope | None, PositionScale | None], Tensor]
"""From `cos_sin_table`; without RoPE one that rotates nothing."""


def _rotation(layer: LayerSpec, weights: LayerWeights, tables: _Tables) -> Rotation | None:
    attention = layer.attention
    if attention is None or (attention.rope is None and attention.qk_norm is None):
        return None
    rope, norm = attention.rope, attention.qk_norm
    return Rotation(
        cos_sin=tables[rope, None],
        query_cos_sin=tables[rope, attention.position_scale],
        is_interleaved=rope is not None and rope.interleaved,
        query_norm=weights.query_norm,
        key_norm=weights.key_norm,
        eps=1e-6 if norm is None else norm.eps,
        norm_offset=float(norm is not None and norm.plus_one),
    )


class DecoderLayer:
    """One layer: a mixer of tokens, then a feed-forward, each adding to the residual stream.

    What the spec does not have is skipped.
    """

    def __init__(
        self,
        spec: LayerSpec,
        weights: LayerWeights,
        backend: AttentionBackend,
        rotation: Rotation | None,
        group: int | None,
        slot: int,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.backend = backend
        self.rotation = rotation
        self.scoring: Scoring | None = None
        if (own := spec.attention) is not None:
            self.scoring = Scoring(own.scale, own.window, own.soft_cap)
        self.recurrent: RecurrentMixer | None = None
        if spec.recurrent is not None and weights.recurrent is not None:
            self.recurrent = RecurrentMixer(spec.recurrent, weights.recurrent, backend.kernels)
        self.group = group
        """Of its keys and values; None without them."""
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
        """Project each token, and write its key and value to the cache.

        Args:
            metadata: Of the batch.
            cache: Of this layer.
            slot_mapping: Of the layer's KV group, int32 `[T]`.
            buffers: Of the forward pass.
            rows: The adapters of the tokens.
        """
        projections, inputs = buffers.projections, self._inputs(buffers)
        assert self.weights.qkv is not None, "as the spec has it"
        self.weights.qkv(inputs, out=projections.qkv)
        if rows is not None:
            self._adapters.qkv.add(inputs, projections.qkv, *rows)
        self.backend.rotate_and_write(projections, self.rotation, cache, metadata, slot_mapping)

    def advance(self, metadata: AttentionMetadata, states: LayerStates, buffers: Buffers) -> None:
        """Compute each token from the state of its row, which moves on."""
        assert self.recurrent is not None, "as the spec has it"
        self.recurrent(self._inputs(buffers), metadata, states, buffers)

    def attend(
        self, metadata: AttentionMetadata, cache: Tensor, group: int, buffers: Buffers
    ) -> None:
        """Compute the attention of each token to the tokens of its row up to itself."""
        assert self.scoring is not None, "as the spec has it"
        projections, out = buffers.projections, buffers.attended
        self.backend.attend(
            projections.query, cache, metadata, group=group, scoring=self.scoring, out=out
        )
        if projections.gate.shape[1] > 0:
            self.backend.kernels.gate_by_sigmoid(out.flatten(1), projections.gate)

    def add_mixed(
        self, buffers: Buffers, next_norm: Norm | None, rows: AdaptedRows | None = None
    ) -> Buffers:
        """Add what the mixer computed to the stream, and norm that for what comes next.

        Args:
            buffers: Of the forward pass.
            next_norm: After the layer.
            rows: The adapters of the tokens.
        """
        spec, after = self.spec, self.weights.attention_norm_after
        before = next_norm if spec.feed_forward is None else self.weights.feed_forward_norm
        if self.recurrent is not None:
            self.recurrent.output(buffers)
            before_now = before if spec.attention is None else None
            buffers = self._add(buffers, spec.recurrent_multiplier, after, before_now)
        if spec.attention is not None:
            self._output(buffers, rows)
            buffers = self._add(buffers, spec.attention_multiplier, after, before)
        return buffers

    def _output(self, buffers: Buffers, rows: AdaptedRows | None) -> None:
        """Map what attention computed to an update of the stream."""
        attended = buffers.attended.flatten(1)
        assert self.weights.output is not None, "as the spec has it"
        self.weights.output(attended, out=buffers.update)
        if rows is not None:
            self._adapters.output.add(attended, buffers.update, *rows)

    def add_feed_forward(
        self, buffers: Buffers, next_norm: Norm | None, rows: AdaptedRows | None = None
    ) -> Buffers:
        """Add what the feed-forward makes of each token to the stream; see `add_mixed`."""
        spec, after = self.spec, self.weights.feed_forward_norm_after
        if spec.feed_forward is None:
            return buffers
        self._feed_forward(buffers, rows)
        return self._add(buffers, spec.feed_forward_multiplier, after, next_norm)

    def _feed_forward(self, buffers: Buffers, rows: AdaptedRows | None) -> None:
        """Map each token to an update of the stream."""
        spec, dense, experts = self.spec.experts, self.spec.dense, self.weights.experts
        if dense is not None:
            self._dense(dense, buffers, rows)
        if experts is None:
            return
        inputs = self._inputs(buffers)
        logits = buffers.router[:, : experts.router.out_features]
        experts.router(inputs, out=logits)
        if dense is None:
            experts.packed(inputs, logits, buffers.update)
        else:
            assert spec is not None, "a shared one is beside them"
            experts.packed(inputs, logits[:, : spec.num], buffers.routed)
            if spec.shared_is_gated:
                self.backend.kernels.gate_by_sigmoid(buffers.update, logits[:, spec.num :])
            self.backend.kernels.add_scaled(buffers.update, buffers.routed)

    def _dense(self, spec: Mlp, buffers: Buffers, rows: AdaptedRows | None) -> None:
        """Map each token through a feed-forward that computes all of them."""
        weights, inputs = self.weights, self._inputs(buffers)
        kernels = self.backend.kernels
        assert weights.gate_up is not None, "as the spec has it"
        assert weights.down is not None, "as the spec has it"
        gate_up = buffers.gate_up[:, : weights.gate_up.out_features]
        gated = buffers.gated[:, : spec.intermediate_size]
        weights.gate_up(inputs, out=gate_up)
        if rows is not None:
            self._adapters.gate_up.add(inputs, gate_up, *rows)
        if spec.gate_multiplier != 1.0:
            kernels.scale(gate_up[:, : spec.intermediate_size], spec.gate_multiplier)
        if spec.gated:
            kernels.activate_mul(gate_up, spec.activation, out=gated)
        else:
            kernels.activate(gate_up, spec.activation, out=gated)
        weights.down(gated, out=buffers.update)
        if rows is not None:
            self._adapters.down.add(gated, buffers.update, *rows)

    def _add(
        self, buffers: Buffers, multiplier: float, after: Norm | None, before: Norm | None
    ) -> Buffers:
        """Add an update to the stream, perhaps normed, and norm the sum for what comes next.

        The result is in `normed` of the buffers that are returned: it may have swapped memory with
        the update.
        """
        kernels = self.backend.kernels
        if after is not None:
            after(kernels, buffers.update, buffers.normed)
            buffers = buffers._replace(normed=buffers.update, update=buffers.normed)
        x, normed, update = buffers.x, buffers.normed, buffers.update
        if before is not None and multiplier == 1.0:
            before.of_sum(kernels, x, update, normed)
            return buffers
        kernels.add_scaled(x, update, multiplier)
        if before is not None:
            before(kernels, x, normed)
        return buffers

    def _inputs(self, buffers: Buffers) -> Tensor:
        """Return what both halves map: `[T, H]`."""
        return buffers.normed if self.spec.norm_before else buffers.x

    @property
    def _adapters(self) -> LayerAdapters:
        assert self.adapters is not None, "no row has an adapter where there is no table"
        return self.adapters
