"""The x axis that timelines share: steps, or time."""

from collections.abc import Sequence
from enum import StrEnum
from math import floor, log10

import numpy as np
from numpy.typing import NDArray

from chairlift.timeline.values import Timeline

Floats = NDArray[np.float64]


class Unit(StrEnum):
    """What the x axis counts."""

    STEP = "step"
    TIME = "time"


class Axis:
    """Places of steps on one axis, from 0 to the end of the longest timeline.

    Attributes:
        unit: What it counts.
        length: Its end, in steps or seconds.
    """

    def __init__(self, timelines: Sequence[Timeline], unit: Unit) -> None:
        """Take the longest of some timelines for the length."""
        self.unit = unit
        self.length = max((_length(timeline, unit) for timeline in timelines), default=0.0) or 1.0

    def edges(self, timeline: Timeline) -> tuple[Floats, Floats]:
        """Return where each step begins and ends, two arrays `[N]`, each from 0 to 1."""
        if self.unit is Unit.STEP:
            places = np.arange(timeline.num_steps + 1, dtype=np.float64) / self.length
            return places[:-1], places[1:]
        steps = timeline.steps
        first = steps.start_ns[:1].sum()
        begin = (steps.start_ns - first) * 1e-9 / self.length
        return begin, (steps.end_ns - first) * 1e-9 / self.length

    def marks(self, max_marks: int) -> list[tuple[float, str]]:
        """Return at most so many round places from 0 to 1, with their words."""
        every = _round_up(
            self.length / max(1, max_marks), smallest=1.0 if self.unit is Unit.STEP else 0.0
        )
        values = np.arange(0, self.length * (1 + 1e-9), every)
        return [(float(value / self.length), self._words(float(value))) for value in values]

    def _words(self, value: float) -> str:
        if self.unit is Unit.STEP:
            return f"{value:,.0f}"
        if self.length < 1:
            return f"{value * 1e3:.4g} ms"
        return f"{value:.4g} s"


def _length(timeline: Timeline, unit: Unit) -> float:
    return float(timeline.num_steps) if unit is Unit.STEP else timeline.seconds


def _round_up(value: float, smallest: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is at least `value`."""
    if value <= smallest:
        return smallest
    power = 10.0 ** floor(log10(value))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= value * (1 - 1e-9))
