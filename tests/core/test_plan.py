"""The layout of a plan, which Rust writes and Python reads."""

import re
from pathlib import Path

import numpy as np
from chairlift.core import plan

SOURCE = Path(__file__).parents[2] / "rust/chairlift-core/src/plan.rs"


def numbers(name: str) -> list[int]:
    """Return the numbers of a constant of the Rust source."""
    (text,) = re.findall(rf"const {name}: [^=]*= \[?([^;\]]*)\]?;", SOURCE.read_text())
    return [int(number) for number in text.split(",")]


def section_names() -> list[str]:
    """Return the sections in the order in which `Plan::encode` writes them."""
    pattern = r"let sections: \[&\[i32\]; NUM_SECTIONS\] = \[(.*?)\];"
    (text,) = re.findall(pattern, SOURCE.read_text(), re.DOTALL)
    return re.findall(r"&self\.(\w+)", text)


def test_python_reads_each_section_where_rust_writes_it():
    (header,), widths, lengths = numbers("HEADER"), numbers("WIDTHS"), numbers("LENGTHS")
    names = section_names()
    assert len(names) == len(widths) == len(lengths) == numbers("NUM_SECTIONS")[0]
    counts = {place: 2 + place for place in set(lengths)}
    buffer = np.zeros(header, dtype=np.int32)
    for place, count in counts.items():
        buffer[place] = count
    sections, start = {}, 1000
    for name, width, place in zip(names, widths, lengths, strict=True):
        size = counts[place] * width
        section = np.arange(start, start + size, dtype=np.int32)
        start += size
        sections[name] = section if width == 1 else section.reshape(-1, width)
        buffer = np.concatenate([buffer, section])
    view = plan.PlanView.of(buffer)
    swap_in, swap_out = plan.block_swaps(buffer)
    read = {
        **view._asdict(),
        "block_updates": plan.block_updates(buffer),
        "copies": plan.block_copies(buffer),
        "swap_in": swap_in,
        "swap_out": swap_out,
        "state_updates": plan.state_updates(buffer),
    }
    for name, section in read.items():
        assert np.array_equal(section, sections[name]), name
    assert set(sections) - set(read) == {"draft_counts", "score_ranges"}


def test_what_is_done_with_a_state_has_the_numbers_of_rust():
    for name in ("LOAD_STATE", "COPY_STATE", "SAVE_STATE"):
        assert numbers(name) == [getattr(plan, name)]
