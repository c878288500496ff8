"""What the bindings refuse, by the name of the argument."""

import re

import pytest
import torch
from chairlift import _core


def norm(x=None, weight=None, out=None):
    """Calls `rms_norm` with good arguments, save those given."""
    x = torch.ones(3, 8) if x is None else x
    weight = torch.ones(8) if weight is None else weight
    out = torch.empty(3, 8) if out is None else out
    _core.rms_norm(x, weight, 1e-6, out)


def test_the_good_call_is_good():
    norm()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [1.0]}, "expected a torch.Tensor, got list\nwhile processing 'x'"),
        (
            {"x": torch.ones(3, 8, device="meta")},
            "expected a CPU tensor, got one on meta\nwhile processing 'x'",
        ),
        (
            {"x": torch.ones(3, 8).half()},
            "expected one of float32, bfloat16, int8, int32, int64, got torch.float16"
            "\nwhile processing 'x'",
        ),
        (
            {"x": torch.ones(3, 8).to_sparse()},
            "expected a dense tensor, got torch.sparse_coo\nwhile processing 'x'",
        ),
        (
            {"x": torch.ones(3, 8).to(torch.float8_e4m3fn)},
            "expected one of float32, bfloat16, int8, int32, int64, got torch.float8_e4m3fn"
            "\nwhile processing 'x'",
        ),
        ({"x": torch.ones(3, 8).int()}, "x: expected float32 or bfloat16, got int32"),
        ({"weight": torch.ones(8).bfloat16()}, "weight: expected float32, got bfloat16"),
        ({"out": torch.ones(3, 8).bfloat16()}, "out: expected float32, got bfloat16"),
    ],
)
def test_a_wrong_kind_is_a_type_error(arguments, message):
    with pytest.raises(TypeError, match=r"^" + re.escape(message)):
        norm(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.ones(8)}, "x: expected 2 dimensions, got 1"),
        ({"x": torch.ones(3, 16)[:, ::2]}, "x: expected contiguous rows, got strides [16, 2]"),
        ({"x": torch.ones(1, 8).expand(3, 8)}, "x: expected contiguous rows, got strides [0, 1]"),
        ({"weight": torch.ones(16)[::2]}, "weight: expected a contiguous tensor, got strides [2]"),
        ({"weight": torch.ones(7)}, "weight: expected the width of x, 8, got 7"),
        ({"out": torch.empty(3, 7)}, "out: expected the width of x, 8, got 7"),
        ({"out": torch.empty(2, 8)}, "out: expected as many rows as x: 3, got 2"),
    ],
)
def test_a_wrong_shape_is_a_value_error(arguments, message):
    with pytest.raises(ValueError, match=r"^" + re.escape(message)):
        norm(**arguments)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (torch.ones(3, 7), "update: expected the width of x, 8, got 7"),
        (torch.ones(2, 8), "update: expected as many rows as x: 3, got 2"),
    ],
)
def test_what_is_added_has_the_shape_of_what_it_is_added_to(update, message):
    with pytest.raises(ValueError, match=r"^" + re.escape(message)):
        _core.add_rms_norm(torch.ones(3, 8), update, torch.ones(8), 1e-6, torch.empty(3, 8))


def test_an_output_may_not_overlap_an_input():
    memory = torch.ones(48)
    x = memory[:24].view(3, 8)
    for start in (0, 1, 23):
        with pytest.raises(ValueError, match=r"^out: overlaps x$"):
            norm(x=x, out=memory[start : start + 24].view(3, 8))
    norm(x=x, out=memory[24:].view(3, 8))


def test_inputs_may_overlap():
    fused = torch.ones(2, 3 * 16)
    key, value = fused[:, :16].view(2, 1, 16), fused[:, 16:32].view(2, 1, 16)
    cache = torch.zeros(2, 1, 2 * 16 * 16)
    slots = torch.tensor([16, 17], dtype=torch.int32)
    _core.kv_write(key, value, cache, slots, 16)
    assert cache[1].sum() == 2 * 2 * 16
    assert cache[0].sum() == 0


def test_linear_refuses_what_does_not_fit():
    layer = _core.Linear(torch.ones(4, 8))
    with pytest.raises(TypeError, match=r"^weight: expected float32 or bfloat16, got int64$"):
        _core.Linear(torch.ones(4, 8, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^bias: expected out_features, 4, got 3$"):
        _core.Linear(torch.ones(4, 8), torch.ones(3))
    with pytest.raises(ValueError, match=r"^x: expected in_features, 8, got 7$"):
        layer.forward(torch.ones(1, 7), torch.empty(1, 4))
    with pytest.raises(TypeError, match=r"^x: expected float32, got bfloat16$"):
        layer.forward(torch.ones(1, 8).bfloat16(), torch.empty(1, 4))
    with pytest.raises(TypeError, match=r"^out: expected float32, got bfloat16$"):
        layer.forward(torch.ones(1, 8), torch.empty(1, 4).bfloat16())


def test_rope_refuses_what_does_not_fit():
    x, angles = torch.ones(2, 1, 16), torch.ones(5, 16)
    positions = torch.tensor([0, 5], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^positions: expected positions in 0\.\.5, got 5$"):
        _core.rope(x, positions, angles)
    with pytest.raises(ValueError, match=r"^cos_sin: expected head_dim, 16 columns, got 8$"):
        _core.rope(x, positions, torch.ones(5, 8))
    with pytest.raises(TypeError, match=r"^positions: expected int32, got int64$"):
        _core.rope(x, positions.long(), angles)
    assert torch.equal(x, torch.ones(2, 1, 16))


def test_only_one_block_size_is_supported():
    with pytest.raises(ValueError, match=r"^block_size: expected the only size 16, got 32$"):
        _core.kv_write(
            torch.ones(1, 1, 16),
            torch.ones(1, 1, 16),
            torch.ones(1, 1, 2 * 32 * 16),
            torch.zeros(1, dtype=torch.int32),
            32,
        )


def test_threads_are_at_least_one():
    with pytest.raises(ValueError, match=r"^num_threads: expected at least 1, got 0$"):
        _core.set_num_threads(0)
