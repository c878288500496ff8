"""Norms and activations against their twins."""

import pytest
import torch
from chairlift import reference
from chairlift.kernels.cuda import ops

from tests.cuda.conftest import Launch
from tests.cuda.emulation import guarded
from tests.cuda.instantiations import instance

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "hidden_size"), [(3, 64), (2, 8), (2, 2 * 2048 + 24)])
@pytest.mark.parametrize("adds", [False, True])
def test_rms_norm_matches_the_twin(
    run: Launch, dtype: torch.dtype, num_tokens: int, hidden_size: int, adds: bool
) -> None:
    x = guarded(numbers(num_tokens, hidden_size, dtype=dtype))
    residual = guarded(numbers(num_tokens, hidden_size, dtype=dtype, seed=1)) if adds else None
    weight = guarded(numbers(hidden_size, dtype=dtype, seed=2))
    stream = x + residual if adds else x.clone()
    out = guarded(torch.full_like(x, torch.nan))
    shared = hidden_size * dtype.itemsize + 64
    arguments = [out, x, residual, weight, hidden_size, 1e-5]
    run(instance("rms_norm", dtype), (num_tokens,), 256, shared, arguments)
    assert torch.equal(x, stream)
    expected = reference.rms_norm(stream.double(), weight.double(), 1e-5)
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[dtype], atol=1e-6)


def test_bits_of_a_normed_row_do_not_depend_on_the_batch(run: Launch) -> None:
    x, weight = numbers(5, 96, dtype=torch.bfloat16), numbers(96, dtype=torch.bfloat16, seed=1)
    name, out = instance("rms_norm", x.dtype), torch.empty_like(x)
    run(name, (5,), 256, 96 * 2 + 64, [out, x, None, weight, 96, 1e-6])
    for row in range(5):
        alone = torch.empty(1, 96, dtype=x.dtype)
        run(name, (1,), 256, 96 * 2 + 64, [alone, x[row].clone(), None, weight, 96, 1e-6])
        assert torch.equal(alone[0], out[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
@pytest.mark.parametrize(("size", "is_gated"), [(8, True), (64, False), (2 * 2048 + 8, True)])
def test_activations_match_the_twin(
    run: Launch, dtype: torch.dtype, activation: str, size: int, is_gated: bool
) -> None:
    gate_up = guarded(4 * numbers(3, 2 * size, dtype=dtype))
    gate, up = gate_up.chunk(2, dim=1)
    out = guarded(torch.full((3, size + 8), torch.nan, dtype=dtype))
    strides = out.stride(0), gate.stride(0), up.stride(0)
    arguments = [out, gate, up if is_gated else None, *strides, size]
    arguments.append(ops.ACTIVATIONS.index(activation))
    blocks = -(-size // (256 * 16 // dtype.itemsize))
    run(instance("activate", dtype), (3, blocks), 256, 0, arguments)
    is_sigmoid = activation == "sigmoid"
    wide = gate.double()
    expected = wide.sigmoid() if is_sigmoid else reference.activate(wide, activation)
    if is_gated:
        expected = expected * up.double()
    torch.testing.assert_close(out[:, :size].double(), expected, rtol=ROUNDING[dtype], atol=1e-6)
    assert out[:, size:].isnan().all()
    assert torch.equal(gate_up, 4 * numbers(3, 2 * size, dtype=dtype))


def test_activations_may_write_over_an_input_and_keep_nan(run: Launch) -> None:
    x = numbers(2, 64, dtype=torch.bfloat16)
    x[1, 3] = torch.nan
    for index, activation in enumerate(ops.ACTIVATIONS):
        out = guarded(x.clone())
        run(instance("activate", x.dtype), (2, 1), 256, 0, [out, out, None, 64, 64, 0, 64, index])
        apart = torch.empty_like(x)
        run(instance("activate", x.dtype), (2, 1), 256, 0, [apart, x, None, 64, 64, 0, 64, index])
        assert torch.equal(out[0], apart[0]), activation
        assert out[1].isnan().nonzero().tolist() == [[3]]
