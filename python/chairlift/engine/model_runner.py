"""Runs one plan: tables in, forward pass, one draw per row that samples."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift import _core
from chairlift.attention.metadata import AttentionMetadata
from chairlift.engine.sampler import Sampled, Sampler
from chairlift.model.transformer import Transformer
from chairlift.plan import block_copies


class StepInputs(NamedTuple):
    """What one forward pass takes; views into the runner's buffers, valid until the next plan."""

    input_ids: Tensor
    """int32 `[T]`"""
    metadata: AttentionMetadata
    sample_rows: Tensor
    """int32 `[S]`: the tokens that sample, as indices into T."""
    copies: Tensor
    """int32 `[., 2]`: blocks that are copied before anything is written, from and to."""

    def part(self, start: int, end: int) -> "StepInputs":
        """Gives the rows from `start` to before `end` as a step of their own; blocks are copied."""
        whole = self.metadata
        bounds = whole.query_start_loc[start : end + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        metadata = AttentionMetadata(
            rows=whole.rows[start:end],
            query_start_loc=bounds - first,
            seq_lens=whole.seq_lens[start:end],
            positions=whole.positions[first:last],
            slot_mapping=whole.slot_mapping[:, first:last],
            block_tables=whole.block_tables,
            block_size=whole.block_size,
        )
        is_inside = (self.sample_rows >= first) & (self.sample_rows < last)
        samples = self.sample_rows[is_inside] - first
        return StepInputs(self.input_ids[first:last], metadata, samples, self.copies[:0])


class RunnerShape(NamedTuple):
    """Sizes of the runner's tables and of the largest step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_kv_groups: int
    max_blocks_per_row: int
    block_size: int
    num_slots: int


class ModelRunner:
    """Keeps the row tables that plans change, and runs the model over a plan.

    The tables live here and not in the plan, so that a plan stays a few kilobytes of differences;
    all work over rows is one call of the core or one tensor operation, so that the cost in Python
    does not grow with the batch.

    Attributes:
        model: The model.
        kv_cache: The pool of KV blocks.
        sampler: Draws tokens.
        sample_ns: Time spent on drawing, until somebody sets it to 0.
    """

    def __init__(
        self,
        model: Transformer,
        kv_cache: Tensor,
        shape: RunnerShape,
        clock: Callable[[], int],
    ) -> None:
        """Allocates the tables.

        Args:
            model: Takes ids and attention metadata, gives hidden states and logits.
            kv_cache: The pool, one line per layer, as the attention backend allocated it.
            shape: Sizes.
            clock: Gives nanoseconds.
        """
        self.model = model
        self.kv_cache = kv_cache
        self.sample_ns = 0
        self._clock = clock
        # One slot more than requests have: the probe's, which draws greedily.
        self.sampler = Sampler(shape.num_slots + 1)
        self._probe_slot = torch.tensor([shape.num_slots], dtype=torch.int32)
        self._block_size = shape.block_size
        rows, tokens, groups = shape.max_num_seqs, shape.max_num_batched_tokens, shape.num_kv_groups
        self._computed = _int32(rows)
        self._last_token = _int32(rows)
        self._row_slot = _int32(rows)
        self._row_index = _int32(rows)
        self._block_tables = _int32(groups, rows, shape.max_blocks_per_row)
        # Inputs of the forward pass, written anew by each plan.
        self._rows = _int32(rows)
        self._input_ids = _int32(tokens)
        self._positions = _int32(tokens)
        self._slot_mapping = _int32(groups, tokens)
        self._query_start_loc = _int32(rows + 1)
        self._seq_lens = _int32(rows)
        self._sample_rows = _int32(rows)

    def apply(self, plan: Tensor) -> StepInputs:
        """Changes the tables as a plan says and derives the inputs of its step.

        Args:
            plan: int32, from `Scheduler.schedule`.
        """
        num_rows, num_tokens, num_samples = _core.apply_plan(
            plan,
            self._block_size,
            computed=self._computed,
            last_token=self._last_token,
            row_slot=self._row_slot,
            row_index=self._row_index,
            block_tables=self._block_tables,
            rows=self._rows,
            input_ids=self._input_ids,
            positions=self._positions,
            slot_mapping=self._slot_mapping,
            query_start_loc=self._query_start_loc,
            seq_lens=self._seq_lens,
            sample_rows=self._sample_rows,
        )
        metadata = AttentionMetadata(
            rows=self._rows[:num_rows],
            query_start_loc=self._query_start_loc[: num_rows + 1],
            seq_lens=self._seq_lens[:num_rows],
            positions=self._positions[:num_tokens],
            slot_mapping=self._slot_mapping[:, :num_tokens],
            block_tables=self._block_tables,
            block_size=self._block_size,
        )
        copies = torch.from_numpy(block_copies(plan.numpy()).copy())
        samples = self._sample_rows[:num_samples]
        return StepInputs(self._input_ids[:num_tokens], metadata, samples, copies)

    @torch.inference_mode()
    def run(self, inputs: StepInputs) -> Sampled:
        """Computes a step: writes its keys and values, draws a token for each row that samples."""
        input_ids, metadata, sample_rows, copies = inputs
        if len(copies) > 0:
            self.model.backend.copy_blocks(self.kv_cache, copies[:, 0], copies[:, 1])
        hidden = self.model.forward(input_ids, metadata, self.kv_cache)
        if len(sample_rows) == 0:
            return Sampled.empty(0)
        logits = self.model.logits(hidden.index_select(0, sample_rows))
        began = self._clock()
        try:
            return self._sample(logits, metadata, sample_rows)
        finally:
            self.sample_ns += self._clock() - began

    def _sample(self, logits: Tensor, metadata: AttentionMetadata, sample_rows: Tensor) -> Sampled:
        # A token at index i belongs to the row whose range of query_start_loc holds i.
        row_of_sample = torch.searchsorted(metadata.query_start_loc[1:], sample_rows, right=True)
        rows = metadata.rows.index_select(0, row_of_sample)
        sampled = self.sampler.sample(
            logits,
            slots=self._row_slot.index_select(0, rows),
            index=self._row_index.index_select(0, rows),
            position=metadata.positions.index_select(0, sample_rows) + 1,
        )
        self._last_token.index_copy_(0, rows.long(), sampled.tokens)
        return sampled

    @torch.inference_mode()
    def probe(self) -> None:
        """Computes and draws a token that belongs to nobody, with the null block as its cache.

        Raises:
            ArithmeticError: The logits are not finite.
        """
        one, zero = torch.ones(1, dtype=torch.int32), _int32(1)
        metadata = AttentionMetadata(
            rows=zero,
            query_start_loc=torch.cat((zero, one)),
            seq_lens=one,
            positions=zero,
            slot_mapping=torch.zeros_like(self._slot_mapping[:, :1]),
            block_tables=torch.zeros_like(self._block_tables[:, :1]),
            block_size=self._block_size,
        )
        logits = self.model.logits(self.model.forward(zero, metadata, self.kv_cache))
        sampled = self.sampler.sample(logits, slots=self._probe_slot, index=zero, position=one)
        if int(sampled.counts[0]) < 0:
            message = "the logits are not finite"
            raise ArithmeticError(message)


def _int32(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)
