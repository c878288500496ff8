"""One decoder layer: a mixer of tokens, then a feed-forward, over the buffers of a forward pass."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from chairlift.attention.backend import AttentionBackend, Rotation, Scoring
from chairlift.attention.metadata import AttentionMetadata
from chairlift.model.lora.tables import LayerAdapters
from chairlift.model.parts.buffers import Buffers, HeadBuffers
from chairlift.model.parts.gather import LayerGathers
from chairlift.model.parts.norms import Norm
from chairlift.model.parts.recurrent import LayerStates, RecurrentMixer
from chairlift.model.parts.weights import ExpertNormWeights, ExpertWeights, LayerWeights
from chairlift.model.specs.layer_parts import Attention, Mlp
from chairlift.model.specs.model_spec import ModelSpec, RopeTable
from chairlift.model.specs.vocabulary import LayerInputs
from chairlift.model.weights.gathered import whole_inputs


class AdaptedRows(NamedTuple):
    """The adapters of the rows of a layer's inputs."""

    slots: Tensor
    """int32 `[T]`: of each token; 0 is none."""
    selected: Tensor | None
    """int32 `[S]`: the token of each row, where rows are some of the tokens alone."""


RopeTables = Mapping[RopeTable | None, Tensor]
"""From `cos_sin_table`; that of None rotates nothing."""


