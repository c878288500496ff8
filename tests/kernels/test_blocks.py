"""Layers of weights in the blocks of GGUF files against what the format's own tools read."""

import gguf
import numpy as np
import pytest
import torch
from chairlift import _core, reference
from chairlift.kernels import Linear
from torch import Tensor

TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
HAS_MINIMA = {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}

block_type = pytest.mark.parametrize("block_type", TYPES)


def blocks(block_type: str, rows: int, columns: int, seed: int = 0) -> Tensor:
    """Return blocks with any codes; their half-precision factors are 0.001 to 0.004."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[block_type]]
    random = np.random.default_rng(seed)
    stored = random.integers(0, 256, (rows, columns // weights, size), dtype=np.uint8)
    first = 208 if block_type == "Q6_K" else 0
    for place in (0, 2) if block_type in HAS_MINIMA else (first,):
        factors = random.uniform(0.001, 0.004, stored.shape[:2]).astype(np.float16)
        stored[..., place : place + 2] = factors[..., None].view(np.uint8)
    return torch.from_numpy(stored.reshape(rows, -1))


def dequantized(stored: Tensor, block_type: str) -> Tensor:
    kind = gguf.GGMLQuantizationType[block_type]
    return torch.from_numpy(gguf.quants.dequantize(stored.numpy(), kind))


@block_type
def test_each_input_meets_the_weight_that_the_format_says(block_type):
    stored = blocks(block_type, 40, 512)
    layer = Linear.from_blocks(stored, block_type, None, torch.float32)
    assert (layer.in_features, layer.out_features) == (512, 40)
    # 127 is an input that quantization keeps: each output is a single product.
    expected = 127 * dequantized(stored, block_type).T
    assert torch.allclose(layer(127 * torch.eye(512)), expected, rtol=1e-5, atol=1e-6)


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
