"""Drives a Transformer over a paged cache by hand: what scheduler and runner do, in miniature.

batch = PagedBatch(model, num_rows=2, max_len=64)
batch.step({0: prompt})               # logits of every token of row 0
batch.step({0: [token], 1: prompt})   # row 0 decodes while row 1 joins
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

import torch
from chairlift.attention.cpu import CpuBackend
from chairlift.attention.metadata import AttentionMetadata
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import allocate_kv_cache
from chairlift.model.forward.transformer import Transformer
from chairlift.model.parts.recurrent import allocate_states
from chairlift.model.weights.layers import load_weights
from torch import Tensor

BLOCK_SIZE = 16


def load_model(folder, **settings):
    """Return the Transformer of a model folder on the CPU backend."""
    config = ModelConfig.load(folder, **settings)
    return Transformer(config, load_weights(folder, config), CpuBackend())


class PagedBatch:
    """Rows of tokens whose keys and values lie in blocks scattered over the pool."""

    def __init__(self, model: Transformer, num_rows: int, max_len: int, seed: int = 0) -> None:
        self.model = model
        self.computed = [0] * num_rows
        num_groups = len(model.config.spec.kv_windows)
        columns = -(-max_len // BLOCK_SIZE)
        owned = num_groups * num_rows * columns
        num_blocks = 1 + 2 * owned
        order = 1 + torch.randperm(2 * owned, generator=torch.Generator().manual_seed(seed))
        self.block_tables = order[:owned].int().view(num_groups, num_rows, columns)
        self.kv_cache = allocate_kv_cache(model.config, CpuBackend(), num_blocks, BLOCK_SIZE)
        self.states = allocate_states(model.config.spec, num_rows)
        for state in chain.from_iterable(self.states):
            state.fill_(torch.nan)
        # Blocks that no row owns: one read of them shows in every logit.
        self.kv_cache[:, order[owned:]] = torch.nan

    def step(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Compute the next tokens of some rows; return the logits `[len(chunk), vocab]` of each."""
        lengths = [len(chunk) for chunk in chunks.values()]
        logits = self.model.logits(self.hidden(chunks))
        return dict(zip(chunks, logits.split(lengths), strict=True))

    def hidden(
        self,
        chunks: Mapping[int, Sequence[int]],
        selected: Sequence[int] | None = None,
        adapters: Mapping[int, int] | None = None,
    ) -> Tensor:
        """Compute the next tokens; return the hidden states of all, or of the selected ones.

        Rows may have an adapter, by its slot.
        """
        input_ids = torch.tensor([token for chunk in chunks.values() for token in chunk]).int()
        indices = None if selected is None else torch.tensor(selected, dtype=torch.int32)
        slots = None
        if adapters is not None:
            each = [adapters.get(row, 0) for row, chunk in chunks.items() for _ in chunk]
            slots = torch.tensor(each, dtype=torch.int32)
        metadata = self._metadata(chunks)
        hidden = self.model.forward(
            input_ids, metadata, self.kv_cache, indices, slots, states=self.states
        )
        for row, chunk in chunks.items():
            self.computed[row] += len(chunk)
        return hidden

    def _metadata(self, chunks: Mapping[int, Sequence[int]]) -> AttentionMetadata:
        spans = [
            (row, torch.arange(self.computed[row], self.computed[row] + len(chunk)))
            for row, chunk in chunks.items()
        ]
        slots = [
            self.block_tables[:, row, span // BLOCK_SIZE] * BLOCK_SIZE + span % BLOCK_SIZE
            for row, span in spans
        ]
        return AttentionMetadata(
            rows=torch.tensor([row for row, _ in spans]).int(),
            query_start_loc=torch.tensor([0, *accumulate(len(span) for _, span in spans)]).int(),
            seq_lens=torch.tensor([int(span[-1]) + 1 for _, span in spans]).int(),
            positions=torch.cat([span for _, span in spans]).int(),
            slot_mapping=torch.cat(slots, dim=1).int(),
            block_tables=self.block_tables,
            block_size=BLOCK_SIZE,
        )


def prompt_logits(model: Transformer, prompt: Sequence[int], chunk: int | None = None) -> Tensor:
    """Return the logits `[len(prompt), vocab]` of a prompt alone, `chunk` tokens at a time."""
    batch = PagedBatch(model, num_rows=1, max_len=len(prompt))
    size = chunk or len(prompt)
    return torch.cat(
        [batch.step({0: prompt[at : at + size]})[0] for at in range(0, len(prompt), size)]
    )


def generate(
    model: Transformer, prompts: Sequence[Sequence[int]], num_tokens: int, budget: int
) -> list[list[int]]:
    """Answer all prompts in one batch greedily; a step computes at most `budget` tokens.

    Every row's `computed` chases the length of its sequence, so that prompts are cut into chunks
    and rows that decode share their steps with rows that still read.
    """
    batch = PagedBatch(model, len(prompts), max(map(len, prompts)) + num_tokens)
    sequences = [list(prompt) for prompt in prompts]
    goals = [len(prompt) + num_tokens for prompt in prompts]
    while any(len(s) < goal for s, goal in zip(sequences, goals, strict=True)):
        left, chunks = budget, {}
        for row, sequence in enumerate(sequences):
            chunk = sequence[batch.computed[row] :][:left]
            if chunk and len(sequence) < goals[row]:
                chunks[row] = chunk
                left -= len(chunk)
        for row, logits in batch.step(chunks).items():
            if batch.computed[row] == len(sequences[row]):
                sequences[row].append(int(logits[-1].argmax()))
    return [s[len(p) :] for s, p in zip(sequences, prompts, strict=True)]
