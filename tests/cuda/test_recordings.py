"""Which recording runs a step of any sizes: it has room for all that the step can have."""

import dataclasses

import pytest
import torch
from chairlift import _core
from chairlift.engine.runner.recordings import (
    Recordings,
    StepSizes,
    WorkSizes,
    pad,
    pad_tiles,
)
from chairlift.engine.runner.shape import RunnerShape
from chairlift.engine.runner.staging import Staging
from chairlift.kernels.cuda import ops
from chairlift.model.specs.model_spec import LayerShape
from hypothesis import given
from hypothesis import strategies as st

from tests.cuda.emulated_device import EmulatedDevice

MAX_TOKENS, MAX_ROWS, MAX_TILES, MAX_SPLITS = 2048, 40, 8192, 4096
SHAPES = [
    LayerShape(64, 96, 9, 3, 64),
    LayerShape(64, 96, 16, 1, 128),
    LayerShape(64, 96, 4, 4, 64),
    # Large tiles from 1,024 tokens on.
    LayerShape(64, 96, 128, 8, 128),
]


class Recorder:
    """Gives each recording back as what it was made of."""

    def capture(self, launches):
        return launches


def recordings(shape):
    made = Recordings(RunnerShape(MAX_ROWS, MAX_TOKENS, 1, 64, 16, 64), [shape], MAX_TILES)
    made.record(Recorder(), lambda *_: None, lambda _: None, None)
    return made


def work_of(made, shape, counts, padded, max_splits=MAX_SPLITS):
    """How the attention of rows with so many queries is cut."""
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    pieces = _core.attention_work(
        torch.arange(len(counts)).int(),
        starts,
        torch.tensor(counts).int() + 40,
        torch.zeros(max_splits, 8, dtype=torch.int32),
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
@given(counts=st.lists(st.integers(1, 120), min_size=1, max_size=MAX_ROWS), data=st.data())
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


def test_rows_that_have_no_room_in_the_splits_are_not_replayed_as_decodes():
    made, shape = recordings(SHAPES[0]), SHAPES[0]
    sizes = StepSizes.of(3, 3, 3)
    padded = made.padded(sizes)
    assert made.forward(padded, work_of(made, shape, [1, 1, 1], padded)) is not None
    crowded = work_of(made, shape, [1, 1, 1], padded, max_splits=shape.num_kv_heads)
    assert crowded.num_tiles[0] > 0
    assert made.forward(padded, crowded) is None


def test_a_step_with_few_samples_computes_few_logits():
    made = recordings(SHAPES[0])
    assert made.padded(StepSizes.of(2, 600, 0)).num_samples == 32
    assert made.padded(StepSizes.of(40, 600, 33)).num_samples == 40


def test_padding_has_no_row_no_slot_and_no_token():
    staging = Staging(
        EmulatedDevice(),
        max_num_seqs=8,
        max_num_tokens=16,
        max_num_samples=8,
        num_groups=2,
        max_tiles=5,
        max_splits=3,
        num_hosts=1,
    )
    (host,) = staging.hosts
    parts = [getattr(host, field.name) for field in dataclasses.fields(host)]
    for part in parts:
        part.fill_(7)
    host.query_start_loc[:3] = torch.tensor([0, 4, 5])
    pad(host, StepSizes.of(2, 5, 1), StepSizes(8, 16, 8, is_decodes=False), 0)
    assert host.query_start_loc.tolist() == [0, 4, *[5] * 7]
    assert host.slot_mapping.tolist() == [[7] * 5 + [-1] * 11] * 2
    assert host.drawn_rows.tolist() == [7, *[-1] * 7]
    assert host.input_ids.tolist() == [7] * 5 + [0] * 11
    assert host.rows.tolist() == [7, 7, *[0] * 6]
    assert host.sample_rows.tolist() == [7, *[0] * 7]
    pad_tiles(host, WorkSizes([0, 0], [0, 0], [2, 5], 64))
    assert host.tiles[..., 0].tolist() == [[7, 7, -1, -1, -1], [7] * 5]
