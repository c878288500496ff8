"""Layers of weights in blocks: those of GGUF files against the format's own tools, and two more."""

import gguf
import numpy as np
import pytest
import torch
from chairlift import _core
from chairlift.kernels import Linear
from torch import Tensor

from tests.kernels import reference

GGUF_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
AFFINE_BITS = {"AFFINE4": 4, "AFFINE8": 8}
TYPES = (*GGUF_TYPES, *AFFINE_BITS)
HAS_MINIMA = {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}

block_type = pytest.mark.parametrize("block_type", TYPES)


def blocks(block_type: str, rows: int, columns: int, seed: int = 0) -> Tensor:
    """Return blocks with any codes; their factors are 0.001 to 0.004."""
    if block_type in AFFINE_BITS:
        return affine_blocks(block_type, rows, columns, seed)
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[block_type]]
    random = np.random.default_rng(seed)
    stored = random.integers(0, 256, (rows, columns // weights, size), dtype=np.uint8)
    if block_type == "MXFP4":
        stored[..., 0] = random.integers(116, 120, stored.shape[:2])
        return torch.from_numpy(stored.reshape(rows, -1))
    first = 208 if block_type == "Q6_K" else 0
    for place in (0, 2) if block_type in HAS_MINIMA else (first,):
        factors = random.uniform(0.001, 0.004, stored.shape[:2]).astype(np.float16)
        stored[..., place : place + 2] = factors[..., None].view(np.uint8)
    return torch.from_numpy(stored.reshape(rows, -1))


def affine_blocks(block_type: str, rows: int, columns: int, seed: int) -> Tensor:
    """Return blocks of a scale and a minimum in float32, and 32 codes."""
    random = np.random.default_rng(seed)
    size = 8 + 4 * AFFINE_BITS[block_type]
    stored = random.integers(0, 256, (rows, columns // 32, size), dtype=np.uint8)
    scales = random.uniform(0.001, 0.004, (*stored.shape[:2], 1)).astype(np.float32)
    minima = random.uniform(-0.5, 0.1, scales.shape).astype(np.float32)
    stored[..., :4], stored[..., 4:8] = scales.view(np.uint8), minima.view(np.uint8)
    return torch.from_numpy(stored.reshape(rows, -1))


def affine_dequantized(stored: Tensor, block_type: str) -> Tensor:
    """Return `scale * code + minimum`; of four bits the low halves of 16 bytes come first."""
    blocks = stored.numpy().reshape(len(stored), -1, 8 + 4 * AFFINE_BITS[block_type])
    scales, minima = np.split(blocks[..., :8].copy().view(np.float32), 2, axis=-1)
    codes = blocks[..., 8:]
    if block_type == "AFFINE4":
        codes = np.concatenate((codes % 16, codes // 16), axis=-1)
    return torch.from_numpy((scales * codes.astype(np.float32) + minima).reshape(len(stored), -1))


def dequantized(stored: Tensor, block_type: str) -> Tensor:
    if block_type in AFFINE_BITS:
        return affine_dequantized(stored, block_type)
    kind = gguf.GGMLQuantizationType[block_type]
    return torch.from_numpy(gguf.quants.dequantize(stored.numpy(), kind))


@block_type
def test_each_input_meets_the_weight_that_the_format_says(block_type):
    stored = blocks(block_type, 40, 512)
    layer = Linear.from_blocks(stored, block_type, None, torch.float32)
    assert (layer.in_features, layer.out_features) == (512, 40)
    # 127 is an input that quantization keeps: each output is a single product.
    expected = 127 * dequantized(stored, block_type).T
    # Codes of eight bits times their scales, up to 130, are rounded before the minimum is added.
    atol = 2e-5 if block_type == "AFFINE8" else 1e-6
    assert torch.allclose(layer(127 * torch.eye(512)), expected, rtol=1e-5, atol=atol)


@block_type
def test_a_layer_is_the_product_with_the_stored_weights(block_type):
    stored = blocks(block_type, 70, 1024)
    x = torch.randn(9, 1024, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(70, generator=torch.Generator().manual_seed(2))
    out = Linear.from_blocks(stored, block_type, bias, torch.float32)(x)
    integers, unit = reference.quantize_inputs(x)
    weights = dequantized(stored, block_type).double()
    expected = (integers * unit).flatten(1).double() @ weights.T + bias
    assert torch.allclose(out.double(), expected, rtol=1e-5, atol=1e-4)


@block_type
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_batch(block_type, dtype):
    layer = Linear.from_blocks(blocks(block_type, 90, 256), block_type, None, dtype)
    x = torch.randn(70, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    alone = torch.cat([layer(row) for row in x.split(1)])
    for tokens in (2, 5, 6, 7, 13, 70):
        assert torch.equal(layer(x[:tokens]), alone[:tokens])


@block_type
def test_dequantized_blocks_have_the_bits_of_the_format(block_type):
    stored = blocks(block_type, 33, 512)
    out = torch.empty(33, 512)
    _core.dequantize(stored, block_type, out)
    assert torch.equal(out, dequantized(stored, block_type))


@pytest.mark.parametrize("block_type", AFFINE_BITS)
def test_a_layer_of_affine_blocks_takes_the_bytes_that_are_told(block_type):
    # The codes, and eight bytes per 32 of them for scale and minimum.
    bits = 8 * _core.linear_bytes(1024, 2048, 2, block_type) / (1024 * 2048)
    assert bits == pytest.approx(AFFINE_BITS[block_type] + 2, rel=0.02)


def test_every_exponent_of_mxfp4_is_exact():
    # A block for each, with all codes: the scale of the least two is subnormal.
    codes = np.tile(np.arange(16, dtype=np.uint8), (255, 1)) * 17
    stored = np.concatenate((np.arange(255, dtype=np.uint8)[:, None], codes), axis=1)
    halves = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
    exponents = torch.arange(255.0, dtype=torch.float64)
    expected = (halves.double() * 2 ** (exponents - 128)[:, None]).float().repeat(1, 2)
    out = torch.empty(255, 32)
    _core.dequantize(torch.from_numpy(stored), "MXFP4", out)
    assert torch.equal(out, expected)
    layer = Linear.from_blocks(torch.from_numpy(stored), "MXFP4", None, torch.float32)
    # Products of subnormal scales are rounded, and of the largest infinite.
    got = layer(torch.eye(32) * 127).T[2:240] / 127
    torch.testing.assert_close(got, expected[2:240], rtol=1e-6, atol=0)


def test_four_bit_floats_take_four_and_a_half_bits():
    bits = 8 * _core.linear_bytes(1024, 2048, 2, "MXFP4") / (1024 * 2048)
    assert bits == pytest.approx(4.5, rel=0.02)


def test_blocks_that_do_not_fit_are_refused():
    stored = blocks("Q4_0", 4, 64)
    with pytest.raises(ValueError, match=r"block_type: expected one of Q8_0, .* got Q2_K"):
        _core.Linear.from_blocks(stored, "Q2_K")
    with pytest.raises(ValueError, match="blocks: expected rows of a multiple of 18 bytes, got 35"):
        _core.Linear.from_blocks(stored[:, :35].contiguous(), "Q4_0")
    with pytest.raises(TypeError, match="blocks: expected uint8, got float32"):
        _core.Linear.from_blocks(torch.ones(4, 36), "Q4_0")
    with pytest.raises(ValueError, match="bias: expected out_features, 4, got 5"):
        _core.Linear.from_blocks(stored, "Q4_0", torch.ones(5))