class DecoderLayer:
    """One layer: a mixer of tokens, then a feed-forward, each adding to the residual stream.

    What the spec does not have is skipped.
    """

    def __init__(
        self,
        model: ModelSpec,
        number: int,
        weights: LayerWeights,
        backend: AttentionBackend,
        tables: RopeTables,
        group: int | None,
        gathers: LayerGathers | None = None,
    ) -> None:
        """Build layer `number` of a model.

        Args:
            model: The model, or the part of a rank.
            number: Which layer it is.
            weights: Those of the layer.
            backend: Stores keys and values.
            tables: Has the position embeddings.
            group: KV group of the layer; None without keys and values.
            gathers: What the layer needs of all ranks; None where there is one.
        """
        gathers = gathers or LayerGathers()
        self.spec = spec = model.layers[number]
        self.weights = weights
        self.backend = backend
        self.rotation: Rotation | None = None
        self.scoring: Scoring | None = None
        self.heads: int | None = None
        """Which of the model's heads the layer projects; None without attention."""
        if (attention := spec.attention) is not None:
            self.rotation = _rotation(attention, weights, tables, gathers)
            self.scoring = Scoring(
                attention.scale, attention.window, attention.soft_cap, weights.sinks
            )
            self.heads = model.heads.index(attention.heads)
        self.recurrent: RecurrentMixer | None = None
        if spec.recurrent is not None and weights.recurrent is not None:
            self.recurrent = RecurrentMixer(
                spec.recurrent, weights.recurrent, backend.kernels, gathers.mixed
            )
        self.inputs = model.layer_inputs
        self._number = number
        self._scalar = 1.0 if weights.scalar is None else float(weights.scalar)
        self.group = group
        """KV group of its keys and values; None without them."""
        self.adapters: LayerAdapters | None = None

    def write(
        self,
        metadata: AttentionMetadata,
        cache: Tensor,
        slot_mapping: Tensor,
        buffers: Buffers,
        rows: AdaptedRows | None = None,
    ) -> None:
        """Project each token, and write its key and value to the cache unless those are another's.

        Args:
            metadata: The batch.
            cache: This layer's, `[num_blocks, num_kv_heads, ...]`.
            slot_mapping: int32 `[T]`, of the layer's KV group.
            buffers: The buffers of the forward pass.
            rows: The adapters of the tokens.
        """
        projections, inputs = self._heads(buffers).projections, self._inputs(buffers)
        assert self.weights.qkv is not None, "as the spec has it"
        self.weights.qkv(inputs, out=projections.qkv)
        if rows is not None:
            self._adapters.qkv.add(inputs, projections.qkv, *rows)
        attention = self.spec.attention
        if attention is None or attention.kv_of is not None:
            self.backend.rotate_queries(projections, self.rotation, metadata)
            return
        if self.weights.value_norm is not None and attention.value_norm_eps is not None:
            # Before the keys change, which may be the values, too.
            values, out = projections.projected_value.flatten(1), projections.value.flatten(1)
            norm = self.weights.value_norm
            self.backend.kernels.rms_norm(values, norm, attention.value_norm_eps, out=out)
        self.backend.rotate_and_write(projections, self.rotation, cache, metadata, slot_mapping)

    def update_states(
        self, metadata: AttentionMetadata, states: LayerStates, buffers: Buffers
    ) -> None:
        """Compute each token from the state of its row, and update that state."""
        assert self.recurrent is not None, "as the spec has it"
        self.recurrent(self._inputs(buffers), metadata, states, buffers)

    def attend(
        self, metadata: AttentionMetadata, cache: Tensor, group: int, buffers: Buffers
    ) -> None:
        """Compute the attention of each token to the tokens of its row up to itself.

        Args:
            metadata: The batch.
            cache: This layer's, `[num_blocks, num_kv_heads, ...]`.
            group: KV group of the layer.
            buffers: The buffers of the forward pass.
        """
        assert self.scoring is not None, "as the spec has it"
        projections, out = self._heads(buffers)
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
            buffers: The buffers of the forward pass.
            next_norm: The norm after the layer; None where there is none.
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
        attended = self._heads(buffers).attended.flatten(1)
        assert self.weights.output is not None, "as the spec has it"
        self.weights.output(attended, out=buffers.update)
        if rows is not None:
            inputs = whole_inputs(self.weights.output, attended)
            self._adapters.output.add(inputs, buffers.update, *rows)

    def add_feed_forward(
        self, buffers: Buffers, next_norm: Norm | None, rows: AdaptedRows | None = None
    ) -> Buffers:
        """Add what the feed-forward makes of each token to the stream; see `add_mixed`.

        What is made of the layer's inputs and of the sum is added to that.
        """
        spec, after = self.spec, self.weights.feed_forward_norm_after
        if spec.feed_forward is None:
            return buffers
        self._feed_forward(buffers, rows)
        multiplier = spec.feed_forward_multiplier
        if self.inputs is not None:
            buffers = self._add(buffers, multiplier, after, None)
            self._map_inputs(self.inputs, buffers)
            multiplier, after = 1.0, self.weights.input_norm
        if not spec.has_scalar:
            return self._add(buffers, multiplier, after, next_norm)
        buffers = self._add(buffers, multiplier, after, None)
        self.backend.kernels.scale(buffers.x, self._scalar)
        if next_norm is not None:
            next_norm(self.backend.kernels, buffers.x, buffers.normed)
        return buffers

    def _feed_forward(self, buffers: Buffers, rows: AdaptedRows | None) -> None:
        """Map each token to an update of the stream."""
        spec, dense, experts = self.spec.experts, self.spec.dense, self.weights.experts
        if dense is not None:
            self._dense(dense, buffers, rows)
        if experts is None:
            return
        if experts.norms is not None:
            self._add_experts(experts, experts.norms, buffers)
            return
        inputs = self._inputs(buffers)
        logits = buffers.router[:, : experts.router.out_features]
        experts.router(inputs, out=logits)
        if dense is None:
            experts.mixture(inputs, logits, buffers.update, buffers.experts)
        else:
            assert spec is not None, "a shared one is beside them"
            experts.mixture(inputs, logits[:, : spec.num], buffers.routed, buffers.experts)
            if spec.shared_is_gated:
                self.backend.kernels.gate_by_sigmoid(buffers.update, logits[:, spec.num :])
            self.backend.kernels.add_scaled(buffers.update, buffers.routed)

    def _add_experts(
        self, experts: ExpertWeights, norms: ExpertNormWeights, buffers: Buffers
    ) -> None:
        """Add what experts make of the stream to the update of the shared one, both normed."""
        kernels, x, normed = self.backend.kernels, buffers.x, buffers.normed
        logits = buffers.router[:, : experts.router.out_features]
        norms.router_norm(kernels, x, normed)
        experts.router(normed, out=logits)
        norms.experts_norm(kernels, x, normed)
        experts.mixture(normed, logits, buffers.routed, buffers.experts)
        norms.shared_norm_after(kernels, buffers.update, normed)
        norms.experts_norm_after(kernels, buffers.routed, buffers.update)
        kernels.add_scaled(buffers.update, normed)

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
            self._adapters.down.add(whole_inputs(weights.down, gated), buffers.update, *rows)

    def _map_inputs(self, spec: LayerInputs, buffers: Buffers) -> None:
        """Map the inputs of the layer, by gates that the stream makes, to an update of that."""
        weights, size = self.weights, spec.size
        gates, gated = buffers.gate_up[:, :size], buffers.gated[:, :size]
        layer_inputs = buffers.layer_inputs[:, self._number * size : (self._number + 1) * size]
        assert weights.input_gate is not None, "as the spec has it"
        assert weights.input_projection is not None, "as the spec has it"
        weights.input_gate(buffers.x, out=gates)
        self.backend.kernels.activate_mul(gates, spec.activation, out=gated, up=layer_inputs)
        weights.input_projection(gated, out=buffers.update)

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

    def _heads(self, buffers: Buffers) -> HeadBuffers:
        assert self.heads is not None, "of a layer with attention"
        return buffers.heads[self.heads]

    @property
    def _adapters(self) -> LayerAdapters:
        assert self.adapters is not None, "no row has an adapter where there is no table"
        return self.adapters


def _rotation(
    attention: Attention, weights: LayerWeights, tables: RopeTables, gathers: LayerGathers
) -> Rotation | None:
    rope, norm = attention.rope, attention.qk_norm
    if rope is None and norm is None:
        return None
    keys = queries = tables[None]
    if rope is not None:
        keys = tables[RopeTable(rope, attention.head_dim)]
        queries = tables[RopeTable(rope, attention.head_dim, attention.position_scale)]
    return Rotation(
        cos_sin=keys,
        query_cos_sin=queries,
        is_interleaved=rope is not None and rope.interleaved,
        query_norm=weights.query_norm,
        key_norm=weights.key_norm,
        eps=1e-6 if norm is None else norm.eps,
        norm_offset=float(norm is not None and norm.plus_one),
        whole_queries=gathers.queries,
        whole_keys=gathers.keys,
    )
