"""Which recording runs a step of any sizes: it has room for all that the step can have."""

import pytest
import torch
from chairlift import _core
from chairlift.engine.runner.recordings import Recordings, StepSizes, WorkSizes
from chairlift.engine.runner.shape import RunnerShape
from chairlift.kernels.cuda import ops
from chairlift.model.specs.model_spec import LayerShape
from hypothesis import given
from hypothesis import strategies as st

MAX_TOKENS, MAX_ROWS, MAX_TILES, MAX_SPLITS = 512, 24, 4096, 4096
SHAPES = [
    LayerShape(64, 96, 9, 3, 64),
    LayerShape(64, 96, 16, 1, 128),
    LayerShape(64, 96, 4, 4, 64),
]


class Recorder:
    """Gives each recording back as what it was made of."""

    def capture(self, launches):
        return launches


def recordings(shape):
    made = Recordings(RunnerShape(MAX_ROWS, MAX_TOKENS, 1, 64, 16, 64), [shape], MAX_TILES)
    made.record(Recorder(), lambda *_: None, lambda _: None, None)
    return made


def work_of(made, shape, counts, padded):
    """How the attention of rows with so many queries is cut."""
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    pieces = _core.attention_work(
        torch.arange(len(counts)).int(),
        starts,
        torch.tensor(counts).int() + 40,
        torch.zeros(MAX_SPLITS, 8, dtype=torch.int32),
        torch.zeros(MAX_TILES, 3, dtype=torch.int32),
        num_kv_heads=shape.num_kv_heads,
        group=shape.queries_per_kv_head,
        split_len=512,
        decode_rows=ops.MAX_DECODE_ROWS,
        tile_rows=made.tile_rows(padded.num_tokens),
        window=0,
    )
    num_splits, num_tiles, split_rows = pieces
    return WorkSizes([num_splits], [split_rows], [num_tiles], made.tile_rows(padded.num_tokens))


@pytest.mark.parametrize("shape", SHAPES)
@given(counts=st.lists(st.integers(1, 70), min_size=1, max_size=MAX_ROWS), data=st.data())
def test_every_step_whose_short_rows_fit_is_replayed(shape, counts, data):
    made = recordings(shape)
    num_tokens = sum(counts)
    sizes = StepSizes.of(len(counts), num_tokens, data.draw(st.integers(0, len(counts))))
    padded = made.padded(sizes)
    if num_tokens > MAX_TOKENS:
        assert padded == sizes
        return
    assert all(held >= size for held, size in zip(padded[:3], sizes[:3], strict=True))
    work = work_of(made, shape, counts, padded)
    packed = shape.queries_per_kv_head
    is_wide = ops.decode_tile_rows(work.split_rows[0]) > ops.decode_tile_rows(packed)
    assert (made.forward(padded, work) is None) == is_wide


def test_draws_behind_drafts_fit_a_recording_or_none():
    made = recordings(SHAPES[0])
    few, many = StepSizes.of(2, 9, 9), StepSizes.of(2, 60, 60)
    assert made.padded(few).num_samples >= few.num_samples
    assert made.padded(many) == many
    assert made.draw(60) is None
    assert made.num_draws(0) == 0
