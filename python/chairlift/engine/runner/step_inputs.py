"""What a step of the model reads: its tokens, where they sample, and which blocks move before."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.attention.metadata import AttentionMetadata

NO_BLOCKS = torch.zeros(0, 2, dtype=torch.int32)


class ScoreInputs(NamedTuple):
    """N tokens of prompts behind which the next token, which is known, gets a log probability."""

    rows: Tensor
    """int32 `[N]`: as indices into the step's tokens."""
    targets: Tensor
    """int32 `[N]`: the tokens behind them."""
    num_candidates: int
    """The most that a request of the step asks for."""

    def part(self, first: int, last: int) -> "ScoreInputs | None":
        """Return those from token `first` to before `last` of the step."""
        is_inside = (self.rows >= first) & (self.rows < last)
        if not is_inside.any():
            return None
        rows, targets = self.rows[is_inside] - first, self.targets[is_inside]
        return ScoreInputs(rows, targets, self.num_candidates)


class StateMoves(NamedTuple):
    """Copies of recurrent states, int32 `[., 2]` each: target and source, rows of the states."""

    loads: Tensor
    """From snapshots, before the step."""
    copies: Tensor
    """From other rows, after that."""
    saves: Tensor
    """To snapshots, after the step."""


class StepInputs(NamedTuple):
    """The inputs of one forward pass: views of the runner's buffers, valid until the step ends."""

    input_ids: Tensor
    """int32 `[T]`"""
    metadata: AttentionMetadata
    sample_rows: Tensor
    """int32 `[S]`: the tokens that sample, as indices into T."""
    copies: Tensor
    """int32 `[., 2]`: blocks that are copied before anything is written, from and to."""
    swap_in: Tensor
    """int32 `[., 2]`: blocks that are swapped in before that: host, device."""
    swap_out: Tensor
    """int32 `[., 2]`: blocks that are swapped out first of all: device, host."""
    buffer: int | None = None
    """The number of the runner's buffer that holds them; None for a part of a step."""
    scores: ScoreInputs | None = None
    """Where prompts get log probabilities; None where none does."""
    adapters: Tensor | None = None
    """int32 `[T]`: the slot of each token's adapter, 0 for none; None where no token has one."""

    states: StateMoves | None = None
    """None where no recurrent state is copied."""

    def part(self, start: int, end: int) -> "StepInputs":
        """Return the rows from `start` to before `end` as a step of their own, with no moves."""
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
        ids, none = self.input_ids[first:last], NO_BLOCKS
        adapters = None if self.adapters is None else self.adapters[first:last]
        scores = None if self.scores is None else self.scores.part(first, last)
        return StepInputs(
            ids, metadata, samples, none, none, none, scores=scores, adapters=adapters
        )


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """The inputs of each of the S draws of a step, int32 `[S]` each."""

    rows: Tensor
    """Rows of the batch; -1 is none."""
    slots: Tensor
    """Slots of the requests."""
    index: Tensor
    """Which of the request's answers."""
    position: Tensor
    """Position of the token that is drawn."""
    last_tokens: Tensor
    """The token before it: the last of the row, or a draft."""
