"""Attention of packed sequences against its twin in float64."""

import pytest
import torch
from chairlift import _core

from tests.kernels import reference

LENGTHS = (1, 512, 3, 33, 64, 130)


def packed(dtype: torch.dtype, heads: int, head_dim: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    width, tokens = heads * head_dim, sum(LENGTHS)
    qkv = torch.randn(tokens, 3 * width, generator=generator).to(dtype)
    return qkv.split(width, dim=1)


STARTS = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reach", [None, 0, 64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_full_attention_agrees_with_its_twin(dtype, reach, has_bias):
    heads, head_dim = 3, 32
    query, key, value = packed(dtype, heads, head_dim)
    bias = torch.randn(heads, 1023) if has_bias else None
    out = torch.empty(query.shape, dtype=dtype)
    arguments = {"num_heads": heads, "scale": 0.2, "reach": reach, "bias": bias}
    _core.full_attention(query, key, value, STARTS, out, **arguments)
    wide = (x.double().unflatten(1, (heads, head_dim)) for x in (query, key, value))
    wide_bias = None if bias is None else bias.double()
    expected = reference.full_attention(*wide, STARTS, 0.2, reach, wide_bias).flatten(1)
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.double(), expected, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_heads_of_queries_share_those_of_keys_in_order(dtype, num_kv_heads):
    heads, head_dim = 4, 32
    query, key, value = packed(dtype, heads, head_dim)
    key, value = (x[:, : num_kv_heads * head_dim] for x in (key, value))
    out = torch.empty(query.shape, dtype=dtype)
    _core.full_attention(query, key, value, STARTS, out, num_heads=heads, scale=0.2, reach=64)
    wide = (x.double().unflatten(1, (-1, head_dim)) for x in (query, key, value))
    expected = reference.full_attention(*wide, STARTS, 0.2, 64).flatten(1)
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.double(), expected, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("width", [16, 48, 96, 160])
def test_a_width_of_keys_that_no_number_of_heads_has_is_refused(width):
    x, key = torch.ones(4, 128), torch.ones(4, width)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match="key: expected 32 for each of a divisor of 4 heads"):
        _core.full_attention(x, key, key, starts, torch.empty(4, 128), num_heads=4, scale=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sequence_has_the_same_bits_alone(dtype):
    query, key, value = packed(dtype, 2, 64)
    out, alone = torch.empty(query.shape, dtype=dtype), torch.empty(query.shape, dtype=dtype)
    _core.full_attention(query, key, value, STARTS, out, num_heads=2, scale=0.1)
    for begin, end in zip(STARTS[:-1].tolist(), STARTS[1:].tolist(), strict=True):
        starts = torch.tensor([0, end - begin], dtype=torch.int32)
        own = (x[begin:end] for x in (query, key, value))
        _core.full_attention(*own, starts, alone[begin:end], num_heads=2, scale=0.1)
    assert torch.equal(out, alone)


def test_wrong_starts_are_refused():
    x = torch.ones(4, 16)
    starts = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match="starts: expected numbers that rise from 0 to"):
        _core.full_attention(x, x, x, starts, torch.empty(4, 16), num_heads=1, scale=1.0)
