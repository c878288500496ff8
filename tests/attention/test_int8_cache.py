"""Keys and values in eight bits on the CPU, against the twin over what the codes mean."""

from dataclasses import replace

import pytest
import torch
from chairlift._core import cpu_features
from chairlift.attention.backend import Scoring
from chairlift.attention.cpu import CpuBackend
from chairlift.attention.cpu_int8 import Int8CpuBackend

from tests.attention.blocks import pack, unpack
from tests.attention.reference import ReferenceBackend
from tests.attention.test_backends import BLOCK, ROWS, attend, batch
from tests.kernels.reference import quantize_rows, rotated_head

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 20, 64])
@pytest.mark.parametrize("shape", [(4, 2, 32), (6, 1, 64), (3, 3, 16), (2, 1, 256), (16, 1, 80)])
def test_the_kernel_agrees_with_the_twin_over_what_the_codes_mean(dtype, window, shape):
    num_heads, num_kv_heads, head_dim = shape
    rows = batch(
        ROWS, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype
    )
    got = attend(Int8CpuBackend(dtype), rows, dtype, window)
    rows.query = rotated_head(rows.query).to(dtype)
    for name in ("key", "value"):
        codes, scales = quantize_rows(rotated_head(getattr(rows, name)))
        setattr(rows, name, codes.double() * scales.double())
    expected = rotated_head(attend(ReferenceBackend(), rows, torch.float64, window))
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-24
    # Where a processor multiplies pairs of bf16, weights times scales are rounded, too.
    rounds_weights = dtype == torch.bfloat16 and cpu_features() in ("amx", "avx512bf16")
    atol = 2.0**-9 * float(rows.value.abs().max()) if rounds_weights else 8e-6
    torch.testing.assert_close(got.double(), expected, rtol=rounding, atol=atol)


def test_a_coordinate_that_is_large_in_all_keys_does_not_make_the_others_coarse():
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "dtype": torch.float32}
    rows = batch([(40, 160)], **shape)
    rows.key[..., 7] += 40.0
    rows.value[..., 7] += 40.0
    exact = attend(ReferenceBackend(), rows, torch.float64)
    found = (attend(Int8CpuBackend(torch.float32), rows, torch.float32) - exact).abs().mean()
    for name in ("key", "value"):
        codes, scales = quantize_rows(getattr(rows, name))
        setattr(rows, name, codes.double() * scales.double())
    without_rotation = (attend(ReferenceBackend(), rows, torch.float64) - exact).abs().mean()
    assert found < without_rotation / 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_has_the_same_bits_alone_in_a_chunk_and_in_a_batch(dtype):
    backend = Int8CpuBackend(dtype)
    whole = batch([(160, 160), (70, 100)], num_heads=8, num_kv_heads=2, head_dim=64, dtype=dtype)
    heads, head_dim = whole.key.shape[1:]
    cache = backend.allocate(1, whole.num_blocks, heads, BLOCK, head_dim, dtype)[0]
    backend.write(cache, whole.key, whole.value, whole.slots, BLOCK)
    everything = attend(backend, whole, dtype)
    for first, count in ((0, 1), (37, 1), (37, 5), (100, 60), (159, 1)):
        metadata = replace(
            whole.metadata,
            rows=whole.metadata.rows[:1],
            query_start_loc=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([first + count], dtype=torch.int32),
        )
        part = backend.attend(
            whole.query[first : first + count],
            cache,
            metadata,
            group=1,
            scoring=Scoring(head_dim**-0.5),
        )
        assert torch.equal(part, everything[first : first + count])


@pytest.mark.parametrize("head_dim", [16, 80, 128, 192, 512])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_written_block_is_the_packed_one_and_means_about_the_same(dtype, head_dim):
    backend = Int8CpuBackend(dtype)
    key, value = torch.randn(2, BLOCK, 3, head_dim).to(dtype)
    value[5] = 0
    cache = backend.allocate(2, 4, 3, BLOCK, head_dim, dtype)
    assert cache.dtype == torch.int8
    assert cache.nbytes == 4 * backend.block_bytes(2, 3, BLOCK, head_dim, dtype)
    slots = torch.arange(2 * BLOCK, 3 * BLOCK, dtype=torch.int32)
    backend.write(cache[1], key, value, slots, BLOCK)
    assert torch.equal(cache[1, 2], pack(backend, key, value))
    for unpacked, number in zip(unpack(backend, cache[1, 2], BLOCK), (key, value), strict=True):
        step = rotated_head(number).abs().amax(-1, keepdim=True) / 127
        assert (rotated_head(unpacked - number.float()).abs() <= 0.501 * step).all()
    cache[1, 2] = 0
    assert not cache.any()


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_key_that_is_not_finite_is_seen_by_those_who_read_it(number):
    rows = batch(
        [(40, 40), (40, 40)], num_heads=4, num_kv_heads=2, head_dim=32, dtype=torch.float32
    )
    rows.key[20, 0, 3] = number
    got = attend(Int8CpuBackend(torch.float32), rows, torch.float32)
    assert got[:20].isfinite().all()
    assert got[20:40, :2].isnan().all()
    assert got[20:40, 2:].isfinite().all()
    assert got[40:].isfinite().all()


def test_a_block_takes_little_more_than_half():
    plain = CpuBackend().block_bytes(24, 4, BLOCK, 64, torch.bfloat16)
    coded = Int8CpuBackend(torch.bfloat16).block_bytes(24, 4, BLOCK, 64, torch.bfloat16)
    assert coded / plain == 0.5 * (64 + 4) / 64
