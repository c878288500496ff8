"""Lanes below the rows: requests that wait, KV blocks in use, the time of each step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from chairlift.timeline.axis import Axis, Floats
from chairlift.timeline.colours import COLOURS
from chairlift.timeline.line_styles import policy_style
from chairlift.timeline.shapes import GRID, INK, QUIET, Area, Line, Shape, Text, text_width
from chairlift.timeline.values import PARTS, Timeline

HEIGHT = 46.0
GAP = 16.0
_RESTING = 1.5
"""Width from which the time between two steps is drawn."""

_PART_COLOURS = dict(
    zip(PARTS, (COLOURS[0], COLOURS[4], COLOURS[2], COLOURS[1], COLOURS[3]), strict=True)
)


class Lane(StrEnum):
    """What a lane shows."""

    WAITING = "waiting"
    KV = "KV used"
    STEP = "step"


ALL_LANES = tuple(Lane)


@dataclass(frozen=True, slots=True)
class LaneBox:
    """Where a lane is."""

    left: float
    top: float
    width: float


def lanes_of(timelines: Sequence[Timeline], lanes: Sequence[Lane]) -> list[Lane]:
    """Return those of some lanes of which at least one timeline knows something."""
    return [lane for lane in lanes if any(len(_values(t, lane)) for t in timelines)]


def lane_shapes(
    timelines: Sequence[Timeline], lane: Lane, axis: Axis, box: LaneBox
) -> Iterator[Shape]:
    """Yield one lane: its name, its highest value, and a line for each timeline.

    Several steps in one pixel show their highest value, so that no peak is hidden.
    """
    values = [_values(timeline, lane) for timeline in timelines]
    top = max((float(v.max()) for v in values if len(v)), default=0.0)
    bottom = box.top + HEIGHT
    yield Line([(box.left, bottom), (box.left + box.width, bottom)], GRID, 1)
    yield Text(box.left - 8, box.top + 12, lane.value, INK, 12, anchor="end")
    yield Text(box.left - 8, box.top + 27, _words(lane, top), QUIET, 11, anchor="end")
    scale = HEIGHT / (top or 1.0)
    for timeline, series in zip(timelines, values, strict=True):
        if not len(series):
            continue
        begin, end = (edge * box.width + box.left for edge in axis.edges(timeline))
        highest = _highest_in_pixel(begin, series)
        if lane is Lane.STEP and len(timelines) == 1 and timeline.steps.parts_ns.shape[1]:
            yield from _stack(timeline, begin[highest], end[highest], highest, bottom, scale)
            continue
        resting = bottom if lane is Lane.STEP else None
        heights = bottom - series[highest] * scale
        points = _outline(begin[highest], end[highest], heights, resting)
        if len(timelines) == 1:
            closed = [(points[0][0], bottom), *points, (points[-1][0], bottom)]
            yield Area(closed, COLOURS[4])
        else:
            style = policy_style(timeline.name)
            yield Line(points, style.colour, 1.5, style.dashes)


def lane_key(
    timelines: Sequence[Timeline], lanes: Sequence[Lane], left: float, y: float
) -> list[Shape]:
    """Return the explanation of the colours of the lanes, in one line."""
    entries: list[tuple[str, str, str]] = []
    if lanes and len(timelines) > 1:
        entries = [(t.name, *policy_style(t.name)[:2]) for t in timelines]
    elif Lane.STEP in lanes and timelines and timelines[0].steps.parts_ns.shape[1]:
        entries = [(part, _PART_COLOURS[part], "") for part in PARTS]
    shapes: list[Shape] = []
    x = left
    for name, colour, dashes in entries:
        thick = 2.0 if len(timelines) > 1 else 8.0
        shapes.append(Line([(x, y - 4), (x + 20, y - 4)], colour, thick, dashes))
        shapes.append(Text(x + 26, y, name, QUIET, 12))
        x += 26 + text_width(name, 12) + 16
    return shapes


def _values(timeline: Timeline, lane: Lane) -> Floats:
    """Return the value of each step, `[N]`, or nothing if it is not known."""
    steps = timeline.steps
    if lane is Lane.WAITING:
        return steps.num_waiting.astype(np.float64)
    if lane is Lane.STEP:
        return steps.duration_ns.astype(np.float64) * 1e-6
    if not timeline.num_blocks or (steps.num_used_blocks < 0).all():
        return np.zeros(0)
    return np.maximum(steps.num_used_blocks, 0) * (100 / timeline.num_blocks)


def _words(lane: Lane, top: float) -> str:
    if lane is Lane.WAITING:
        return f"max {top:,.0f}"
    if lane is Lane.KV:
        return f"max {top:.3g} %"
    # Three digits: 999.5 ms and more would be written with an exponent.
    return f"max {top:.3g} ms" if top < 999.5 else f"max {top * 1e-3:.3g} s"


def _highest_in_pixel(begin: Floats, values: Floats) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """Return the indices of the steps to draw: the highest of those that begin in one pixel."""
    pixels = np.floor(begin)
    # By pixel, and by value within one: the last of each pixel is the highest.
    order = np.lexsort((values, pixels))
    is_last = np.append(np.diff(pixels[order]) > 0, [True])
    chosen: np.ndarray[tuple[int], np.dtype[np.intp]] = order[is_last]
    return chosen


def _outline(
    begin: Floats, end: Floats, y: Floats, resting: float | None
) -> list[tuple[float, float]]:
    """Return the points of a line that is level over each step.

    Args:
        begin: Where the steps begin.
        end: Where they end.
        y: Their heights.
        resting: Height between steps that do not follow one another; None: that of the first.
    """
    points: list[tuple[float, float]] = []
    nexts = [*begin[1:].tolist(), float(end[-1])]
    for left, right, height, following in zip(
        begin.tolist(), end.tolist(), y.tolist(), nexts, strict=True
    ):
        points.append((left, height))
        # A step that stands for others of its pixel reaches to the next one that is drawn.
        if resting is None or following - right < _RESTING:
            points.append((max(right, following), height))
        else:
            points += [(right, height), (right, resting), (following, resting)]
    return points


def _stack(
    timeline: Timeline,
    begin: Floats,
    end: Floats,
    chosen: "np.ndarray[tuple[int], np.dtype[np.intp]]",
    bottom: float,
    scale: float,
) -> Iterator[Shape]:
    """Yield the parts of a step, one above the other; the first part is the lowest."""
    sums = np.cumsum(timeline.steps.parts_ns[chosen] * 1e-6, axis=1)
    for index in reversed(range(len(PARTS))):
        points = _outline(begin, end, bottom - sums[:, index] * scale, bottom)
        closed = [(points[0][0], bottom), *points, (points[-1][0], bottom)]
        yield Area(closed, _PART_COLOURS[PARTS[index]])
