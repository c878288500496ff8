"""Runs one plan: tables in, forward pass, one draw per row that samples."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from chairlift import _core
from chairlift.api.pooled import Pooled
from chairlift.attention.metadata import AttentionMetadata
from chairlift.core.events import PromptScores
from chairlift.core.plan import Int32Array, PlanView
from chairlift.engine.runner.sampler import Sampled, Sampler
from chairlift.engine.runner.shape import RunnerShape
from chairlift.engine.runner.staging import InputBuffers
from chairlift.engine.runner.step_inputs import (
    NO_BLOCKS,
    SamplingInputs,
    ScoreInputs,
    StateMoves,
    StepInputs,
)
from chairlift.model.forward.transformer import Transformer
from chairlift.model.generic.transformer import GenericTransformer
from chairlift.model.parts.recurrent import States, num_states

SCORED_ROWS = 64
"""Rows of logits of a prompt that exist at a time."""


class Launched(Protocol):
    """A step that was launched."""

    def wait(self) -> Sampled:
        """Wait for the draws; raise the error of a step that failed."""


class ModelRunner:
    """Keeps the row tables that plans change, and runs the model over a plan.

    The tables live here and not in the plan, so that a plan stays a few kilobytes of differences;
    all work over rows is one call of the core or one tensor operation, so that the cost in Python
    does not grow with the batch.

    Attributes:
        model: The model.
        kv_cache: The pool of KV blocks.
        host_pool: The pool of swapped blocks; None without one.
        sampler: Draws tokens.
        sample_ns: Time spent on drawing, until it is set to 0.
    """

    def __init__(
        self,
        model: Transformer | GenericTransformer,
        kv_cache: Tensor,
        shape: RunnerShape,
        clock: Callable[[], int],
        host_pool: Tensor | None = None,
        buffers: Sequence[InputBuffers] | None = None,
        states: States | None = None,
    ) -> None:
        """Allocate the tables.

        Args:
            model: Maps ids and attention metadata to hidden states and logits.
            kv_cache: The pool, one line per layer, as the attention backend allocated it.
            shape: Sizes.
            clock: Returns nanoseconds.
            host_pool: Blocks of preempted requests, in the form of `kv_cache`.
            buffers: Where `apply` writes inputs, one for each step in flight; None allocates them.
            states: States of a hybrid, for all rows, then the probe's, then the snapshots.
        """
        self.model = model
        self.kv_cache = kv_cache
        self.host_pool = host_pool
        self._states = states
        self.sample_ns = 0
        self._clock = clock
        # One slot more than requests have: the probe's, which draws greedily.
        self.sampler = Sampler(shape.num_slots + 1, has_idle_cores=shape.has_idle_cores)
        self._probe_slot = torch.tensor([shape.num_slots], dtype=torch.int32)
        self._block_size = shape.block_size
        rows = shape.max_num_seqs
        self._computed = _int32(rows)
        self._last_token = _int32(rows)
        self._row_slot = _int32(rows)
        self._row_index = _int32(rows)
        self._row_adapter = _int32(rows)
        self._block_tables = _int32(shape.num_kv_groups, rows, shape.max_blocks_per_row)
        self._buffers = buffers or [
            InputBuffers.allocate(
                rows,
                shape.max_num_batched_tokens,
                shape.num_kv_groups,
                rows + shape.max_num_drafts,
            )
            for _ in range(shape.steps_in_flight)
        ]
        self._adapters = [_int32(shape.max_num_batched_tokens) for _ in self._buffers]
        self._scores = [_int32(2, shape.max_num_batched_tokens) for _ in self._buffers]
        self._num_applied = 0
        self.pooled: dict[int, Pooled] = {}
        """Where the vectors go of requests that end with their prompt, by slot."""
        model.reserve(shape.max_num_batched_tokens)

    @property
    def has_states(self) -> bool:
        """Whether rows have recurrent states."""
        return self._states is not None

    def set_pooled(self, slot: int, pooled: Pooled | None) -> None:
        """Begin a request in a slot; one that yields tokens has nothing pooled."""
        if pooled is not None:
            self.pooled[slot] = pooled
        elif self.pooled:
            self.pooled.pop(slot, None)

    def apply(self, plan: Tensor) -> StepInputs:
        """Change the tables as a plan says and derive the inputs of its step.

        Args:
            plan: int32 `[num_numbers]`, from `Scheduler.schedule`.
        """
        turn = self._num_applied % len(self._buffers)
        buffers = self._buffers[turn]
        self._num_applied += 1
        score_rows, score_targets = self._scores[turn]
        num_rows, num_tokens, num_samples, num_scores, num_adapted = _core.apply_plan(
            plan,
            self._block_size,
            computed=self._computed,
            last_token=self._last_token,
            row_slot=self._row_slot,
            row_index=self._row_index,
            row_adapter=self._row_adapter,
            block_tables=self._block_tables,
            rows=buffers.rows,
            input_ids=buffers.input_ids,
            positions=buffers.positions,
            slot_mapping=buffers.slot_mapping,
            query_start_loc=buffers.query_start_loc,
            seq_lens=buffers.seq_lens,
            sample_rows=buffers.sample_rows,
            score_rows=score_rows,
            score_targets=score_targets,
            adapters=self._adapters[turn],
        )
        metadata = AttentionMetadata(
            rows=buffers.rows[:num_rows],
            query_start_loc=buffers.query_start_loc[: num_rows + 1],
            seq_lens=buffers.seq_lens[:num_rows],
            positions=buffers.positions[:num_tokens],
            slot_mapping=buffers.slot_mapping[:, :num_tokens],
            block_tables=self._block_tables,
            block_size=self._block_size,
            # Each token samples: the views depend on the numbers of rows and tokens alone.
            views=(turn, num_rows, num_tokens, num_adapted > 0)
            if num_tokens == num_samples
            else None,
        )
        view = PlanView.of(plan.numpy())
        return StepInputs(
            buffers.input_ids[:num_tokens],
            metadata,
            buffers.sample_rows[:num_samples],
            copies=_pairs(view.copies),
            swap_in=_pairs(view.swap_in),
            swap_out=_pairs(view.swap_out),
            buffer=turn,
            scores=self._score_inputs(metadata, score_rows[:num_scores], score_targets),
            adapters=self._adapters[turn][:num_tokens] if num_adapted else None,
            states=self._state_moves(view.state_updates),
        )

    def _state_moves(self, updates: Int32Array) -> StateMoves | None:
        if len(updates) == 0:
            return None
        rows, kinds, others = torch.from_numpy(updates).unbind(1)
        snapshots = others + num_states(len(self._row_slot))
        of_kind = (_core.LOAD_STATE, _core.COPY_STATE, _core.SAVE_STATE)
        load, copy, save = (kinds == kind for kind in of_kind)
        return StateMoves(
            loads=torch.stack((rows[load], snapshots[load]), dim=1),
            copies=torch.stack((rows[copy], others[copy]), dim=1),
            saves=torch.stack((snapshots[save], rows[save]), dim=1),
        )

    def _score_inputs(
        self, metadata: AttentionMetadata, rows: Tensor, targets: Tensor
    ) -> ScoreInputs | None:
        if len(rows) == 0:
            return None
        of_token = torch.searchsorted(metadata.query_start_loc[1:], rows, right=True)
        slots = self._row_slot.index_select(0, metadata.rows.index_select(0, of_token))
        num_candidates = self.sampler.max_prompt_candidates(slots)
        return ScoreInputs(rows, targets[: len(rows)], num_candidates)

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> Launched:
        """Compute a step: write its keys and values, draw a token for each row that samples.

        Args:
            inputs: Inputs of the step, for which `move_blocks` was called, or of a part of it.
        """
        input_ids, metadata, sample_rows, *_ = inputs
        sampling = constraints = None
        if len(sample_rows) > 0:
            sampling = self.sampling_inputs(inputs)
            # Their masks are computed beside the forward pass.
            constraints = self.sampler.constraints.start(
                sampling.slots, sampling.position, sampling.last_tokens
            )
        # Where every token samples, they do so in order.
        selected = sample_rows if len(sample_rows) < len(input_ids) else None
        scores, num_samples = inputs.scores, len(sample_rows)
        if scores is not None:
            selected = torch.cat((sample_rows, scores.rows))
        batch = (input_ids, metadata, self.kv_cache, selected, inputs.adapters)
        hidden = self.model.forward(*batch, self._states)
        if inputs.states is not None:
            self._copy_states(inputs.states.saves)
        prompt = None if scores is None else self._score(hidden[num_samples:], scores)
        if sampling is None:
            return replace(Sampled.empty(0), prompt=prompt)
        logits = self.model.logits(hidden[:num_samples])
        began = self._clock()
        try:
            sampled = replace(self._sample(logits, sampling, constraints), prompt=prompt)
            if self.pooled:
                self._keep_vectors(hidden[:num_samples], sampling.slots)
            self._last_token.index_copy_(0, sampling.rows.long(), sampled.tokens)
            return sampled
        finally:
            self.sample_ns += self._clock() - began

    def _keep_vectors(self, hidden: Tensor, slots: Tensor) -> None:
        """Keep the hidden states `[S, H]` of those of S draws whose requests yield vectors."""
        for place, slot in enumerate(slots.tolist()):
            if (pooled := self.pooled.get(slot)) is not None:
                pooled.raw = hidden[place].float().numpy().copy()

    def _score(self, hidden: Tensor, scores: ScoreInputs) -> PromptScores:
        """Score tokens of prompts, some rows of logits at a time: all would take gigabytes.

        Raises:
            ArithmeticError: Logits are not finite.
        """
        count, width = len(hidden), scores.num_candidates
        found = PromptScores(
            torch.empty(count, dtype=torch.float32),
            torch.empty(count, dtype=torch.int32),
            torch.empty(count, width, dtype=torch.int32),
            torch.empty(count, width, dtype=torch.float32),
        )
        vocab_size = self.model.config.spec.vocab_size
        logits = torch.empty(min(count, SCORED_ROWS), vocab_size, dtype=torch.float32)
        for start in range(0, count, SCORED_ROWS):
            rows = hidden[start : start + SCORED_ROWS]
            part = slice(start, start + len(rows))
            _core.score_tokens(
                self.model.logits(rows, out=logits[: len(rows)]),
                scores.targets[part],
                *(tensor[part] for tensor in found.tensors()),
            )
        return found

    @torch.inference_mode()
    def move_blocks(self, inputs: StepInputs) -> None:
        """Move blocks to where a step expects them; a block that is swapped out is then free.

        Blocks are first swapped out and in; then blocks are copied that the step writes and other
        requests still read. This is not part of `run`: a step that fails runs again in parts, and
        every part needs these blocks.

        Recurrent states are copied to their rows, too.
        """
        if inputs.states is not None:
            self._copy_states(inputs.states.loads)
            self._copy_states(inputs.states.copies)
        if self.host_pool is not None and len(inputs.swap_out) + len(inputs.swap_in) > 0:
            self._swap(self.host_pool, inputs)
        if len(inputs.copies) > 0:
            self._copy_blocks(inputs.copies)

    def _copy_blocks(self, pairs: Tensor) -> None:
        """Copy blocks within the pool; int32 `[., 2]`: sources and targets."""
        self.model.copy_blocks(self.kv_cache, pairs)

    def _copy_states(self, moves: Tensor) -> None:
        """Copy recurrent states; int32 `[., 2]`: targets and sources."""
        assert self._states is not None, "of a hybrid"
        assert isinstance(self.model, Transformer), "others have no states"
        self.model.copy_states(self._states, moves)

    def _swap(self, host_pool: Tensor, inputs: StepInputs) -> None:
        """Swap blocks out, then in: a block may be swapped in where one was swapped out."""
        copy_blocks = self.model.backend.copy_blocks
        if len(inputs.swap_out) > 0:
            copy_blocks(host_pool, self.kv_cache, inputs.swap_out)
        if len(inputs.swap_in) > 0:
            copy_blocks(self.kv_cache, host_pool, inputs.swap_in)

    def sampling_inputs(
        self, inputs: StepInputs, out: tuple[Tensor, Tensor, Tensor] | None = None
    ) -> SamplingInputs:
        """Return the rows, slots and positions of a step's draws.

        Args:
            inputs: Inputs of the step; S samples.
            out: int32 `[S]` each: where row, index and position are written; None allocates them.
        """
        rows_out, index_out, position_out = out or (None, None, None)
        metadata, sample_rows = inputs.metadata, inputs.sample_rows
        # A token at index i belongs to the row whose range of query_start_loc holds i.
        row_of_sample = torch.searchsorted(metadata.query_start_loc[1:], sample_rows, right=True)
        rows = torch.index_select(metadata.rows, 0, row_of_sample, out=rows_out)
        position = torch.index_select(metadata.positions, 0, sample_rows, out=position_out)
        return SamplingInputs(
            rows=rows,
            slots=self._row_slot.index_select(0, rows),
            index=torch.index_select(self._row_index, 0, rows, out=index_out),
            position=position.add_(1),
            last_tokens=inputs.input_ids.index_select(0, sample_rows),
        )

    def _sample(
        self,
        logits: Tensor,
        sampling: SamplingInputs,
        constraints: _core.ConstraintMasks | None = None,
    ) -> Sampled:
        return self.sampler.sample(
            logits,
            slots=sampling.slots,
            index=sampling.index,
            position=sampling.position,
            last_tokens=sampling.last_tokens,
            constraints=constraints,
        )

    @torch.inference_mode()
    def probe(self) -> None:
        """Compute and draw a token of no request, with the null block as its cache.

        Raises:
            ArithmeticError: The logits are not finite.
        """
        inputs, sampling = self.probe_inputs()
        batch = (inputs.input_ids, inputs.metadata, self.kv_cache, None, None)
        hidden = self.model.forward(*batch, self._states)
        self.check_probe(self._sample(self.model.logits(hidden), sampling))

    def probe_inputs(self) -> tuple[StepInputs, SamplingInputs]:
        """Return a step of one token of no request."""
        one, zero = torch.ones(1, dtype=torch.int32), _int32(1)
        # A row of its own, so that no request loses its recurrent state.
        row = 0 if self._states is None else len(self._row_slot)
        metadata = AttentionMetadata(
            rows=row * one,
            query_start_loc=torch.cat((zero, one)),
            seq_lens=one,
            positions=zero,
            slot_mapping=_int32(len(self._block_tables), 1),
            block_tables=_int32(len(self._block_tables), row + 1, 1),
            block_size=self._block_size,
        )
        none = NO_BLOCKS
        inputs = StepInputs(zero, metadata, zero, copies=none, swap_in=none, swap_out=none)
        return inputs, SamplingInputs(-one, self._probe_slot, zero, one, zero)

    def check_probe(self, sampled: Sampled) -> None:
        """Check the draw of a probe.

        Raises:
            ArithmeticError: The logits were not finite.
        """
        if int(sampled.tokens[0]) < 0:
            message = "the logits are not finite"
            raise ArithmeticError(message)


def _pairs(blocks: Int32Array) -> Tensor:
    """Copy pairs of blocks: the plan's buffer may be written again before they are used."""
    return torch.from_numpy(blocks.copy()) if len(blocks) > 0 else NO_BLOCKS


def _int32(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)
