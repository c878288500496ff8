"""Linear, norm, rotary embedding and activation against their PyTorch twins in float64."""

import pytest
import torch
from chairlift.kernels import Linear, add_rms_norm, rms_norm, rope_, silu_mul
from chairlift.kernels.cpu import (
    activate,
    activate_mul,
    add_layer_norm,
    layer_norm,
    select_rows,
)
from torch import Tensor

from tests.kernels import reference

DTYPES = [torch.float32, torch.bfloat16]


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(got: Tensor, expected: Tensor, terms: int = 1) -> None:
    """Compare with a float64 result: one rounding of the dtype plus float32 accumulation."""
    rounding = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}[got.dtype]
    torch.testing.assert_close(
        got.double(), expected, rtol=1.01 * rounding + 1e-6, atol=1e-6 * terms**0.5
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 64, 96), (7, 33, 50), (70, 128, 17)])
def test_linear_agrees_with_its_twin(dtype, has_bias, shape):
    tokens, in_features, out_features = shape
    x = randn(tokens, in_features, dtype=dtype)
    weight = randn(out_features, in_features, dtype=dtype, seed=1)
    bias = randn(out_features, dtype=dtype, seed=2) if has_bias else None
    layer = Linear(weight, bias)
    expected = reference.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    assert (layer.in_features, layer.out_features) == (in_features, out_features)
    assert_close(layer(x), expected, in_features)
    assert_close(layer(x, torch.float32), expected, in_features)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [(8,), (3, 5)])
