"""Split-KV decode against the dense twin."""

import pytest
import torch
from chairlift.kernels.cuda.ops import attention_parts, decode_block, partial_width
from chairlift.kernels.cuda.sources import DECODE_ROWS
from torch import Tensor

from tests.cuda.conftest import Launch, launch_emulated
from tests.cuda.emulation import EmulationError, guarded, reversed_turns
from tests.cuda.instantiations import F8, OTHER_TYPES, instance
from tests.cuda.paged_batch import PagedBatch


def work_list(batch: PagedBatch, split_len: int) -> list[list[int]]:
    """The words of each split; see `_core.attention_work`."""
    work = []
    rows = zip(batch.rows.tolist(), batch.starts.tolist(), strict=False)
    lengths = zip(batch.seq_lens, batch.num_queries, strict=True)
    for (line, start), (length, count) in zip(rows, lengths, strict=False):
        oldest = max(0, length - count - batch.window + 1) if batch.window else 0
        own = min(256, split_len)
        while own < split_len and length > 16 * own:
            own *= 2
        splits = range(oldest // own, (length - 1) // own + 1) if length else range(0)
        for head in range(batch.num_kv_heads):
            work += [
                [line, head, split * own, split - splits[0], start, count, length, 0]
                for split in splits
            ]
    return work


def decode(
    run: Launch,
    batch: PagedBatch,
    num_ctas: int = 3,
    split_len: int = 512,
    fewer_bytes: int = 0,
    tile_rows: int | None = None,
) -> Tensor:
    work = work_list(batch, split_len)
    query = guarded(torch.cat(batch.query))
    out = guarded(torch.full_like(query, torch.nan))
    most_rows = max(batch.num_queries) * batch.group
    width = partial_width(batch.head_dim)
    workspace = guarded(torch.full((len(work), most_rows, width), torch.nan))
    lines = len(batch.block_table)
    counters = guarded(torch.zeros(lines, batch.num_kv_heads, dtype=torch.int32))
    int32 = {"dtype": torch.int32}
    arguments = [out, query, batch.cache, guarded(batch.block_table)]
    arguments += [guarded(torch.tensor(work, **int32)), torch.tensor([len(work)], **int32)]
    arguments += [workspace, counters, batch.sinks, batch.kv_scales, out.stride(0), query.stride(0)]
    arguments += [batch.num_heads, batch.num_kv_heads, batch.num_blocks, batch.heads_per_block]
    arguments += [batch.block_table.shape[1], split_len, batch.window, most_rows]
    arguments += [batch.scale, batch.softcap]
    tile_rows = tile_rows or next(rows for rows in DECODE_ROWS if rows >= most_rows)
    name = instance("paged_decode", batch.dtype, batch.kv_dtype, batch.head_dim, tile_rows)
    num_threads, shared_bytes = decode_block(batch.head_dim, tile_rows)
    run(
        name,
        (num_ctas, attention_parts(batch.head_dim)),
        num_threads,
        shared_bytes - fewer_bytes,
        arguments,
    )
    assert not counters.any(), "counters must be zero again"
    return out


RAGGED = [1, 15, 16, 17, 64, 128, 129, 257, 600]


@pytest.mark.parametrize(
    ("head_dim", "heads"),
    [(64, (4, 2)), (96, (3, 1)), (128, (16, 1)), (256, (4, 2)), (512, (8, 2))],
)
def test_matches_the_twin_over_ragged_lengths(
    run: Launch, head_dim: int, heads: tuple[int, int]
) -> None:
    batch = PagedBatch(RAGGED, [1] * len(RAGGED), heads, head_dim)
    assert batch.error(decode(run, batch)) < 1


@pytest.mark.parametrize(("dtype", "kv_dtype", "head_dim"), OTHER_TYPES)
def test_float16_and_float8(
    run: Launch, dtype: torch.dtype, kv_dtype: torch.dtype, head_dim: int
) -> None:
    batch = PagedBatch([33, 200], [1, 1], (8, 2), head_dim, dtype, kv_dtype)
    assert batch.error(decode(run, batch)) < 1


@pytest.mark.parametrize("group", [1, 3, 7, 16])
def test_any_number_of_heads_shares_a_key(run: Launch, group: int) -> None:
    batch = PagedBatch([5, 140], [1, 1], (2 * group, 2), 64)
    assert batch.error(decode(run, batch)) < 1


@pytest.mark.parametrize("window", [1, 16, 20, 127, 128, 130])
def test_a_window_hides_what_is_before_it(run: Launch, window: int) -> None:
    batch = PagedBatch([1, 19, 128, 129, 260], [1, 1, 1, 1, 1], (4, 2), 64, window=window)
    assert batch.error(decode(run, batch)) < 1


@pytest.mark.parametrize("window", [0, 30])
def test_several_new_tokens_see_one_another_causally(run: Launch, window: int) -> None:
    batch = PagedBatch([4, 131, 260, 50], [4, 3, 4, 1], (8, 2), 64, window=window)
    assert batch.error(decode(run, batch)) < 1


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, F8])
def test_soft_cap_and_sinks(run: Launch, kv_dtype: torch.dtype) -> None:
    options = {"softcap": 2.5, "sinks": True, "window": 150}
    batch = PagedBatch([3, 129, 300], [1, 1, 2], (8, 2), 128, torch.bfloat16, kv_dtype, **options)
    assert batch.error(decode(run, batch)) < 1


