"""Norms and activations against their twins."""

import pytest
import torch
from chairlift.kernels.cuda.row_ops import ACTIVATIONS, NORM_BYTES

from tests.cuda.conftest import Launch
from tests.cuda.emulation import guarded
from tests.cuda.instantiations import instance
from tests.kernels import reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "hidden_size"), [(3, 64), (2, 8), (2, 2 * 2048 + 24)])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("kind", ["rms", "rms of weights less 1", "layer", "layer with a bias"])
def test_norms_match_the_twins(
    run: Launch, dtype: torch.dtype, num_tokens: int, hidden_size: int, adds: bool, kind: str
) -> None:
    x = guarded(numbers(num_tokens, hidden_size, dtype=dtype) + 0.5)
    residual = guarded(numbers(num_tokens, hidden_size, dtype=dtype, seed=1)) if adds else None
    weight = guarded(numbers(hidden_size, dtype=dtype, seed=2))
    bias = guarded(numbers(hidden_size, dtype=dtype, seed=3)) if "bias" in kind else None
    stream = x + residual if adds else x.clone()
    out = guarded(torch.full_like(x, torch.nan))
    offset, is_layer_norm = float("less 1" in kind), "layer" in kind
    strides = [hidden_size, hidden_size, hidden_size if adds else 0]
    arguments = [out, x, residual, weight, bias, *strides, hidden_size, 1e-5, offset]
    shared = hidden_size * dtype.itemsize + NORM_BYTES
    run(instance("norm", dtype), (num_tokens,), 256, shared, [*arguments, int(is_layer_norm)])
    assert torch.equal(x, stream)
    wide = weight.double() + offset
    expected = reference.rms_norm(stream.double(), wide, 1e-5)
    if is_layer_norm:
        of_bias = None if bias is None else bias.double()
        expected = reference.layer_norm(stream.double(), wide, of_bias, 1e-5)
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[dtype], atol=2e-6)


@pytest.mark.parametrize("is_layer_norm", [0, 1])
def test_groups_of_strided_rows_are_normed_apart_and_in_place(
    run: Launch, is_layer_norm: int
) -> None:
    whole = numbers(3, 5 * 64, dtype=torch.bfloat16)
    weight, rows = numbers(64, dtype=torch.bfloat16, seed=1), guarded(whole)
    x = rows[:, 64 : 4 * 64]
    arguments = [x, x, None, weight, None, 5 * 64, 5 * 64, 0, 64, 1e-5, 0.0, is_layer_norm]
    run(instance("norm", x.dtype), (3, 3), 256, 64 * 2 + NORM_BYTES, arguments)
    parts = whole.view(3, 5, 64).double()
    if is_layer_norm:
        expected = reference.layer_norm(parts, weight.double(), None, 1e-5)
    else:
        expected = reference.rms_norm(parts, weight.double(), 1e-5)
    expected[:, [0, 4]] = parts[:, [0, 4]]
    torch.testing.assert_close(rows.view(3, 5, 64).double(), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("is_layer_norm", [0, 1])
def test_bits_of_a_normed_row_do_not_depend_on_the_batch(run: Launch, is_layer_norm: int) -> None:
    x, weight = numbers(5, 96, dtype=torch.bfloat16), numbers(96, dtype=torch.bfloat16, seed=1)
    name, out, shared = instance("norm", x.dtype), torch.empty_like(x), 96 * 2 + NORM_BYTES
    others = [None, weight, None, 96, 96, 0, 96, 1e-6, 1.0, is_layer_norm]
    run(name, (5,), 256, shared, [out, x, *others])
    for row in range(5):
        alone = torch.empty(1, 96, dtype=x.dtype)
        run(name, (1,), 256, shared, [alone, x[row].clone(), *others])
        assert torch.equal(alone[0], out[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("size", "is_gated"), [(8, True), (64, False), (2 * 2048 + 8, True)])
def test_activations_match_the_twin(
    run: Launch, dtype: torch.dtype, activation: str, size: int, is_gated: bool
) -> None:
    gate_up = guarded(4 * numbers(3, 2 * size, dtype=dtype))
    gate, up = gate_up.chunk(2, dim=1)
    out = guarded(torch.full((3, size + 8), torch.nan, dtype=dtype))
    strides = out.stride(0), gate.stride(0), up.stride(0)
    arguments = [out, gate, up if is_gated else None, *strides, size]
    arguments.append(ACTIVATIONS.index(activation))
    blocks = -(-size // (256 * 16 // dtype.itemsize))
    run(instance("activate", dtype), (3, blocks), 256, 0, arguments)
    is_sigmoid = activation == "sigmoid"
    wide = gate.double()
    expected = wide.sigmoid() if is_sigmoid else reference.activate(wide, activation)
    if is_gated:
        expected = expected * up.double()
    torch.testing.assert_close(out[:, :size].double(), expected, rtol=ROUNDING[dtype], atol=2e-6)
    assert out[:, size:].isnan().all()
    assert torch.equal(gate_up, 4 * numbers(3, 2 * size, dtype=dtype))


def test_activations_may_write_over_an_input_and_keep_nan(run: Launch) -> None:
    x = numbers(2, 64, dtype=torch.bfloat16)
    x[1, 3] = torch.nan
    for index, activation in enumerate(ACTIVATIONS):
        out = guarded(x.clone())
        run(instance("activate", x.dtype), (2, 1), 256, 0, [out, out, None, 64, 64, 0, 64, index])
        apart = torch.empty_like(x)
        run(instance("activate", x.dtype), (2, 1), 256, 0, [apart, x, None, 64, 64, 0, 64, index])
        assert torch.equal(out[0], apart[0]), activation
        assert out[1].isnan().nonzero().tolist() == [[3]]
