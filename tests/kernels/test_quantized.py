"""Quantized linear layers against their PyTorch twins: the same bits."""

import pytest
import torch
from chairlift import _core
from chairlift.api.machine import available_cores
from chairlift.kernels import Linear
from torch import Tensor

from tests.kernels import reference

TWINS = {"int8": reference.linear_int8, "int4": reference.linear_int4}
DTYPES = [torch.float32, torch.bfloat16]

quantize = pytest.mark.parametrize("quantize", TWINS)
dtype = pytest.mark.parametrize("dtype", DTYPES)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@quantize
@dtype
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        *((1, 64, 96), (7, 33, 50), (70, 130, 17), (3, 1, 1), (9, 100, 40), (2, 20, 33)),
        *((40, 576, 70), (6, 256, 40), (5, 255, 33), (3, 127, 20)),
    ],
)
def test_a_layer_has_the_bits_of_its_twin(quantize, dtype, has_bias, shape):
    tokens, in_features, out_features = shape
    x = randn(tokens, in_features, dtype=dtype)
    weight = randn(out_features, in_features, dtype=dtype, seed=1)
    bias = randn(out_features, dtype=dtype, seed=2) if has_bias else None
    layer = Linear(weight, bias, quantize)
    expected = TWINS[quantize](x, weight, bias)
    assert torch.equal(layer(x, torch.float32), expected)
    assert torch.equal(layer(x), expected.to(dtype))


@quantize
def test_the_extremes_of_every_product_have_the_bits_of_the_twin(quantize):
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).repeat(4, 64)
    layer = Linear(signs, None, quantize)
    assert torch.equal(layer(signs), TWINS[quantize](signs, signs))


@quantize
def test_rows_that_are_zero_or_tiny_are_sound_and_those_that_are_not_finite_give_nan(quantize):
    weight = randn(20, 70, seed=1)
    x = randn(6, 70)
    x[1] = 0
    x[2] *= 1e-39
    x[3, 5] = torch.nan
    x[4, 69] = -torch.inf
    out = Linear(weight, None, quantize)(x)
    sound = torch.tensor([0, 1, 2, 5])
    assert torch.equal(out[sound], TWINS[quantize](x[sound], weight))
    assert out[3:5].isnan().all()


@quantize
def test_weights_may_be_zero_but_not_hide_what_is_not_finite(quantize):
    weight = randn(20, 70, seed=1)
    weight[3], weight[4, 32:64] = 0, 0
    weight[7, 40] = torch.inf
    weight[9, 2] = torch.nan
    x = randn(3, 70)
    out = Linear(weight, None, quantize)(x)
    sound = [n for n in range(20) if n not in (7, 9)]
    assert torch.equal(out[:, sound], TWINS[quantize](x, weight[sound]))
    assert out[:, [7, 9]].isnan().all()


@quantize
@dtype
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(quantize, dtype):
    x = randn(300, 72, dtype=dtype)
    layer = Linear(randn(90, 72, dtype=dtype, seed=1), None, quantize)
    alone = torch.cat([layer(row) for row in x.split(1)])
    try:
        for threads in (1, 2, 3):
            _core.set_num_threads(threads)
            for tokens in (*range(1, 71), 239, 240, 241, 300):
                assert torch.equal(layer(x[:tokens]), alone[:tokens])
    finally:
        _core.set_num_threads(available_cores())


@pytest.mark.parametrize(("quantize", "most"), [("int8", 0.0095), ("int4", 0.085)])
def test_the_error_is_that_of_the_bits(quantize, most):
    x, weight = randn(16, 1024), randn(256, 1024, seed=1)
    expected = x @ weight.T
    error = (Linear(weight, None, quantize)(x) - expected).square().mean()
    assert 0 < (error / expected.square().mean()).sqrt() < most


@quantize
def test_an_outlier_of_a_token_leaves_its_other_groups_as_they_are(quantize):
    x, weight = randn(1, 256), randn(64, 256, seed=1)
    with_outlier = x.clone()
    with_outlier[0, 0] = 1000
    layer = Linear(weight, None, quantize)
    # The inputs that share a scale, or are rotated together.
    weight[:, 128:] = 0
    first_groups = Linear(weight, None, quantize)
    rest = layer(x) - first_groups(x)
    assert torch.allclose(layer(with_outlier) - first_groups(with_outlier), rest, atol=0.01)


def test_a_large_input_costs_int8_less_than_its_group_without_rotation():
    x, weight = randn(16, 1024), randn(256, 1024, seed=1)
    x[:, ::32] *= 30
    expected = x @ weight.T

    def error(y: Tensor) -> float:
        return float((y - expected).square().mean() / expected.square().mean())

    codes, scales = reference.quantize_int8(weight)
    plain = reference.linear_in_groups(x, codes, scales, None, None)
    assert error(Linear(weight, None, "int8")(x)) < 0.5 * error(plain)


