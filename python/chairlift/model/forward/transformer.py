"""The forward pass of every model, top down; what differs between models is in the spec.

The pass is the same on every device: all sums go through the kernels of the attention backend and
the backend itself; PyTorch only holds the memory. On a CPU each token is computed as if it were
alone, so that its logits have the same bits whatever else is in the batch.

Source of the method: Llama (Touvron et al., 2023).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from chairlift._core import Recording
from chairlift.attention.backend import AttentionBackend
from chairlift.attention.metadata import AttentionMetadata
from chairlift.model.config import ModelConfig
from chairlift.model.forward.decoder_layer import AdaptedRows, DecoderLayer
from chairlift.model.forward.kv_cache import LayerViews
from chairlift.model.lora.tables import AdapterTables
from chairlift.model.parts.buffers import Buffers
from chairlift.model.parts.gather import LayerGathers
from chairlift.model.parts.recurrent import States, copy_states
from chairlift.model.parts.weights import Weights
from chairlift.model.specs.model_spec import RopeTable
from chairlift.model.specs.rope import cos_sin_table

MAX_RECORDED = 128
"""Forward passes that are kept, the last that were used: steps with drafts have as many numbers of
tokens for each number of rows. A call takes about a kilobyte, and a layer some eight of them."""


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
        gathers: Sequence[LayerGathers] | None = None,
    ) -> None:
        """Build the pass.

        Args:
            config: The model, or the part of a rank.
            weights: Its weights.
            backend: Stores keys and values.
            adapters: Updates of its layers; None without adapters.
            gathers: What each layer needs of all ranks; None where there is one.
        """
        self.config = config
        self.adapters = adapters
        self.weights = weights
        self.backend = backend
        spec, device = config.spec, weights.embedding.device
        tables = rope_tables(config, device)
        self._layer_views = LayerViews(spec, backend, config.dtype)
        self._last_kept = spec.last_kept
        dtype = weights.embedding.dtype
        self._embedding_multiplier = _rounded(spec.embedding.multiplier, dtype)
        self._input_multiplier = 1.0
        if spec.layer_inputs is not None:
            self._input_multiplier = _rounded(spec.layer_inputs.multiplier, dtype)
        of_ranks: Sequence[LayerGathers | None] = gathers or [None] * spec.num_layers
        self.layers = [
            DecoderLayer(spec, number, layer_weights, backend, tables, group, gather)
            for number, (layer_weights, group, gather) in enumerate(
                zip(weights.layers, spec.layer_groups, of_ranks, strict=True)
            )
        ]
        # The norm after each layer: before the first half of the next one, at last the final norm.
        norms = [layer.first_norm for layer in weights.layers]
        self._first_norm, *self._next_norms = [*norms, weights.final_norm]
        if adapters is not None:
            for layer, layer_tables in zip(self.layers, adapters.layers, strict=True):
                layer.adapters = layer_tables
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
            states: From `allocate_states`, of a hybrid; updated in place. The same tensors for
                batches of equal `metadata.views`.

        Returns:
            `[S, H]`, after the final norm; it lies in a buffer that the next step overwrites.
        """
        batch = (input_ids, metadata, kv_cache, selected, adapters, states)
        if not self.backend.records:
            return self._forward(*batch)
        # Python runs once per step, and not at all for a batch whose views are known: two hundred
        # calls take as long as some of the layers, and other threads may hold the lock.
        recorded = None if metadata.views is None else self._recorded.pop(metadata.views, None)
        if recorded is None:
            with Recording() as recording:
                recorded = recording, self._forward(*batch)
        if metadata.views is not None:
            if len(self._recorded) == MAX_RECORDED:
                self._recorded.pop(next(iter(self._recorded)))
            # Behind all others: the first is the one that was not used for longest.
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
        self.embed(input_ids, buffers)
        if self._first_norm is not None:
            self._first_norm(kernels, buffers.x, buffers.normed)
        # One view per layer and per KV group, made once per pass.
        caches = self._layer_views(kv_cache, metadata.block_size)
        slots = metadata.slot_mapping.unbind()
        for number, (layer, next_norm) in enumerate(
            zip(self.layers, self._next_norms, strict=True)
        ):
            if layer.recurrent is not None:
                assert states is not None, "a hybrid has states"
                layer.update_states(metadata, states[number], buffers)
            if layer.group is not None:
                cache = caches[number]
                assert cache is not None, "of a layer with keys"
                layer.write(metadata, cache, slots[layer.group], buffers, rows)
            if selected is not None and number == self._last_kept and selected.shape[0] == 0:
                return buffers.normed[:0]
            if layer.group is not None and cache is not None:
                layer.attend(metadata, cache, layer.group, buffers)
            if selected is not None and layer is last:
                buffers = buffers.select(selected, kernels, layer.spec, layer.heads)
                rows = None if adapters is None else AdaptedRows(adapters, selected)
            buffers = layer.add_mixed(buffers, next_norm, rows)
            buffers = layer.add_feed_forward(buffers, next_norm, rows)
        return buffers.normed

    def embed(self, input_ids: Tensor, buffers: Buffers) -> None:
        """Write the stream before the first layer, and what each layer gets of each token.

        Args:
            input_ids: int32 `[T]`.
            buffers: The buffers of T tokens.
        """
        embedding, multiplier = self.weights.embedding, self._embedding_multiplier
        self.backend.kernels.select_rows(embedding, input_ids, buffers.x, multiplier)
        self._compute_layer_inputs(input_ids, buffers)

    def _compute_layer_inputs(self, input_ids: Tensor, buffers: Buffers) -> None:
        """Compute what each layer gets of each token, from its id and its embedding."""
        spec, weights = self.config.spec.layer_inputs, self.weights
        if spec is None:
            return
        assert weights.layer_embedding is not None, "as the spec has it"
        assert weights.layer_context is not None, "as the spec has it"
        assert weights.layer_context_norm is not None, "as the spec has it"
        kernels, inputs, context = self.backend.kernels, buffers.layer_inputs, buffers.context
        weights.layer_context(buffers.x, out=inputs)
        kernels.rms_norm(inputs, weights.layer_context_norm, spec.norm_eps, out=context)
        kernels.select_rows(weights.layer_embedding, input_ids, inputs, self._input_multiplier)
        kernels.add_scaled(inputs, context)
        kernels.scale(inputs, 2**-0.5)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Score the vocabulary: float32 `[S, vocab_size]` from the S rows `[S, H]` that sample."""
        assert self.weights.head is not None, "of all but encoders"
        logits = self.weights.head(hidden, out_dtype=torch.float32, out=out)
        head = self.config.spec.head
        if head.multiplier != 1.0 or head.soft_cap is not None:
            self.backend.kernels.scale(logits, head.multiplier, head.soft_cap)
        return logits

    def copy_blocks(self, kv_cache: Tensor, pairs: Tensor) -> None:
        """Copy whole blocks within the pool; int32 `[N, 2]`: source and target."""
        self.backend.copy_blocks(kv_cache, kv_cache, pairs)

    def copy_states(self, states: States, moves: Tensor) -> None:
        """Copy recurrent states between rows; int32 `[N, 2]`: target and source."""
        copy_states(states, moves)

    def _buffers(self, num_tokens: int) -> Buffers:
        if self._reserved is None:
            return self._new_buffers(num_tokens)
        return self._reserved.first(num_tokens)

    def _new_buffers(self, num_tokens: int) -> Buffers:
        weights, config = self.weights, self.config
        device, stream_dtype = weights.embedding.device, weights.final_norm.weight.dtype
        packed = (layer.experts.mixture for layer in weights.layers if layer.experts is not None)
        workspace_bytes = max((mixture.workspace_bytes for mixture in packed), default=0)
        return Buffers.empty(
            config.spec, num_tokens, config.dtype, device, stream_dtype, workspace_bytes
        )


def rope_tables(config: ModelConfig, device: torch.device) -> dict[RopeTable | None, Tensor]:
    """Return the position embeddings of a model, `[max_model_len, rotary_dim]` each."""
    num_positions = config.max_model_len
    tables: dict[RopeTable | None, Tensor] = {
        table: cos_sin_table(table.rope, table.head_dim, num_positions, table.position_scale).to(
            device
        )
        for table in config.spec.rope_tables
    }
    # Where queries and keys are normed, and not rotated.
    tables[None] = torch.empty(num_positions, 0, device=device)
    return tables


def _rounded(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(number).to(dtype))
