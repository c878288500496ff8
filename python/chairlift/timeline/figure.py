"""The figure of timelines: their rows above one another on one axis, and lanes below."""

from collections.abc import Iterator, Sequence

from chairlift.timeline.axis import Axis, Unit
from chairlift.timeline.colours import colour_of, ink
from chairlift.timeline.lanes import (
    ALL_LANES,
    GAP,
    HEIGHT,
    Lane,
    LaneBox,
    lane_key,
    lane_shapes,
    lanes_of,
)
from chairlift.timeline.rows import MAX_ROWS, RowsBox, key_shapes, row_shapes
from chairlift.timeline.shapes import GRID, PAGE, QUIET, Box, Boxes, Dots, Figure, Line, Shape, Text
from chairlift.timeline.values import Timeline

_LEFT, _RIGHT, _TOP, _BOTTOM = 96.0, 24.0, 44.0, 20.0
_PLOT = 880.0
_WIDTH = _LEFT + _PLOT + _RIGHT
_PANEL_TITLE, _PANEL_GAP = 22.0, 18.0
_LEGEND_LINE = 22.0
_MAX_LEGEND = 16
"""Requests that a legend lists."""


def draw_figure(
    timelines: Sequence[Timeline],
    title: str,
    *,
    unit: Unit = Unit.STEP,
    lanes: Sequence[Lane] = ALL_LANES,
) -> Figure:
    """Arrange timelines on one axis.

    Args:
        timelines: From top to bottom; at least one.
        title: Above all of them.
        unit: What the axis counts.
        lanes: Below the rows; those of which nothing is known are left out.
    """
    axis = Axis(timelines, unit)
    shapes: list[Shape] = [Text(_LEFT, 28, title, size=17, is_bold=True)]
    y = _TOP
    name_width = 8.0 * max(len(timeline.name) for timeline in timelines) + 12
    for timeline in timelines:
        shapes += _panel_title(timeline, unit, y + 13, _LEFT + name_width)
        box = RowsBox(timeline, _LEFT, y + _PANEL_TITLE, _PLOT)
        shapes += row_shapes(timeline, axis, box)
        y = box.bottom + _PANEL_GAP
    shapes += _axis(axis, y - _PANEL_GAP)
    y += 14
    known = lanes_of(timelines, lanes)
    for lane in known:
        shapes += lane_shapes(timelines, lane, axis, LaneBox(_LEFT, y, _PLOT))
        y += HEIGHT + GAP
    y += 10 if known else 8
    shapes += key_shapes(timelines, _LEFT, y)
    if entries := lane_key(timelines, known, _LEFT, y + _LEGEND_LINE):
        shapes += entries
        y += _LEGEND_LINE
    y += _LEGEND_LINE
    legend = list(_legend(timelines, y))
    shapes += legend
    y += _LEGEND_LINE * (len(legend) // 3)
    height = y + _BOTTOM - _LEGEND_LINE + 6
    return Figure(_WIDTH, height, title, [Boxes([Box(0, 0, _WIDTH, height)], PAGE), *shapes])


def _panel_title(timeline: Timeline, unit: Unit, y: float, words_left: float) -> Iterator[Shape]:
    words = timeline.describe()
    if timeline.num_rows > MAX_ROWS:
        words += f"; drawn: rows 0 to {MAX_ROWS - 1}"
    if unit is Unit.TIME:
        words += f"; {timeline.describe_time()}"
    yield Text(_LEFT, y, timeline.name, is_bold=True)
    yield Text(words_left, y, words, QUIET, 12)


def _axis(axis: Axis, y: float) -> Iterator[Shape]:
    yield Line([(_LEFT, y + 3), (_LEFT + _PLOT, y + 3)], GRID, 1)
    yield Text(_LEFT - 24, y + 18, axis.unit.value, QUIET, 12, anchor="end")
    for place, words in axis.marks(max_marks=12):
        x = _LEFT + place * _PLOT
        yield Line([(x, y + 3), (x, y + 7)], GRID, 1)
        yield Text(x, y + 18, words, QUIET, 12, anchor="middle")


def _legend(timelines: Sequence[Timeline], y: float) -> Iterator[Shape]:
    """Yield the labels of the requests, where they have some and are few; three shapes each."""
    labels = {r.number: r.label for t in timelines for r in t.requests if r.label}
    if len(labels) > _MAX_LEGEND:
        return
    for place, (number, label) in enumerate(sorted(labels.items())):
        middle, colour = y + place * _LEGEND_LINE, colour_of(number)
        yield Dots([(_LEFT + 9, middle - 4.5)], 9, colour)
        yield Text(_LEFT + 9, middle, str(number), ink(colour), 13, is_bold=True, anchor="middle")
        yield Text(_LEFT + 28, middle, label)