def linear_in_groups_of_32(x: Tensor, weight: Tensor) -> Tensor:
    """Return what a layer computes that was stored when all groups were of 32."""
    codes, scales = reference.quantize_int8(reference.rotated(weight))
    return reference.linear_in_groups(reference.rotated(x), codes, scales, None, None)


@pytest.mark.parametrize("in_features", [96, 128, 224, 576])
@pytest.mark.parametrize(
    ("block_type", "twin"),
    [("INT8_ROTATED_128", reference.linear_int8), ("INT8_ROTATED", linear_in_groups_of_32)],
)
def test_a_layer_of_stored_blocks_has_the_bits_of_its_twin(block_type, twin, in_features):
    x, weight = randn(7, in_features), randn(50, in_features, seed=1)
    row_bytes = _core.row_bytes(block_type, in_features)
    assert _core.row_weights(block_type, row_bytes) == in_features
    blocks = torch.empty(50, row_bytes, dtype=torch.uint8)
    _core.quantize(weight, block_type, blocks)
    assert torch.equal(
        Linear.from_blocks(blocks, block_type, None, torch.float32)(x), twin(x, weight)
    )
    values = torch.empty_like(weight)
    _core.dequantize(blocks, block_type, values)
    assert (values - weight).abs().max() < 0.05


@pytest.mark.parametrize("in_features", [96, 128, 224, 576])
def test_four_bits_with_a_scale_and_minimum_per_128_have_the_bits_of_their_twin(in_features):
    x, bias = reference.rotated(randn(7, in_features)), randn(50, seed=2)
    generator = torch.Generator().manual_seed(1)
    whole = in_features - in_features % 128
    rows, y = [], bias
    for first, last, group in ((0, whole, 128), (whole, in_features, 32)):
        codes = torch.randint(16, (50, (last - first) // group, group), generator=generator)
        head = torch.rand(50, codes.shape[1], 2, generator=generator).half()
        low, high = codes.byte().view(50, -1, group // 32, 2, 16).unbind(3)
        nibbles = (low | high << 4).flatten(2)
        rows.append(torch.cat((head.view(torch.uint8), nibbles), 2).flatten(1))
        scales, minima = head.float().unbind(-1)
        if first < last:
            y = reference.linear_in_groups(x[:, first:last], codes, scales, minima, y)
    layer = Linear.from_blocks(torch.cat(rows, 1), "INT4_ROTATED_128", bias, torch.float32)
    assert torch.equal(layer(randn(7, in_features)), y)


def test_rows_that_are_no_whole_blocks_have_no_bytes_and_no_weights():
    assert [_core.row_bytes("INT8_ROTATED_128", n) for n in (0, 32, 160, 130)] == [0, 34, 164, None]
    assert [_core.row_bytes("Q4_K", n) for n in (256, 128)] == [144, None]
    assert [_core.row_weights("INT8_ROTATED_128", n) for n in (130, 232, 266)] == [128, 224, None]
    with pytest.raises(ValueError, match=r"block_type: expected one of Q8_0, .* got Q2_K"):
        _core.row_bytes("Q2_K", 256)
    with pytest.raises(
        ValueError, match="blocks: expected rows of 130 bytes each, then of 34, got 6"
    ):
        _core.Linear.from_blocks(torch.zeros(2, 6, dtype=torch.uint8), "INT8_ROTATED_128")


def test_a_layer_takes_the_bytes_that_are_told():
    bits = {
        "int8": 8.125,
        "INT8_ROTATED": 8.5,
        "INT8_ROTATED_128": 8.125,
        "INT4_ROTATED_128": 4.25,
        "int4": 5,
        "Q8_0": 8.5,
        "Q4_0": 4.5,
        "Q4_1": 5,
        "Q5_0": 6.5,
        "Q5_1": 7,
        "Q4_K": 4.625,
        "Q5_K": 6.625,
        "Q6_K": 6.5625,
        "AFFINE4": 6,
        "AFFINE8": 10,
    }
    for name, expected in bits.items():
        num_bits = 8 * _core.linear_bytes(1024, 2048, 2, name) / (1024 * 2048)
        assert num_bits == pytest.approx(expected, rel=0.01), name


def test_a_wrong_name_is_refused():
    with pytest.raises(ValueError, match="quantize: expected int8, int4 or None, got int3"):
        Linear(torch.ones(4, 8), None, "int3")
    with pytest.raises(ValueError, match=r"weight_format: expected int8, int4, Q8_0, .* got fp8"):
        _core.linear_bytes(1, 1, 4, "fp8")
