"""The layout of a plan, which Rust writes and Python reads."""

import numpy as np
from chairlift import _core
from chairlift.core.plan import PlanView, plan_len


def test_python_reads_each_section_where_rust_writes_it():
    places = {length for _, _, length in _core.PLAN_SECTIONS}
    buffer = np.zeros(_core.PLAN_HEADER_LEN, dtype=np.int32)
    for place in places:
        buffer[place] = 2 + place
    sections, start = {}, 1000
    for name, width, length in _core.PLAN_SECTIONS:
        size = (2 + length) * width
        section = np.arange(start, start + size, dtype=np.int32)
        start += size
        sections[name] = section if width == 1 else section.reshape(-1, width)
        buffer = np.concatenate([buffer, section])
    padded = np.concatenate([buffer, np.full(100, -7, dtype=np.int32)])
    view = PlanView.of(padded)
    assert view._fields == tuple(sections)
    for name, section in view._asdict().items():
        assert np.array_equal(section, sections[name]), name
    assert plan_len(padded) == len(buffer)


def test_a_plan_of_nothing_has_sections_of_their_widths():
    view = PlanView.of(np.zeros(_core.PLAN_HEADER_LEN, dtype=np.int32))
    for (name, width, _), section in zip(_core.PLAN_SECTIONS, view, strict=True):
        assert section.shape == ((0,) if width == 1 else (0, width)), name
