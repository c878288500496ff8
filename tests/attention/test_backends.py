"""The CPU backend against its PyTorch twin in float64, over the same block tables."""

from dataclasses import dataclass

import pytest
import torch
from chairlift._core import cpu_features
from chairlift.attention import AttentionBackend, AttentionMetadata
from chairlift.attention.backend import Scoring
from chairlift.attention.cpu import CpuBackend
from chairlift.attention.cpu_int8 import Int8CpuBackend
from torch import Tensor

from tests.attention.blocks import pack, unpack
from tests.attention.reference import ReferenceBackend, State
from tests.kernels import reference

BLOCK = 16


@dataclass
class Batch:
    """Rows of `(num_queries, seq_len)`, with keys and values of all their tokens."""

    rows: list[tuple[int, int]]
    metadata: AttentionMetadata
    query: Tensor
    key: Tensor
    value: Tensor
    slots: Tensor
    num_blocks: int


def batch(rows, *, num_heads, num_kv_heads, head_dim, dtype, seed=0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    num_blocks = 2 + sum(-(-seq_len // BLOCK) for _, seq_len in rows)
    free = (1 + torch.randperm(num_blocks - 1, generator=generator)).tolist()
    # Rows of the table in reverse, and garbage where no block is.
    table = torch.full((2, len(rows) + 1, 12), 2**31 - 1, dtype=torch.int32)
    lines, slots = list(range(len(rows)))[::-1], []
    for line, (_, seq_len) in zip(lines, rows, strict=True):
        for column in range(-(-seq_len // BLOCK)):
            table[1, line, column] = free.pop()
        position = torch.arange(seq_len)
        slots.append(table[1, line][position // BLOCK] * BLOCK + position % BLOCK)
    counts = torch.tensor([0] + [num_queries for num_queries, _ in rows])
    total = int(counts.sum())

    def draw(tokens, heads):
        return torch.randn(tokens, heads, head_dim, generator=generator).to(dtype)

    num_kv = sum(seq_len for _, seq_len in rows)
    return Batch(
        rows=rows,
        metadata=AttentionMetadata(
            rows=torch.tensor(lines, dtype=torch.int32),
            query_start_loc=counts.cumsum(0).int(),
            seq_lens=torch.tensor([seq_len for _, seq_len in rows], dtype=torch.int32),
            positions=torch.empty(total, dtype=torch.int32),
            slot_mapping=torch.empty(2, total, dtype=torch.int32),
            block_tables=table,
            block_size=BLOCK,
        ),
        query=draw(total, num_heads),
        key=draw(num_kv, num_kv_heads),
        value=draw(num_kv, num_kv_heads),
        slots=torch.cat(slots).int(),
        num_blocks=num_blocks,
    )


def attend(
    backend: AttentionBackend,
    batch: Batch,
    dtype: torch.dtype,
    window=None,
    sinks=None,
    cache=None,
) -> Tensor:
    heads, head_dim = batch.key.shape[1:]
    if cache is None:
        cache = backend.allocate(1, batch.num_blocks, heads, BLOCK, head_dim, dtype)[0]
    # NaN in blocks and tails that no row owns; of bytes all are set, which is NaN where scales are.
    cache.fill_(torch.nan if cache.is_floating_point() else -1)
    backend.write(cache, batch.key.to(dtype), batch.value.to(dtype), batch.slots, BLOCK)
    return backend.attend(
        batch.query.to(dtype),
        cache,
        batch.metadata,
        group=1,
        scoring=Scoring(batch.key.shape[2] ** -0.5, window, sinks=sinks),
    )


ROWS = [(1, 1), (1, 15), (1, 16), (1, 17), (33, 33), (5, 100), (16, 48), (7, 7), (1, 160)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 20, 64])
@pytest.mark.parametrize("shape", [(4, 2, 32), (6, 1, 64), (3, 3, 16), (2, 1, 256)])
def test_the_kernel_agrees_with_its_twin(dtype, window, shape):
    num_heads, num_kv_heads, head_dim = shape
    rows = batch(
        ROWS, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype
    )
    got = attend(CpuBackend(), rows, dtype, window)
    expected = attend(ReferenceBackend(), rows, torch.float64, window)
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-24
    # Where a processor multiplies pairs of bf16, the weights of the values are rounded, too.
    rounds_weights = dtype == torch.bfloat16 and cpu_features() in ("amx", "avx512bf16")
    atol = 2.0**-9 * float(rows.value.abs().max()) if rounds_weights else 4e-6
    torch.testing.assert_close(got.double(), expected, rtol=rounding, atol=atol)


@pytest.mark.parametrize("window", [1, 20, 64])
@pytest.mark.parametrize("backend", [CpuBackend(), ReferenceBackend()])
def test_the_null_block_behind_a_window_is_not_read(backend, window):
    rows = batch(ROWS, num_heads=4, num_kv_heads=2, head_dim=32, dtype=torch.float32)
    expected = attend(backend, rows, torch.float32, window)
    table, num_freed = rows.metadata.block_tables[1], 0
    for line, (num_queries, seq_len) in zip(rows.metadata.rows.tolist(), ROWS, strict=True):
        num_behind = max(0, seq_len - num_queries - window + 1) // BLOCK
        # As the scheduler leaves them; nobody writes block 0, so it holds NaN here.
        table[line, :num_behind] = 0
        num_freed += num_behind
    assert num_freed > 0
    assert torch.equal(attend(backend, rows, torch.float32, window), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 20])
def test_sinks_take_weight_in_kernel_and_twin(dtype, window):
    rows = batch(ROWS, num_heads=4, num_kv_heads=2, head_dim=32, dtype=dtype)
    sinks = torch.tensor([-30.0, 0.4, 1.5, 30.0])
    got = attend(CpuBackend(), rows, dtype, window, sinks)
    expected = attend(ReferenceBackend(), rows, torch.float64, window, sinks)
    torch.testing.assert_close(got.double(), expected, rtol=2.0**-8, atol=2.0**-7)
    # From none of the weight to all of it.
    without = attend(ReferenceBackend(), rows, torch.float64, window)
    torch.testing.assert_close(expected[:, 0], without[:, 0])
    assert (expected[:, 1:3] / without[:, 1:3]).max() < 1
    assert expected[:, 3].abs().max() < 1e-6


def test_the_twin_has_the_sinks_of_the_formula():
    rows = batch([(50, 50)], num_heads=4, num_kv_heads=2, head_dim=16, dtype=torch.float64)
    sinks = torch.tensor([-1.0, 0.4, 1.5, 3.0])
    expected = reference.attention(rows.query, rows.key, rows.value, 0.25, 20, sinks=sinks)
    got = attend(ReferenceBackend(), rows, torch.float64, 20, sinks)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_the_twin_agrees_with_torch():
    rows = batch([(50, 50)], num_heads=4, num_kv_heads=2, head_dim=16, dtype=torch.float64)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(each.transpose(0, 1)[None] for each in (rows.query, rows.key, rows.value)),
        is_causal=True,
        scale=0.25,
        enable_gqa=True,
    )[0].transpose(0, 1)
    got = attend(ReferenceBackend(), rows, torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_merged_states_are_one_state():
    generator = torch.Generator().manual_seed(0)
    scores, values = (
        torch.randn(3, 20, generator=generator, dtype=torch.float64),
        torch.randn(20, 8, generator=generator, dtype=torch.float64),
    )
    query = torch.zeros(3, 8, dtype=torch.float64)
    left, right, whole = State.empty(query), State.empty(query), State.empty(query)
    left.update(scores[:, :5], values[:5])
    right.update(scores[:, 5:], values[5:])
    right.merge(State.empty(query))
    left.merge(right)
    whole.update(scores, values)
    torch.testing.assert_close(left.normalize(), whole.normalize(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(whole.normalize(), torch.softmax(scores, -1) @ values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", [CpuBackend(), ReferenceBackend()])
def test_a_written_block_is_the_packed_one(backend, dtype):
    key, value = torch.randn(2, BLOCK, 3, 32).to(dtype)
    cache = backend.allocate(2, 4, 3, BLOCK, 32, dtype)
    assert cache.nbytes == 4 * backend.block_bytes(2, 3, BLOCK, 32, dtype)
    slots = torch.arange(2 * BLOCK, 3 * BLOCK, dtype=torch.int32)
    backend.write(cache[1], key, value, slots, BLOCK)
    assert torch.equal(cache[1, 2], pack(backend, key, value))
    unpacked = unpack(backend, cache[1, 2], BLOCK)
    assert torch.equal(unpacked[0], key)
    assert torch.equal(unpacked[1], value)
    cache[1, 2] = 0
    assert not cache.any()


@pytest.mark.parametrize("backend", [CpuBackend(), Int8CpuBackend(torch.bfloat16)])
def test_a_layer_among_others_of_a_block_has_the_bits_of_one_alone(backend):
    dtype = torch.bfloat16
    rows = batch(ROWS, num_heads=4, num_kv_heads=2, head_dim=32, dtype=dtype)
    num_bytes = backend.block_bytes(1, 2, BLOCK, 32, dtype)
    before, after = (backend.block_bytes(1, 1, BLOCK, size, dtype) for size in (48, 16))
    pool = backend.allocate_mixed(rows.num_blocks, before + num_bytes + after, dtype)
    pool.fill_(torch.nan if pool.is_floating_point() else -1)
    cache = backend.layer_of_mixed(pool, before, num_bytes, 2)
    expected = attend(backend, rows, dtype, 20)
    assert torch.equal(attend(backend, rows, dtype, 20, cache=cache), expected)
    others = pool.clone().view(torch.int8)[0]
    others[:, before : before + num_bytes] = 0
    assert others.eq(others[0]).all(), "nothing is written beside the layer"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strided_rows_of_a_fused_projection_are_read_in_place(dtype):
    rows = batch([(9, 9)], num_heads=4, num_kv_heads=2, head_dim=16, dtype=dtype)
    expected = attend(CpuBackend(), rows, dtype)
    fused = torch.cat([each.flatten(1) for each in (rows.query, rows.key, rows.value)], dim=1)
    query, key, value = fused.split([64, 32, 32], dim=1)
    rows.query, rows.key, rows.value = (
        query.view(9, 4, 16),
        key.view(9, 2, 16),
        value.view(9, 2, 16),
    )
    assert not rows.query.is_contiguous()
    assert torch.equal(attend(CpuBackend(), rows, dtype), expected)
