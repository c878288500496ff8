"""Attention on the CPU, by the kernels of `chairlift._core`.

A block holds, per KV head, keys and then values, as the kernels read them: float32 keys
`[head_dim][16]` and values `[16][head_dim]`; bfloat16 keys `[head_dim / 2][16][2]` and values
`[8][head_dim][2]` (pairs along the summed axis).
"""

import torch
from torch import Tensor

from chairlift import _core
from chairlift.attention.backend import AttentionBackend, Scoring
from chairlift.attention.metadata import AttentionMetadata
from chairlift.kernels import cpu


class CpuBackend(AttentionBackend):
    """Keys and values where the CPU kernels read them."""

    layout = "cpu-k_transposed-v_rows-16"
    kernels = cpu
    records = True

    def write(
        self, cache: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor, block_size: int
    ) -> None:
        _core.kv_write(key, value, cache, slot_mapping, block_size)

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
            out = torch.empty(query.shape, dtype=query.dtype)
        _core.paged_attention(
            query,
            cache,
            metadata.block_tables[group],
            metadata.rows,
            metadata.query_start_loc,
            metadata.seq_lens,
            out,
            scale=scoring.scale,
            block_size=metadata.block_size,
            window=scoring.window,
            soft_cap=scoring.soft_cap,
            sinks=scoring.sinks,
        )
        return out
