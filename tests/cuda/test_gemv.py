"""Linear layers of a few rows against a product in float64."""

import pytest
import torch
from chairlift.kernels.cuda.linear import takes_gemv
from chairlift.kernels.cuda.sources import GEMV_ROWS

from tests.cuda.conftest import Launch
from tests.cuda.emulation import guarded
from tests.cuda.instantiations import BF16, F16, instance

ROUNDING = {BF16: 2**-8, F16: 2**-11}


def product(run, x, weight, bias=None):
    (rows, depth), outputs = x.shape, len(weight)
    out = guarded(torch.full((rows, outputs), torch.nan, dtype=x.dtype))
    arguments = [out, guarded(x), guarded(weight), bias, outputs, depth, outputs, depth]
    run(instance("gemv", x.dtype, rows), (-(-outputs // 4),), 128, 0, arguments)
    return out


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("rows", GEMV_ROWS)
@pytest.mark.parametrize(("outputs", "depth"), [(1, 8), (5, 264), (37, 2056), (8, 4096)])
def test_matches_the_product(
    run: Launch, dtype: torch.dtype, rows: int, outputs: int, depth: int
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, depth).to(dtype), torch.randn(outputs, depth).to(dtype)
    bias = torch.randn(outputs).to(dtype)
    for added in (None, bias):
        expected = x.double() @ weight.double().T + (0 if added is None else added.double())
        error = (product(run, x, weight, added).double() - expected).abs().max()
        assert error <= ROUNDING[dtype] * max(1.0, expected.abs().max())


def test_bits_of_a_row_do_not_depend_on_the_others(run: Launch) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 520).to(BF16), torch.randn(9, 520).to(BF16)
    together = product(run, x, weight)
    assert torch.equal(product(run, x[:2], weight), together[:2])
    for row in range(4):
        assert torch.equal(product(run, x[row : row + 1], weight)[0], together[row])


@pytest.mark.parametrize(
    ("rows", "depth", "is_taken"), [(1, 64, True), (4, 64, True), (3, 64, False), (1, 36, False)]
)
def test_other_shapes_are_left_to_cublas(rows: int, depth: int, is_taken: bool) -> None:
    x, weight = torch.zeros(rows, depth, dtype=BF16), torch.zeros(8, depth, dtype=BF16)
    assert takes_gemv(x, weight) == is_taken


def test_a_row_that_begins_amid_16_bytes_is_left_to_cublas() -> None:
    numbers, weight = torch.zeros(72, dtype=BF16), torch.zeros(8, 64, dtype=BF16)
    assert takes_gemv(numbers[8:].view(1, 64), weight)
    assert not takes_gemv(numbers[4:68].view(1, 64), weight)
