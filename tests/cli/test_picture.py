"""The timeline in the terminal: two rows, three requests, one of them preempted."""

import pytest
from chairlift.cli.picture import render_terminal
from chairlift.timeline.builder import TimelineBuilder
from chairlift.timeline.values import Timeline
from rich.console import Console

from tests.timeline.steps import DECODE, FINISH, PREFILL, add, example


def text_of(timeline: Timeline, width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(render_terminal(timeline, width))
    return capture.get()


def test_terminal_shows_rows_numbers_and_ends() -> None:
    rows = text_of(example(), 80).splitlines()[:2]
    assert rows == ["row 0 1╱\N{MULTIPLICATION SIGN}··1●", "row 1 2●3═●··"]


@pytest.mark.parametrize("num_steps", [5, 60, 1000])
def test_terminal_picture_fits_and_keeps_the_end(num_steps: int) -> None:
    builder = TimelineBuilder("", num_rows=1)
    for step in range(num_steps):
        add(builder, [(0, 1, FINISH if step == num_steps - 1 else DECODE, 1, 0)])
    row = text_of(builder.build(), 60).splitlines()[0]
    assert len(row) <= 60
    assert row.endswith("●")


def test_the_next_request_in_a_column_does_not_hide_the_end_of_the_last() -> None:
    builder = TimelineBuilder("", num_rows=1)
    for request, length in ((1, 101), (2, 99)):
        add(builder, [(0, request, PREFILL, 1, 0)])
        for step in range(1, length):
            add(builder, [(0, request, FINISH if step == length - 1 else DECODE, 1, 0)])
    # Columns of four steps: the end of the first shares one with the begin of the second.
    row = text_of(builder.build(), 60).splitlines()[0]
    assert row.count("●") == 2


def test_nothing_recorded_is_an_empty_picture() -> None:
    assert "row 1" in text_of(TimelineBuilder("", num_rows=2).build(), 80)
