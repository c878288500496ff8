"""A timeline as lists and back, and the first part of one."""

import json
from dataclasses import replace

import numpy as np
from chairlift.timeline.cut import cut
from chairlift.timeline.lists import from_lists, to_lists

from tests.timeline.steps import example


def test_lists_that_were_written_and_read_are_the_same_timeline() -> None:
    timeline = example()
    lists = to_lists(timeline)
    again = from_lists(json.loads(json.dumps(lists)))
    assert to_lists(again) == lists
    assert again.spans == timeline.spans
    assert again.preemptions == timeline.preemptions
    for name in ("start_ns", "duration_ns", "parts_ns", "num_used_blocks"):
        assert np.array_equal(getattr(again.steps, name), getattr(timeline.steps, name))
    modelled = replace(timeline, is_modelled=True)
    assert from_lists(to_lists(modelled)).is_modelled


def test_the_first_part_ends_with_the_last_step_that_fits() -> None:
    timeline = example()
    first = cut(timeline, 0.0079)
    assert first.num_steps == 4
    assert first.spans == tuple(span for span in timeline.spans if span.first_step < 4)
    assert first.preemptions == timeline.preemptions
    assert first.num_used_rows().tolist() == timeline.num_used_rows()[:4].tolist()
    assert cut(timeline, 0.0).num_steps == 1
    assert cut(timeline, 1.0) is timeline


def test_a_span_is_cut_with_its_share_of_the_tokens() -> None:
    timeline = example()
    long = timeline.spans[0]._replace(num_steps=7, num_tokens=70, num_accepted=14)
    (span,) = cut(replace(timeline, spans=(long,)), 0.0031).spans
    assert (span.num_steps, span.num_tokens, span.num_accepted) == (2, 20, 4)