@pytest.mark.parametrize(
    ("length", "split_len", "kv_dtype"),
    [(1040, 64, torch.bfloat16), (2050, 256, torch.bfloat16), (4098, 512, F8)],
)
def test_any_number_of_splits(
    run: Launch, length: int, split_len: int, kv_dtype: torch.dtype
) -> None:
    batch = PagedBatch([length, 512, 513], [1, 1, 1], (2, 1), 128, torch.bfloat16, kv_dtype)
    assert batch.error(decode(run, batch, split_len=split_len)) < 1


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256, 512])
def test_uses_all_the_shared_memory_that_it_asks_for(head_dim: int) -> None:
    batch = PagedBatch([300], [1], (2, 1), head_dim)
    with pytest.raises(EmulationError):
        decode(launch_emulated, batch, fewer_bytes=16)


@pytest.mark.parametrize("head_dim", [128, 512])
def test_bits_of_a_sequence_do_not_depend_on_the_batch(run: Launch, head_dim: int) -> None:
    batch = PagedBatch([600, 17, 257, 64], [1, 2, 1, 1], (4, 2), head_dim)
    together = decode(run, batch)
    assert torch.equal(decode(run, batch, num_ctas=40), together)
    assert torch.equal(decode(run, batch, tile_rows=16), together)
    for index, part in enumerate(together.split(batch.num_queries)):
        assert torch.equal(decode(run, batch.alone(index), num_ctas=2), part)


@pytest.mark.parametrize("head_dim", [64, 512])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, F8])
def test_blocks_of_other_layers_may_lie_between(
    run: Launch, head_dim: int, kv_dtype: torch.dtype
) -> None:
    dtype = torch.float16 if head_dim == 64 and kv_dtype == F8 else torch.bfloat16
    batch = PagedBatch([3, 150, 300], [1, 2, 1], (4, 2), head_dim, dtype, kv_dtype)
    expected = decode(run, batch)
    batch.move_apart()
    assert torch.equal(decode(run, batch), expected)


def test_a_sequence_without_work_keeps_its_output(run: Launch) -> None:
    batch = PagedBatch([40, 0, 20], [1, 1, 1], (2, 1), 64)
    out = decode(run, batch)
    assert out[1].isnan().all()
    for index in (0, 2):
        assert batch.alone(index).error(out[index : index + 1]) < 1


def test_no_work_at_all_is_no_work(run: Launch) -> None:
    batch = PagedBatch([0], [1], (2, 1), 64)
    assert decode(run, batch).isnan().all()


@pytest.mark.parametrize(
    ("head_dim", "kv_dtype"),
    [(128, torch.bfloat16), (256, torch.bfloat16), (512, torch.bfloat16), (64, F8)],
)
def test_turns_of_the_threads_change_nothing(head_dim: int, kv_dtype: torch.dtype) -> None:
    dtype = torch.float16 if kv_dtype == F8 else kv_dtype
    batch = PagedBatch([600, 31], [1, 3], (4, 2), head_dim, dtype, kv_dtype)
    expected = decode(launch_emulated, batch)
    with reversed_turns(instance("paged_decode", dtype, kv_dtype, head_dim, 8)):
        assert torch.equal(decode(launch_emulated, batch), expected)
