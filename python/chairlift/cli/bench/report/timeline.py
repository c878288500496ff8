"""The request in each row over time, the policies one above another on one axis."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from chairlift.bench.spans import FINISH, LETTERS, PREEMPTED
from chairlift.cli.bench.report.axes import Scale, horizontal
from chairlift.cli.bench.report.svg import element, picture, text
from chairlift.core.step_rows import RowWork
from chairlift.timeline.colours import COLOURS, ink

_WIDTH: Final = 960.0
_LEFT, _RIGHT = 12.0, 948.0
_HEADING: Final = 26.0
_MAX_ROWS: Final = 64
_NUMBER_WIDTH: Final = 16.0
"""Least width of a span with a number in it."""

PATTERNS: Final = (
    "<defs>"
    '<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="2.2" height="5" class="over"/></pattern>'
    '<pattern id="stripe" width="4" height="4" patternUnits="userSpaceOnUse">'
    '<rect width="4" height="1.6" class="over"/></pattern>'
    "</defs>"
)
"""Over the colour of a request: chunks of its prompt are hatched, verified drafts striped."""


def draw_timelines(timelines: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """Return the figure; all policies are drawn until the first of them has no more steps.

    Args:
        timelines: The timelines of a run, by policy.
        titles: Titles of the policies.
    """
    end_s = min(float(timeline["steps"][-1][1]) for timeline in timelines.values())
    scale = Scale(0.0, end_s, _LEFT, _RIGHT)
    num_rows = min(_MAX_ROWS, max(int(t["num_rows"]) for t in timelines.values()))
    row_height = 11.0 if num_rows <= 16 else 7.0 if num_rows <= 32 else 4.0
    parts = [PATTERNS]
    y = 0.0
    for policy, timeline in timelines.items():
        rows = min(_MAX_ROWS, int(timeline["num_rows"]))
        use = _use(timeline, end_s)
        words = f"{titles[policy]}: {use:.0%} of the cells in use"
        if int(timeline["num_rows"]) > rows:
            words += f" (the first {rows} of {timeline['num_rows']} rows)"
        parts.append(text(_LEFT, y + 18, words, class_="ink"))
        y += _HEADING
        parts += [
            element(
                "rect",
                x=_LEFT,
                y=y + row * row_height,
                width=_RIGHT - _LEFT,
                height=row_height - 1.5,
                class_="idle",
            )
            for row in range(rows)
        ]
        for span in timeline["spans"]:
            if span[0] < rows:
                parts += _span(span, timeline["steps"], scale, y, row_height)
        y += rows * row_height + 8
    parts += horizontal(scale, y - 4, y, "seconds", "")
    label = "; ".join(f"{titles[p]} {_use(t, end_s):.0%}" for p, t in timelines.items())
    return picture(_WIDTH, y + 40, f"Rows in use over {end_s:.2g} seconds: {label}", parts)


def _span(
    span: Sequence[Any],
    steps: Sequence[Sequence[float]],
    scale: Scale,
    top: float,
    row_height: float,
) -> Iterator[str]:
    row, first, number, letters = span
    colour = COLOURS[(number - 1) % len(COLOURS)]
    y, height = top + row * row_height, row_height - 1.5
    left, right = scale.at(steps[first][0]), scale.at(steps[first + len(letters) - 1][1])
    if left >= _RIGHT:
        return
    width = min(right, _RIGHT) - left
    yield element("rect", x=left, y=y, width=width, height=height, fill=colour)
    at = first
    for letter, group in groupby(letters):
        count = len(list(group))
        start, end = scale.at(steps[at][0]), min(_RIGHT, scale.at(steps[at + count - 1][1]))
        at += count
        if start >= _RIGHT:
            break
        pattern = {LETTERS[RowWork.PREFILL]: "hatch", LETTERS[RowWork.VERIFY]: "stripe"}.get(letter)
        if pattern is not None:
            box = {"x": start, "y": y, "width": max(end - start, 0.6), "height": height}
            yield element("rect", **box, fill=f"url(#{pattern})")
        elif letter == FINISH:
            radius = min(height / 2 - 0.5, 3.0)
            yield element(
                "circle", cx=max(end - radius, left), cy=y + height / 2, r=radius, class_="end"
            )
        elif letter == PREEMPTED:
            yield element(
                "path",
                d=f"M{end - 5:.1f} {y:.1f}l5 {height:.1f}m-5 0l5 -{height:.1f}",
                class_="cross",
            )
    if width >= _NUMBER_WIDTH and row_height >= 10:
        yield text(
            left + width / 2,
            y + height - 1.2,
            str(number),
            fill=ink(colour),
            font_size=9,
            text_anchor="middle",
        )


def _use(timeline: Mapping[str, Any], end_s: float) -> float:
    """Return the share of the time of all rows in which one computed something."""
    steps = timeline["steps"]
    busy = sum(
        steps[first + i][1] - steps[first + i][0]
        for _, first, _, letters in timeline["spans"]
        for i in range(len(letters))
        if steps[first + i][1] <= end_s
    )
    return float(busy / (end_s * timeline["num_rows"]))
