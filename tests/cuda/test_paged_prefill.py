"""Prefill chunks against the dense twin."""

import pytest
import torch
from chairlift.kernels.cuda.ops import attention_parts, prefill_shared_bytes
from torch import Tensor

from tests.cuda.conftest import Launch, launch_emulated
from tests.cuda.emulation import EmulationError, guarded, reversed_turns
from tests.cuda.instantiations import BF16, F8, OTHER_TYPES, instance, tile_rows
from tests.cuda.paged_batch import PagedBatch


def prefill(run: Launch, batch: PagedBatch, tile_rows: int = 64, fewer_bytes: int = 0) -> Tensor:
    tiles = [
        [index, head, first]
        for index, count in enumerate(batch.num_queries)
        for head in range(batch.num_kv_heads)
        for first in range(0, count * batch.group, tile_rows)
    ][::-1]
    tiles.append([-1, batch.num_kv_heads, -1])  # padding
    query = guarded(torch.cat(batch.query))
    out = guarded(torch.full_like(query, torch.nan))
    int32 = {"dtype": torch.int32}
    arguments = [out, query, batch.cache, guarded(batch.block_table), guarded(batch.rows)]
    arguments += [guarded(batch.starts), guarded(torch.tensor(batch.seq_lens, **int32))]
    arguments += [guarded(torch.tensor(tiles, **int32)), batch.sinks, batch.kv_scales]
    arguments += [out.stride(0), query.stride(0), batch.num_heads, batch.num_kv_heads]
    arguments += [batch.num_blocks, batch.heads_per_block, batch.block_table.shape[1]]
    arguments += [batch.window]
    arguments += [batch.scale, batch.softcap]
    name = instance("paged_prefill", batch.dtype, batch.kv_dtype, batch.head_dim, tile_rows)
    shared = prefill_shared_bytes(batch.head_dim, tile_rows, batch.kv_dtype.itemsize)
    grid = len(tiles), attention_parts(batch.head_dim)
    run(name, grid, 128, shared - fewer_bytes, arguments)
    return out


@pytest.mark.parametrize(
    ("head_dim", "heads", "tile_rows"),
    [
        (64, (4, 2), 128),
        (96, (3, 1), 64),
        (128, (4, 1), 128),
        (256, (2, 1), 64),
        (512, (4, 2), 64),
    ],
)
def test_matches_the_twin_over_ragged_chunks(
    run: Launch, head_dim: int, heads: tuple[int, int], tile_rows: int
) -> None:
    batch = PagedBatch([1, 33, 70, 150], [1, 33, 5, 80], heads, head_dim)
    assert batch.error(prefill(run, batch, tile_rows)) < 1


@pytest.mark.parametrize(("dtype", "kv_dtype", "head_dim"), OTHER_TYPES)
def test_float16_and_float8(
    run: Launch, dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int
) -> None:
    batch = PagedBatch([40, 100], [40, 9], (4, 2), head_dim, dtype, kv_dtype)
    assert batch.error(prefill(run, batch)) < 1


@pytest.mark.parametrize("group", [1, 3, 5, 16])
def test_any_number_of_heads_shares_a_key(run: Launch, group: int) -> None:
    batch = PagedBatch([70, 30], [20, 30], (2 * group, 2), 64)
    assert batch.error(prefill(run, batch)) < 1


@pytest.mark.parametrize("window", [1, 16, 50, 64, 65])
def test_a_window_hides_what_is_before_it(run: Launch, window: int) -> None:
    batch = PagedBatch([150, 70, 64], [90, 10, 64], (2, 1), 64, window=window)
    assert batch.error(prefill(run, batch)) < 1


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, F8])
def test_soft_cap_and_sinks(run: Launch, kv_dtype: torch.dtype) -> None:
    options = {"softcap": 2.5, "sinks": True, "window": 40}
    batch = PagedBatch([100, 9], [30, 9], (4, 1), 128, torch.bfloat16, kv_dtype, **options)
    assert batch.error(prefill(run, batch, 128)) < 1


@pytest.mark.parametrize("head_dim", [128, 512])
def test_bits_do_not_depend_on_batch_tile_or_chunk(run: Launch, head_dim: int) -> None:
    batch = PagedBatch([200, 33, 90], [120, 33, 7], (4, 2), head_dim)
    most_rows = max(tile_rows(head_dim))
    together = prefill(run, batch, most_rows)
    assert torch.equal(prefill(run, batch, 64), together)
    parts = together.split(batch.num_queries)
    for index, part in enumerate(parts):
        assert torch.equal(prefill(run, batch.alone(index), most_rows), part)
    chunk = batch.alone(0)  # the same tokens, cut elsewhere
    for first, last in ((0, 50), (50, 51), (51, 120)):
        chunk.seq_lens, chunk.num_queries = [80 + last], [last - first]
        chunk.query = [batch.query[0][first:last]]
        assert torch.equal(prefill(run, chunk, most_rows), parts[0][first:last])


@pytest.mark.parametrize("head_dim", [64, 512])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, F8])
def test_blocks_of_other_layers_may_lie_between(
    run: Launch, head_dim: int, kv_dtype: torch.dtype
) -> None:
    dtype = torch.float16 if head_dim == 64 and kv_dtype == F8 else torch.bfloat16
    batch = PagedBatch([90, 33], [70, 33], (4, 2), head_dim, dtype, kv_dtype)
    expected = prefill(run, batch)
    batch.move_apart()
    assert torch.equal(prefill(run, batch), expected)


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256, 512])
def test_uses_all_the_shared_memory_that_it_asks_for(head_dim: int) -> None:
    batch = PagedBatch([80], [80], (2, 1), head_dim)
    with pytest.raises(EmulationError):
        prefill(launch_emulated, batch, fewer_bytes=16)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "head_dim"),
    [(torch.float16, torch.float16, 64), (torch.float16, F8, 64), (BF16, BF16, 512)],
)
def test_turns_of_the_threads_change_nothing(
    dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int
) -> None:
    batch = PagedBatch([150, 31], [60, 31], (4, 2), head_dim, dtype, kv_dtype)
    expected = prefill(launch_emulated, batch)
    with reversed_turns(instance("paged_prefill", dtype, kv_dtype, head_dim, 64)):
        assert torch.equal(prefill(launch_emulated, batch), expected)
