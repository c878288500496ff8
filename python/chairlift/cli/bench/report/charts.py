"""Charts of lines and of bars, drawn without a library so that the page needs no script."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chairlift.cli.bench.report.axes import (
    horizontal,
    linear,
    logarithmic,
    vertical,
)
from chairlift.cli.bench.report.svg import element, picture, text

WIDTH: Final = 720.0
_HEIGHT: Final = 300.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 64.0, 34.0, 150.0, 44.0
_LABEL: Final = 15.0
"""Least distance of the labels of two lines."""


class Series(NamedTuple):
    """One line."""

    name: str
    style: str
    """Class of its colour, dashes and marks."""
    points: Sequence[tuple[float, float]]
    has_marks: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one axis."""

    label: str
    """One sentence for readers of the screen."""
    x_title: str
    y_title: str
    series: Sequence[Series]
    y_form: str = ""
    is_log: bool = False
    """Whether the vertical axis is logarithmic."""
    bounds: Sequence[tuple[str, float]] = field(default_factory=list)
    """Horizontal lines, and what they say."""


def draw_lines(chart: Chart) -> str:
    """Return the chart as SVG; each line has its name at its end."""
    points = [point for series in chart.series for point in series.points]
    right, bottom = WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x_scale = linear([x for x, _ in points], _LEFT, right)
    make = logarithmic if chart.is_log else linear
    y_scale = make([*(y for _, y in points), *(y for _, y in chart.bounds)], bottom, _TOP)
    parts = horizontal(x_scale, _TOP, bottom, chart.x_title, "")
    parts += vertical(y_scale, _LEFT, right, chart.y_title, chart.y_form)
    for words, value in chart.bounds:
        y = y_scale.at(value)
        parts.append(element("path", d=f"M{_LEFT} {y:.1f}H{right}", class_="bound"))
        parts.append(text(_LEFT + 6, y - 5, words, class_="quiet"))
    ends = []
    for series in chart.series:
        places = [(x_scale.at(x), y_scale.at(y)) for x, y in series.points]
        if not places:
            continue
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(element("path", d=path, class_=f"line {series.style}"))
        if series.has_marks:
            parts += [_mark(series.style, x, y) for x, y in places]
        ends.append((places[-1], series))
    parts += _names(ends, right + 10, bottom)
    return picture(WIDTH, _HEIGHT, chart.label, parts)


def _names(
    ends: Sequence[tuple[tuple[float, float], Series]], x: float, bottom: float
) -> list[str]:
    """Return the names of lines at their ends, moved where two would overlap."""
    parts = []
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
        path = f"M{end_x + 4:.1f} {end_y:.1f}L{x + 2:.1f} {place:.1f}"
        parts.append(element("path", d=path, class_="lead"))
        parts.append(_mark(series.style, x + 6, place))
        parts.append(text(x + 16, place + 4, series.name, class_="ink"))
    return parts


def _mark(style: str, x: float, y: float) -> str:
    """Return the mark of a line: no two of them have the same form."""
    forms = {
        "none": f"M{x - 4:.1f} {y:.1f}h8",
        "padded": f"M{x - 3:.1f} {y - 3:.1f}l6 6m-6 0l6 -6",
        "static": f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z",
        "dynamic": f"M{x - 4:.1f} {y - 3:.1f}h8l-4 7z",
        "continuous": f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
        "cached": f"M{x - 5:.1f} {y + 3:.1f}h10l-5 -8z",
    }
    if style in forms:
        return element("path", d=forms[style], class_=f"mark {style}")
    return element("circle", cx=x, cy=y, r=4, class_=f"mark {style}")


class Bar(NamedTuple):
    """One bar with the range of its value."""

    name: str
    style: str
    value: float
    low: float
    high: float


def draw_bars(label: str, title: str, bars: Sequence[Bar]) -> str:
    """Return horizontal bars as SVG, each with its value and its range."""
    row, top, left, right = 28.0, 30.0, 110.0, WIDTH - 130.0
    scale = linear([bar.high for bar in bars], left, right)
    bottom = top + row * len(bars)
    parts = horizontal(scale, top - 6, bottom, title, "")
    for place, bar in enumerate(bars):
        y = top + place * row
        end = scale.at(bar.value)
        parts.append(text(left - 8, y + 14, bar.name, text_anchor="end", class_="ink"))
        parts.append(
            element("rect", x=left, y=y + 2, width=end - left, height=18, class_=f"bar {bar.style}")
        )
        low, high = scale.at(bar.low), scale.at(bar.high)
        if bar.high > bar.low:
            mark = f"v10M{high:.1f} {y + 6:.1f}v10"
            path = f"M{low:.1f} {y + 11:.1f}H{high:.1f}M{low:.1f} {y + 6:.1f}{mark}"
            parts.append(element("path", d=path, class_="range"))
        parts.append(text(max(end, high) + 8, y + 15, f"{bar.value:,.1f}", class_="ink"))
    return picture(WIDTH, bottom + _BOTTOM, label, parts)
