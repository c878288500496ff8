"""Charts of lines and of bars, as shapes for the writers of the timeline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chairlift.bench.report.axes import horizontal, linear, logarithmic, vertical
from chairlift.timeline.line_styles import LineStyle, mark_shapes
from chairlift.timeline.shapes import (
    INK,
    PAGE,
    QUIET,
    Box,
    Boxes,
    Figure,
    Line,
    Shape,
    Text,
    text_width,
)

WIDTH: Final = 720.0
_HEIGHT: Final = 300.0
_LEFT, _TOP, _BOTTOM = 64.0, 34.0, 44.0
_LABEL: Final = 15.0
"""Least distance of the labels of two lines."""

Point = tuple[float, float]


class Series(NamedTuple):
    """One line."""

    name: str
    style: LineStyle
    points: Sequence[Point]
    has_marks: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one axis."""

    label: str
    """One sentence for readers of the screen."""
    x_title: str
    y_title: str
    series: Sequence[Series]
    x_form: str = ""
    y_form: str = ""
    is_log: bool = False
    """Whether the vertical axis is logarithmic."""
    is_log_x: bool = False
    bounds: Sequence[tuple[str, float]] = field(default_factory=list)
    """Horizontal lines, and what they say."""


def draw_lines(chart: Chart) -> Figure:
    """Arrange the chart; each line has its name at its end."""
    points = [point for series in chart.series for point in series.points]
    room = 34 + max(text_width(series.name, 12) for series in chart.series)
    right, bottom = WIDTH - room, _HEIGHT - _BOTTOM
    make_x = logarithmic if chart.is_log_x else linear
    x_scale = make_x([x for x, _ in points], _LEFT, right)
    make_y = logarithmic if chart.is_log else linear
    y_scale = make_y([*(y for _, y in points), *(y for _, y in chart.bounds)], bottom, _TOP)
    shapes = list(horizontal(x_scale, _TOP, bottom, chart.x_title, chart.x_form))
    shapes += vertical(y_scale, _LEFT, right, chart.y_title, chart.y_form)
    for words, value in chart.bounds:
        y = y_scale.at(value)
        shapes.append(Line([(_LEFT, y), (right, y)], INK, 1, "2 3"))
        shapes.append(Text(_LEFT + 6, y - 5, words, QUIET, 12))
    ends = []
    for series in chart.series:
        places = [(x_scale.at(x), y_scale.at(y)) for x, y in series.points]
        if not places:
            continue
        style = series.style
        shapes.append(Line(places, style.colour, style.width, style.dashes))
        if series.has_marks:
            for x, y in places:
                shapes += mark_shapes(style, x, y)
        ends.append((places[-1], series))
    shapes += _names(ends, right + 10, bottom)
    return _figure(_HEIGHT, chart.label, shapes)


def _figure(height: float, label: str, shapes: Sequence[Shape]) -> Figure:
    return Figure(WIDTH, height, label, [Boxes([Box(0, 0, WIDTH, height)], PAGE), *shapes])


def _names(ends: Sequence[tuple[Point, Series]], x: float, bottom: float) -> Iterator[Shape]:
    """Yield the names of lines at their ends, moved where two would overlap."""
    ordered = sorted(ends, key=lambda end: end[0][1])
    last = _TOP - _LABEL
    places = []
    for (_, y), _series in ordered:
        last = max(y, last + _LABEL)
        places.append(last)
    # What hangs over the lower edge moves up again, with what is above it.
    limit = bottom
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - _LABEL
    for place, ((end_x, end_y), series) in zip(places, ordered, strict=True):
        yield Line([(end_x + 4, end_y), (x + 2, place)], QUIET, 0.6)
        yield from mark_shapes(series.style, x + 6, place)
        yield Text(x + 16, place + 4, series.name, INK, 12)


class Bar(NamedTuple):
    """One bar with the range of its value."""

    name: str
    colour: str
    value: float
    low: float
    high: float
    words: str = ""
    """Behind the bar; default: its value."""


def draw_bars(label: str, title: str, bars: Sequence[Bar]) -> Figure:
    """Arrange horizontal bars, each with its value and its range."""
    row, top = 28.0, 30.0
    words = [bar.words or f"{bar.value:,.1f}" for bar in bars]
    left = 16 + max(text_width(bar.name, 12) for bar in bars)
    right = WIDTH - 16 - max(text_width(one, 12) for one in words)
    scale = linear([bar.high for bar in bars], left, right)
    bottom = top + row * len(bars)
    shapes = list(horizontal(scale, top - 6, bottom, title))
    for place, (bar, said) in enumerate(zip(bars, words, strict=True)):
        y = top + place * row
        end, low, high = scale.at(bar.value), scale.at(bar.low), scale.at(bar.high)
        shapes.append(Text(left - 8, y + 15, bar.name, INK, 12, anchor="end"))
        shapes.append(Boxes([Box(left, y + 2, end - left, 18)], bar.colour))
        if bar.high > bar.low:
            shapes.append(Line([(low, y + 11), (high, y + 11)], INK))
            shapes += [Line([(x, y + 6), (x, y + 16)], INK) for x in (low, high)]
        x = max(end, high) + 8
        # No line of the grid crosses the words.
        shapes.append(Boxes([Box(x - 2, y + 2, text_width(said, 12) + 4, 18)], PAGE))
        shapes.append(Text(x, y + 15, said, INK, 12))
    return _figure(bottom + _BOTTOM, label, shapes)
