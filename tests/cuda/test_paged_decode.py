"""Split-KV decode against the dense twin."""

import pytest
import torch
from torch import Tensor

from tests.cuda.conftest import Launch
from tests.cuda.emulation import guarded, reversed_turns
from tests.cuda.instantiations import decode_launch, instance
from tests.cuda.paged_batch import PagedBatch

FLOAT8 = torch.float8_e4m3fn


def work_list(batch: PagedBatch, split_len: int) -> list[list[int]]:
    """Sequence, KV head, first token and index of each split, as the scheduler's core lists them."""
    work = []
    for index, (length, count) in enumerate(zip(batch.seq_lens, batch.num_queries, strict=True)):
        oldest = max(0, length - count - batch.window + 1) if batch.window else 0
        first = oldest // split_len
        splits = range(first, (length - 1) // split_len + 1) if length else range(0)
        for head in range(batch.num_kv_heads):
            work += [[index, head, split * split_len, split - first] for split in splits]
    return work


def decode(run: Launch, batch: PagedBatch, num_ctas: int = 3, split_len: int = 128) -> Tensor:
    work = work_list(batch, split_len)
    query = guarded(torch.cat(batch.query))
    out = guarded(torch.full_like(query, torch.nan))
    most_rows = max(batch.num_queries) * batch.group
    workspace = guarded(torch.full((len(work), most_rows, batch.head_dim + 4), torch.nan))
    counters = guarded(torch.zeros(len(batch.seq_lens), batch.num_kv_heads, dtype=torch.int32))
    int32 = {"dtype": torch.int32}
    arguments = [out, query, batch.cache, guarded(batch.block_table), guarded(batch.rows)]
    arguments += [guarded(batch.starts), guarded(torch.tensor(batch.seq_lens, **int32))]
    arguments += [guarded(torch.tensor(work, **int32)), torch.tensor([len(work)], **int32)]
    arguments += [workspace, counters, batch.sinks, batch.kv_scales, out.stride(0), query.stride(0)]
    arguments += [batch.num_heads, batch.num_kv_heads, batch.num_blocks]
    arguments += [batch.block_table.shape[1], split_len, batch.window, most_rows]
    arguments += [batch.scale, batch.softcap]
    name = instance("paged_decode", batch.dtype, batch.kv_dtype, batch.head_dim)
    run(name, (num_ctas,), *decode_launch(batch.head_dim), arguments)
    assert not counters.any(), "counters must be zero again"
    return out


RAGGED = [1, 15, 16, 17, 64, 128, 129, 300]


@pytest.mark.parametrize(("head_dim", "heads"), [(64, (4, 2)), (96, (3, 1)), (128, (16, 1)), (256, (4, 2))])
def test_matches_the_twin_over_ragged_lengths(
    run: Launch, head_dim: int, heads: tuple[int, int]
) -> None:
    batch = PagedBatch(RAGGED, [1] * len(RAGGED), heads, head_dim)
    assert batch.error(decode(run, batch)) < 1


@pytest.mark.parametrize("kv_dtype", [torch.float16, FLOAT8])
def test_float16_and_float8(run: Launch, kv_dtype: torch.dtype) -> None:
    batch = PagedBatch([33, 200], [1, 1], (8, 2), 64, torch.float16, kv_dtype)
    assert batch.error(decode(run, batch)) < 1
