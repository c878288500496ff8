"""The update of adapters against its PyTorch twin, and at the door."""

import pytest
import torch
from chairlift import _core

from tests.kernels import reference

IN, OUT = 70, 90
SHAPES = (
    [(0, OUT, 16)],
    [(0, 30, 3), (40, 50, 65)],
    [],
)
"""Of each adapter the first output, the outputs and the rank of each part."""


def new_updates(dtype):
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(shape, generator=draw).to(dtype)

    return [
        [(first, 0.5, numbers(rank, IN), numbers(outputs, rank)) for first, outputs, rank in shapes]
        for shapes in SHAPES
    ]


def new_table(updates):
    table = _core.AdapterTable(len(updates) + 1)
    for slot, parts in enumerate(updates, start=1):
        table.set(slot, _core.LowRank(IN, OUT, parts))
    return table


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [torch.float32, torch.bfloat16])
def test_rows_get_what_the_twin_adds(weights, inputs, outputs):
    updates = new_updates(weights)
    x, before = torch.randn(9, IN).to(inputs), torch.randn(9, OUT + 4).to(outputs)[:, :OUT]
    adapters = torch.tensor([0, 1, 2, 3, 2, 1, 0, 2, 1], dtype=torch.int32)
    out = before.clone()
    new_table(updates).add(x, out, adapters)
    wide = [[(f, s, a.double(), b.double()) for f, s, a, b in parts] for parts in updates]
    expected = reference.add_low_rank(x.double(), before.double(), wide, adapters)
    tolerance = 1e-4 if outputs == torch.float32 else 1e-2
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    for row in (0, 3, 6):
        assert torch.equal(out[row], before[row])


def test_a_selection_of_tokens_has_their_adapters():
    updates = new_updates(torch.float32)
    table, x, before = new_table(updates), torch.randn(4, IN), torch.randn(4, OUT)
    adapters = torch.tensor([1, 0, 2, 0], dtype=torch.int32)
    whole, some = before.clone(), before[[2, 1, 0]].clone()
    table.add(x, whole, adapters)
    selected = torch.tensor([2, 1, 0], dtype=torch.int32)
    table.add(x[[2, 1, 0]], some, adapters, selected)
    assert torch.equal(some, whole[[2, 1, 0]])


def test_a_recorded_call_takes_what_the_slot_holds_when_it_runs():
    updates = new_updates(torch.float32)
    table, x, out = new_table(updates), torch.randn(2, IN), torch.zeros(2, OUT)
    adapters = torch.tensor([1, 2], dtype=torch.int32)
    with _core.Recording() as recording:
        table.add(x, out, adapters)
    recording.run()
    first = out.clone()
    table.set(1, _core.LowRank(IN, OUT, updates[1]))
    out.zero_()
    recording.run()
    assert not torch.equal(out[0], first[0])
    assert torch.equal(out[1], first[1])


def test_what_does_not_fit_is_refused_by_name():
    updates = new_updates(torch.float32)
    table, x, out = new_table(updates), torch.randn(1, IN), torch.zeros(1, OUT)

    def slots(*values):
        return torch.tensor(values, dtype=torch.int32)

    with pytest.raises(ValueError, match="got 4, which has none"):
        table.add(x, out, slots(4))
    for slot in (5, -1):
        with pytest.raises(ValueError, match=r"^adapters: expected"):
            table.add(x, out, slots(slot))
    with pytest.raises(ValueError, match=r"^x: expected in_features, 70, got 69"):
        table.add(x[:, :69].contiguous(), out, slots(1))
    with pytest.raises(ValueError, match="as many rows"):
        table.add(torch.randn(2, IN), out, slots(0, 0))
    with pytest.raises(TypeError, match="adapters"):
        table.add(x, out, torch.tensor([1]))
    a, b = torch.zeros(2, IN), torch.zeros(OUT, 2)
    for slot in (0, 5):
        with pytest.raises(ValueError, match="slot: expected 1 to 4"):
            table.set(slot, None)
    for parts, problem in (
        ([(0, 1.0, a, b[:, :1].contiguous())], "^b: expected the rows of a, 2, got 1"),
        ([(1, 1.0, a, b)], r"^b: expected outputs in 0\.\.90, got 1\.\.91"),
        ([(0, 1.0, a, b), (0, 1.0, a, b)], r"^b: expected outputs in 90\.\.90"),
    ):
        with pytest.raises(ValueError, match=problem):
            _core.LowRank(IN, OUT, parts)
    with pytest.raises(TypeError, match="b"):
        _core.LowRank(IN, OUT, [(0, 1.0, a, b.bfloat16())])
