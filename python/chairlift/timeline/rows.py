"""The rows of a timeline as shapes: cells where steps are wide, merged ones where they are not."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from chairlift.timeline.axis import Axis, Floats
from chairlift.timeline.colours import colour_of, ink, shade
from chairlift.timeline.shapes import (
    GRID,
    IDLE,
    INK,
    PAGE,
    QUIET,
    Box,
    Boxes,
    Clip,
    Crosses,
    Dots,
    Group,
    Line,
    Shape,
    Text,
    text_width,
)
from chairlift.timeline.values import Run, Span, Timeline, Work

MAX_ROWS = 64
"""Rows that a figure draws."""

_CELL = 5.0
"""Least width at which the steps of a span are drawn one by one."""
_NARROW = 1.5
"""Spans that are narrower are merged: a column shows what took most of it."""
_SHADE = 0.72
_PATTERNS = {Work.PREFILL: "hatch", Work.VERIFY: "stripe"}


class RowsBox:
    """Where the rows of a timeline are."""

    def __init__(self, timeline: Timeline, left: float, top: float, width: float) -> None:
        """Place the rows below `top`, between `left` and `left + width`."""
        self.left, self.top, self.width = left, top, width
        self.num_rows = min(MAX_ROWS, timeline.num_rows)
        self.row_height, self.gap = _row_sizes(self.num_rows)

    @property
    def bottom(self) -> float:
        """Return where the last row ends."""
        return self.y(self.num_rows) - self.gap

    def y(self, row: int) -> float:
        """Return the upper edge of a row."""
        return self.top + row * (self.row_height + self.gap)


def _row_sizes(num_rows: int) -> tuple[float, float]:
    """Return the height of a row and the gap below it."""
    return next(
        (height, gap)
        for max_rows, height, gap in ((8, 30, 5), (16, 19, 3), (32, 12, 2), (MAX_ROWS, 8, 1))
        if num_rows <= max_rows
    )


def row_shapes(timeline: Timeline, axis: Axis, box: RowsBox) -> Iterator[Shape]:
    """Yield the rows: their names, idle space, and the runs of requests."""
    every = 1 if box.row_height >= 12 else 8
    for row in range(box.num_rows):
        y, height = box.y(row), box.row_height
        yield Boxes([Box(box.left, y, _end(timeline, axis) * box.width, height)], IDLE)
        if row % every == 0:
            name = f"row {row}" if every == 1 else f"{row}"
            size = min(13, max(9, int(height)))
            yield Text(box.left - 8, y + height / 2 + size / 3, name, QUIET, size, anchor="end")
    begin, end = axis.edges(timeline)
    painter = _Painter(box, begin * box.width + box.left, end * box.width + box.left)
    yield Clip(
        Box(box.left, box.top, box.width, box.bottom - box.top),
        [
            *(_run(timeline, run, painter) for run in timeline.runs() if run.row < box.num_rows),
            # Behind all bars: a short step must not hide the end before it.
            *_marks(timeline, painter),
        ],
    )
    for gap in timeline.gaps:
        x = float(painter.begin[min(gap.before_step, len(begin) - 1)]) if len(begin) else box.left
        points = [(x, box.top), (x, box.bottom)]
        yield Group(
            f"{gap.num_steps:,} steps before this one were not recorded",
            [Line(points, PAGE, 4), Line(points, INK, 1.5, "2 2")],
        )


def _end(timeline: Timeline, axis: Axis) -> float:
    _, end = axis.edges(timeline)
    return float(end[-1]) if len(end) else 0.0


class _Painter:
    """Boxes of spans, by their places on the figure."""

    def __init__(self, box: RowsBox, begin: Floats, end: Floats) -> None:
        self.box, self.begin, self.end = box, begin, end

    def centre(self, step: int, row: int, radius: float) -> tuple[float, float]:
        """Return the place of a mark: in its step, or before the end of one that is narrower."""
        end = float(self.end[step])
        x = min((float(self.begin[step]) + end) / 2, end - radius)
        return x, self.box.y(row) + self.box.row_height / 2

    def width(self, step: int) -> float:
        return float(self.end[step] - self.begin[step])

    def boxes(self, spans: Sequence[Span]) -> dict[Work, list[Box]]:
        """Return the boxes of a run by kind of work; narrow spans share a column."""
        found: dict[Work, list[Box]] = defaultdict(list)
        narrow: dict[Work, float] = defaultdict(float)
        left = right = 0.0
        for span in spans:
            start, stop = float(self.begin[span.first_step]), float(self.end[span.end - 1])
            is_narrow = stop - start < _NARROW
            if narrow and (not is_narrow or stop - left > _NARROW):
                self._add(found, max(narrow, key=lambda work: narrow[work]), left, right)
                narrow.clear()
            if is_narrow:
                left = left if narrow else start
                right = stop
                narrow[span.work] += stop - start
            else:
                self._add_span(found, span, start, stop)
        if narrow:
            self._add(found, max(narrow, key=lambda work: narrow[work]), left, right)
        y, height = self.box.y(spans[0].row), self.box.row_height
        return {work: [Box(b.x, y, b.width, height) for b in bs] for work, bs in found.items()}

    def _add_span(
        self, found: dict[Work, list[Box]], span: Span, start: float, stop: float
    ) -> None:
        if (stop - start) / span.num_steps < _CELL:
            self._add(found, span.work, start, stop)
            return
        # One box per step, so that steps can be counted.
        for step in range(span.first_step, span.end):
            x, width = float(self.begin[step]), self.width(step)
            found[span.work].append(Box(x, 0, width - min(1.5, width / 8), 0))

    @staticmethod
    def _add(found: dict[Work, list[Box]], work: Work, start: float, stop: float) -> None:
        if found[work] and abs(found[work][-1].x + found[work][-1].width - start) < 1e-6:
            start = found[work].pop().x
        found[work].append(Box(start, 0, stop - start, 0))


def _run(timeline: Timeline, run: Run, painter: _Painter) -> Group:
    request = timeline.requests[run.request]
    colour = colour_of(request.number)
    shapes: list[Shape] = []
    for work, boxes in sorted(painter.boxes(run.spans).items()):
        paint = shade(colour, _SHADE) if work is Work.PREFILL else colour
        shapes.append(Boxes(boxes, paint, _PATTERNS.get(work, "")))
    shapes += _number(str(request.number), colour, run, painter)
    label = request.label or f"request {request.number}"
    num_tokens = sum(span.num_tokens for span in run.spans)
    words = f"{label}: row {run.row}, steps {run.first_step} to {run.end - 1}"
    return Group(f"{words}, {num_tokens:,} tokens computed", shapes)


def _marks(timeline: Timeline, painter: _Painter) -> Iterator[Shape]:
    """Yield the last tokens and the preemptions, none of them merged with another."""
    box = painter.box
    max_radius = max(1.5, box.row_height * 0.17)
    dots: dict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    for span in timeline.spans:
        if span.work is Work.FINISH and span.row < box.num_rows:
            radius = min(max_radius, max(2.0, painter.width(span.first_step) / 2 - 1))
            paint = ink(colour_of(timeline.requests[span.request].number))
            place = painter.centre(span.first_step, span.row, radius + 0.5)
            dots[paint, round(radius, 1)].append(place)
    for (paint, radius), centres in dots.items():
        yield Dots(centres, radius, paint)
    lost = [p for p in timeline.preemptions if p.row < box.num_rows]
    for preemption in lost:
        radius = min(max_radius, max(2.5, painter.width(preemption.step) / 2 - 1.5))
        place = painter.centre(preemption.step, preemption.row, radius + 1)
        yield Crosses([place], radius, "#111111")


def _number(number: str, colour: str, run: Run, painter: _Painter) -> list[Shape]:
    """Return the number of a request in the middle of its run, if it has room there."""
    box = painter.box
    size = int(min(14, box.row_height - 1))
    width = text_width(number, size) + 6
    start, stop = float(painter.begin[run.first_step]), float(painter.end[run.end - 1])
    # The last step has its mark.
    if size < 9 or stop - start < width + 2 * painter.width(run.end - 1) + 8:
        return []
    middle, y = (start + stop) / 2, box.y(run.row)
    chip = Box(middle - width / 2, y, width, box.row_height)
    return [
        # The box is as high as the bar, so that no gap between cells crosses the number.
        Boxes([chip], colour),
        Text(
            middle,
            y + box.row_height / 2 + size * 0.36,
            number,
            ink(colour),
            size,
            is_bold=True,
            anchor="middle",
        ),
    ]


def key_shapes(timelines: Sequence[Timeline], left: float, y: float) -> Iterator[Shape]:
    """Yield the explanation of the marks, in one line."""
    works = {span.work for timeline in timelines for span in timeline.spans}
    colour, x, height = colour_of(2), left, 12.0
    words = {Work.PREFILL: "prompt", Work.DECODE: "one token", Work.VERIFY: "checks drafts"}
    for work, name in words.items():
        if work is Work.VERIFY and work not in works:
            continue
        paint = shade(colour, _SHADE) if work is Work.PREFILL else colour
        yield Boxes([Box(x, y - 10, 18, height)], paint, _PATTERNS.get(work, ""))
        yield Text(x + 24, y, name, QUIET, 12)
        x += 24 + text_width(name, 12) + 16
    yield Boxes([Box(x, y - 10, 18, height)], colour)
    yield Dots([(x + 9, y - 4)], 3, ink(colour))
    yield Text(x + 24, y, "last token", QUIET, 12)
    x += 24 + text_width("last token", 12) + 16
    if any(timeline.preemptions for timeline in timelines):
        yield Boxes([Box(x, y - 10, 18, height)], colour)
        yield Crosses([(x + 9, y - 4)], 3.5, "#111111")
        yield Text(x + 24, y, "preempted", QUIET, 12)
        x += 24 + text_width("preempted", 12) + 16
    yield Boxes([Box(x, y - 10, 18, height)], GRID)
    yield Boxes([Box(x + 1, y - 9, 16, height - 2)], IDLE)
    yield Text(x + 24, y, "idle", QUIET, 12)
