"""Scales and axes of a chart."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from chairlift.timeline.shapes import GRID, QUIET, Line, Shape, Text


class Scale(NamedTuple):
    """Turns values into places."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value."""
        low, high = self.low, self.high
        if self.is_log:
            # A value of 0 has no logarithm, and is drawn at the edge.
            value, low, high = (math.log10(v) for v in (max(value, low), low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values on the scale."""
        if not self.is_log:
            return _round_ticks(self.low, self.high)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1,) if last - first > 3 else (1, 2, 5)
        marks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        return [mark for mark in marks if self.low * 0.999 <= mark <= self.high * 1.001]


def linear(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a scale from 0 to a round number above the values."""
    high = max(values, default=1.0) or 1.0
    step = _step(high)
    return Scale(0.0, math.ceil(high / step - 1e-9) * step, start, end)


def logarithmic(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a logarithmic scale around positive values."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = min(known), max(known)
    # A range of less than a factor of 4 would have hardly a mark.
    if high / low < 4:
        low, high = low / 2, high * 2
    return Scale(low / 1.15, high * 1.15, start, end, is_log=True)


def _round_ticks(low: float, high: float) -> list[float]:
    step = _step(high - low or 1.0)
    return [low + i * step for i in range(round((high - low) / step) + 1)]


def _step(span: float) -> float:
    """Return a round distance that divides a span into four to eight parts."""
    power = 10.0 ** math.floor(math.log10(span / 4))
    return next(f * power for f in (1, 2, 2.5, 5, 10) if span / (f * power) <= 8)


def horizontal(
    scale: Scale, top: float, bottom: float, title: str, form: str = ""
) -> Iterator[Shape]:
    """Yield the lower axis with its marks and title."""
    yield Line([(scale.start, bottom), (scale.end, bottom)], QUIET, 1)
    for mark in scale.ticks():
        x = scale.at(mark)
        yield Line([(x, top), (x, bottom)], GRID, 0.6)
        yield Text(x, bottom + 16, number(mark, form), QUIET, 12, anchor="middle")
    yield Text((scale.start + scale.end) / 2, bottom + 34, title, QUIET, 12, anchor="middle")


def vertical(scale: Scale, left: float, right: float, title: str, form: str) -> Iterator[Shape]:
    """Yield the left axis with its marks; its title stands above."""
    for mark in scale.ticks():
        y = scale.at(mark)
        yield Line([(left, y), (right, y)], GRID, 0.6)
        yield Text(left - 6, y + 4, number(mark, form), QUIET, 12, anchor="end")
    yield Text(left - 48, min(scale.start, scale.end) - 12, title, QUIET, 12)


def number(value: float, form: str) -> str:
    """Return a number of an axis: a count, a share (`%`), or seconds (`s`)."""
    if form == "%":
        return f"{value:.0%}"
    if form != "s":
        return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1 or value == 0:
            return f"{value * factor:.3g} {unit}" if value else "0"
    return f"{value * 1e6:.2g} µs"
