"""Prefill chunks against the dense twin."""

import pytest
import torch
from torch import Tensor

from tests.cuda.conftest import Launch
from tests.cuda.emulation import guarded, reversed_turns
from tests.cuda.instantiations import instance, prefill_bytes
from tests.cuda.paged_batch import PagedBatch

FLOAT8 = torch.float8_e4m3fn


def prefill(run: Launch, batch: PagedBatch, tile_rows: int = 64) -> Tensor:
    tiles = [
        [index, head, first]
        for index, count in enumerate(batch.num_queries)
        for head in range(batch.num_kv_heads)
        for first in range(0, count * batch.group, tile_rows)
    ][::-1]
    query = guarded(torch.cat(batch.query))
    out = guarded(torch.full_like(query, torch.nan))
    int32 = {"dtype": torch.int32}
    arguments = [out, query, batch.cache, guarded(batch.block_table), guarded(batch.rows)]
    arguments += [guarded(batch.starts), guarded(torch.tensor(batch.seq_lens, **int32))]
    arguments += [guarded(torch.tensor(tiles, **int32)), batch.sinks, batch.kv_scales]
    arguments += [out.stride(0), query.stride(0), batch.num_heads, batch.num_kv_heads]
    arguments += [batch.num_blocks, batch.block_table.shape[1], batch.window]
    arguments += [batch.scale, batch.softcap]
    name = instance("paged_prefill", batch.dtype, batch.kv_dtype, batch.head_dim, tile_rows)
    shared = prefill_bytes(batch.head_dim, tile_rows, batch.kv_dtype)
    run(name, (len(tiles),), 128, shared, arguments)
    return out


@pytest.mark.parametrize(
    ("head_dim", "heads", "tile_rows"),
    [(64, (4, 2), 128), (96, (3, 1), 64), (128, (4, 1), 128), (256, (2, 1), 64)],
)
def test_matches_the_twin_over_ragged_chunks(
    run: Launch, head_dim: int, heads: tuple[int, int], tile_rows: int
) -> None:
    batch = PagedBatch([1, 33, 70, 150], [1, 33, 5, 80], heads, head_dim)
    assert batch.error(prefill(run, batch, tile_rows)) < 1


@pytest.mark.parametrize("kv_dtype", [torch.float16, FLOAT8])
def test_float16_and_float8(run: Launch, kv_dtype: torch.dtype) -> None:
    batch = PagedBatch([40, 100], [40, 9], (4, 2), 64, torch.float16, kv_dtype)
    assert batch.error(prefill(run, batch)) < 1
