"""Attention in plain PyTorch over the same block tables: the twin for tests of the kernels.

The online softmax is written out with the names of the Rust and device code: a state `{m, d, o}`
with `update`, `merge` and `normalize`.
"""

from dataclasses import dataclass

import torch
from chairlift.attention.backend import AttentionBackend, Scoring
from chairlift.attention.metadata import AttentionMetadata
from chairlift.kernels import cpu
from torch import Tensor


@dataclass
class State:
    """Attention of some queries over the tokens seen so far.

    `m` `[...]` is the largest score, `d` `[...]` the sum of e^(score - m), `o` `[..., head_dim]`
    the sum of e^(score - m) * value.
    """

    m: Tensor
    d: Tensor
    o: Tensor

    @classmethod
    def empty(cls, query: Tensor) -> "State":
        """The state of no token, for queries `[..., head_dim]`."""
        return cls(
            m=torch.full_like(query[..., 0], -torch.inf),
            d=torch.zeros_like(query[..., 0]),
            o=torch.zeros_like(query),
        )

    def update(self, scores: Tensor, values: Tensor) -> None:
        """Add tokens: scores `[..., tokens]`, -inf if unseen, values `[..., tokens, head_dim]`."""
        m = torch.maximum(self.m, scores.amax(-1))
        base = m.masked_fill(m == -torch.inf, 0)  # no token seen: -inf - -inf would be NaN
        weights = torch.exp(scores - base.unsqueeze(-1))
        factor = torch.exp(self.m - base)
        self.d = self.d * factor + weights.sum(-1)
        self.o = self.o * factor.unsqueeze(-1) + (weights.unsqueeze(-2) @ values).squeeze(-2)
        self.m = m

    def add_sink(self, scores: Tensor) -> None:
        """Add a token of these scores `[...]`, whose value is zero."""
        zeros = torch.zeros_like(self.o).unsqueeze(-2)
        self.update(scores.unsqueeze(-1), zeros)

    def merge(self, other: "State") -> None:
        """Join the state of the same queries over other tokens."""
        m = torch.maximum(self.m, other.m)
        base = m.masked_fill(m == -torch.inf, 0)
        ours, theirs = torch.exp(self.m - base), torch.exp(other.m - base)
        self.d = self.d * ours + other.d * theirs
        self.o = self.o * ours.unsqueeze(-1) + other.o * theirs.unsqueeze(-1)
        self.m = m

    def normalize(self) -> Tensor:
        """Return the attention output."""
        return self.o / self.d.unsqueeze(-1)


class ReferenceBackend(AttentionBackend):
    """In a few lines: a block is keys, then values, token by token."""

    layout = "reference"
    kernels = cpu

    def write(
        self, cache: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor, block_size: int
    ) -> None:
        blocks = cache.view(*cache.shape[:2], 2, block_size, -1)
        block, offset = slot_mapping // block_size, slot_mapping % block_size
        blocks[block, :, 0, offset] = key
        blocks[block, :, 1, offset] = value

    def attend(
        self,
        query: Tensor,
        cache: Tensor,
        metadata: AttentionMetadata,
        *,
        group: int,
        scoring: Scoring,
        out: Tensor | None = None,
    ) -> Tensor:
        if out is None:
            out = torch.empty_like(query, memory_format=torch.contiguous_format)
        starts = metadata.query_start_loc.tolist()
        for index, row in enumerate(metadata.rows.tolist()):
            start, end = starts[index], starts[index + 1]
            table = metadata.block_tables[group, row]
            out[start:end] = _attend_row(
                query[start:end], cache, table, int(metadata.seq_lens[index]), scoring
            )
        return out


def _attend_row(
    query: Tensor, cache: Tensor, table: Tensor, seq_len: int, scoring: Scoring
) -> Tensor:
    """Attention of the last queries `[Q, num_heads, head_dim]` of one row."""
    num_queries, num_heads, head_dim = query.shape
    num_kv_heads = cache.shape[1]
    block_size = cache.shape[2] // (2 * head_dim)
    grouped = query.reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    position, window = torch.arange(seq_len - num_queries, seq_len), scoring.window
    oldest = torch.zeros_like(position) if window is None else position - (window - 1)
    state = State.empty(grouped)
    first = max(0, int(oldest[0])) // block_size if num_queries else 0
    for block in range(first, -(-seq_len // block_size)):
        token = torch.arange(block * block_size, min(seq_len, (block + 1) * block_size))
        head = cache[int(table[block])].view(num_kv_heads, 2, block_size, head_dim)
        key, value = head[:, 0, : len(token)], head[:, 1, : len(token)]
        scores = torch.einsum("qkgd,ktd->qkgt", grouped, key) * scoring.scale
        if (cap := scoring.soft_cap) is not None:
            scores = cap * torch.tanh(scores / cap)
        is_seen = (token <= position[:, None]) & (token >= oldest[:, None])
        scores = scores.masked_fill(~is_seen[:, None, None], -torch.inf)
        # A token that no query of the row may see any more can hold anything.
        value = torch.where(is_seen.any(0)[:, None], value, 0)
        state.update(scores, value.unsqueeze(1))
    if scoring.sinks is not None:
        sinks = scoring.sinks.to(grouped.dtype).view(num_kv_heads, -1)
        state.add_sink(sinks.expand(num_queries, -1, -1))
    return state.normalize().flatten(1, 2)