def test_select_rows_copies_them_in_their_order(dtype, width):
    x = randn(40, *width, dtype=dtype)
    rows = torch.tensor([39, 0, 7, 7], dtype=torch.int32)
    out = torch.empty(4, *width, dtype=dtype)
    select_rows(x, rows, out)
    assert torch.equal(out, x[rows])
    with pytest.raises(ValueError, match=r"rows: expected indices in 0\.\.40, got -1"):
        select_rows(x, rows - 1, out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_gives_a_row_the_same_bits_in_any_batch(dtype):
    x = randn(40, 72, dtype=dtype)
    layer = Linear(randn(90, 72, dtype=dtype, seed=1))
    together = layer(x)
    for tokens in (1, 3, 8, 39):
        assert torch.equal(torch.cat([layer(part) for part in x.split(tokens)]), together)


def test_linear_keeps_no_reference_to_the_weights():
    weight = torch.ones(4, 8)
    layer = Linear(weight)
    weight.zero_()
    assert torch.equal(layer(torch.ones(1, 8)), torch.full((1, 4), 8.0))


def test_rows_of_a_fused_projection_need_no_copy():
    fused = randn(5, 96, dtype=torch.float32)
    layer = Linear(randn(8, 32, dtype=torch.float32, seed=1))
    assert torch.equal(layer(fused[:, 32:64]), layer(fused[:, 32:64].contiguous()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_agrees_with_its_twin(dtype):
    x, weight = randn(5, 100, dtype=dtype), randn(100, dtype=dtype, seed=1)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-5)
    assert_close(rms_norm(x, weight, 1e-5), expected)
    assert torch.equal(rms_norm(x[2:3], weight, 1e-5), rms_norm(x, weight, 1e-5)[2:3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_of_a_sum_adds_like_torch_and_norms_like_rms_norm(dtype):
    fused, weight = randn(300, 2 * 100, dtype=dtype), randn(100, dtype=dtype, seed=1)
    x, update = fused[:, :100].contiguous(), fused[:, 100:]
    total = x + update
    expected = rms_norm(total, weight, 1e-5)
    assert torch.equal(add_rms_norm(x, update, weight, 1e-5), expected)
    assert torch.equal(x, total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_layer_norm_agrees_with_its_twin(dtype, has_bias):
    x, weight = randn(5, 100, dtype=dtype) + 3, randn(100, dtype=dtype, seed=1)
    bias = randn(100, dtype=dtype, seed=2) if has_bias else None
    wide_bias = None if bias is None else bias.double()
    normed = layer_norm(x, weight, bias, 1e-5)
    expected = reference.layer_norm(x.double(), weight.double(), wide_bias, 1e-5)
    assert_close(normed, expected, terms=10)
    assert torch.equal(layer_norm(x[2:3], weight, bias, 1e-5), normed[2:3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_layer_norm_of_a_sum_adds_like_torch_and_norms_like_layer_norm(dtype):
    fused, (weight, bias) = randn(300, 200, dtype=dtype), randn(2, 100, dtype=dtype, seed=1)
    x, update = fused[:, :100].contiguous(), fused[:, 100:]
    total = x + update
    expected = layer_norm(total, weight, bias, 1e-5)
    assert torch.equal(add_layer_norm(x, update, weight, bias, 1e-5), expected)
    assert torch.equal(x, total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [False, True])
def test_rope_agrees_with_its_twin(dtype, has_norm):
    fused = randn(6, 3 * 32 + 10, dtype=dtype)
    x = fused[:, 5:101].view(6, 3, 32)
    positions = torch.tensor([0, 1, 2, 9, 9, 4], dtype=torch.int32)
    angles = randn(10, 16, dtype=torch.float32, seed=1)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    weight = randn(32, dtype=dtype, seed=2) if has_norm else None
    expected = reference.rope(
        x.double(),
        positions,
        cos_sin,
        None if weight is None else weight.double(),
        eps=1e-5,
    )
    around = fused[:, :5].clone(), fused[:, 101:].clone()
    rope_(x, positions, cos_sin, weight, eps=1e-5)
    # Two products may cancel, so that their float32 rounding shows.
    torch.testing.assert_close(
        x.double(), expected, rtol=2.0**-8 if dtype == torch.bfloat16 else 1e-6, atol=2e-6
    )
    assert torch.equal(fused[:, :5], around[0])
    assert torch.equal(fused[:, 101:], around[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_of_all", [False, True])
def test_a_head_is_normed_where_nothing_is_rotated(dtype, is_of_all):
    x = randn(6, 3, 32, dtype=dtype)
    weight, wide = randn(96 if is_of_all else 32, dtype=dtype, seed=2), x.double()
    heads = wide.flatten(1) if is_of_all else wide
    expected = reference.rms_norm(heads, weight.double(), 1e-5).view(6, 3, 32)
    rope_(x, torch.arange(6, dtype=torch.int32), torch.empty(6, 0), weight, eps=1e-5)
    assert_close(x, expected, terms=10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul_agrees_with_its_twin(dtype):
    gate_up = 4 * randn(5, 2 * 45, dtype=dtype)
    assert_close(silu_mul(gate_up), reference.activate_mul(gate_up.double(), "silu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu2"])
def test_activations_agree_with_their_twins(dtype, activation):
    x = 3 * randn(5, 2 * 45, dtype=dtype)
    together = activate(x, activation)
    assert_close(together, reference.activate(x.double(), activation))
    assert torch.equal(activate(x[3:4], activation), together[3:4])
    product = activate_mul(x, activation)
    assert_close(product, reference.activate_mul(x.double(), activation))
    assert torch.equal(activate_mul(x[:, :45], activation, up=x[:, 45:]), product)


def test_gates_and_ups_that_lie_apart_have_one_width():
    with pytest.raises(ValueError, match="up: expected the width of out, 8, got 7"):
        activate_mul(torch.ones(1, 8), "silu", torch.ones(1, 8), torch.ones(1, 7))


@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_of_a_row_are_normed_apart(dtype):
    x, weight = randn(5, 90, dtype=dtype), randn(18, dtype=dtype)
    expected = rms_norm(x.view(25, 18), weight, 1e-5)
    assert torch.equal(rms_norm(x, weight, 1e-5).view(25, 18), expected)


def test_an_unknown_activation_is_refused_by_name():
    with pytest.raises(ValueError, match="expected one of silu, gelu, gelu_tanh, relu2, got relu"):
        activate(torch.ones(1, 8), "relu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_token_is_no_work(dtype):
    assert Linear(torch.ones(4, 8, dtype=dtype))(torch.ones(0, 8, dtype=dtype)).shape == (0, 4)
    assert silu_mul(torch.ones(0, 8, dtype=dtype)).shape == (0, 4)
    assert rms_norm(torch.ones(0, 8, dtype=dtype), torch.ones(8, dtype=dtype), 1e-6).numel() == 0
