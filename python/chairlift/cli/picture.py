"""The request in each row at each step: the classic figure of continuous batching.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (OSDI 2022),
schedule iteration by iteration; this draws the result from step records.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Group, RenderableType
from rich.text import Text

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""One per request, in order of the labels: those of Okabe and Ito, which colour-blind readers tell
apart on a light and on a dark page. From the seventh request on the numbers tell."""


class Work(StrEnum):
    """What a row did in a step."""

    PREFILL = "prefill"
    """Computed a chunk of its prompt, or recomputed what a preemption lost."""
    DECODE = "decode"
    """Computed one token and drew the next."""
    VERIFY = "verify"
    """Computed one token and drafts behind it, and drew as many as were right."""
    FINISH = "finish"
    """Drew its last token."""
    PREEMPTED = "preempted"
    """Lost its row after this step."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of one recorded step."""

    step: int
    row: int
    request_id: str
    work: Work
    sampled: bool
    """Whether a token was drawn."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Consecutive steps of one request in one row."""

    row: int
    request_id: str
    first: int
    """Column of the first step."""
    work: tuple[Work, ...]
    """One per step."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The figure as values: columns are steps that ran, counted from 0."""

    num_rows: int
    num_steps: int
    runs: tuple[RowSpan, ...]
    labels: Mapping[str, str]
    """Labels by request id, in the order of the legend."""
    numbers: Mapping[str, int]
    """Places in the legend by request id, from 0."""

    @property
    def utilization(self) -> float:
        """Return the share of the cells in use, 0 to 1."""
        taken = sum(len(run.work) for run in self.runs)
        return taken / max(1, self.num_rows * self.num_steps)

    def number(self, request_id: str) -> int:
        """Return the place of a request in the legend, from 0."""
        return self.numbers[request_id]

    def colour(self, request_id: str) -> str:
        """Return the colour of a request, `#rrggbb`."""
        return COLOURS[self.number(request_id) % len(COLOURS)]


def draw(
    cells: Iterable[Cell],
    labels: Mapping[str, str],
    num_rows: int,
    *,
    preempted: Collection[tuple[int, str]] = (),
    numbers: Mapping[str, int] | None = None,
) -> Picture:
    """Arrange recorded steps.

    Args:
        cells: In any order. Cells of requests without a label are left out.
        labels: Labels by request id; their order decides order and colours.
        num_rows: Rows of the batch, empty ones included.
        preempted: (step, request id) where a request lost its row before the step.
        numbers: Numbers of the requests, for their colours; default: their places in `labels`.
    """
    taken = sorted((s for s in cells if s.request_id in labels), key=lambda s: (s.step, s.row))
    column = {step: i for i, step in enumerate(sorted({cell.step for cell in taken}))}
    lost = _last_before(taken, preempted)
    open_runs: dict[int, tuple[str, int, list[Work]]] = {}
    runs: list[RowSpan] = []

    def close(row: int) -> None:
        request_id, first, work = open_runs.pop(row)
        runs.append(RowSpan(row, request_id, first, tuple(work)))

    for cell in taken:
        at = column[cell.step]
        if cell.row in open_runs:
            request_id, first, work = open_runs[cell.row]
            if request_id != cell.request_id or first + len(work) != at:
                close(cell.row)
        _, _, work = open_runs.setdefault(cell.row, (cell.request_id, at, []))
        work.append(Work.PREEMPTED if cell in lost else cell.work)
    for row in list(open_runs):
        close(row)
    runs.sort(key=lambda run: (run.row, run.first))
    if numbers is None:
        numbers = {request_id: i for i, request_id in enumerate(labels)}
    return Picture(num_rows, len(column), tuple(runs), labels, numbers)


def _last_before(cells: Sequence[Cell], preempted: Collection[tuple[int, str]]) -> set[Cell]:
    """Return the last cell before each preemption, of cells in the order of their steps.

    Where a request has several rows, one for each answer, those that lost theirs are not in the
    step of the preemption, and were in a step last.
    """
    of_request: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        of_request[cell.request_id].append(cell)
    lost = set()
    for (step, request_id), count in Counter(preempted).items():
        row_cells = of_request[request_id]
        start = bisect_left(row_cells, step, key=lambda cell: cell.step)
        end = bisect_right(row_cells, step, lo=start, key=lambda cell: cell.step)
        going_on = {cell.row for cell in row_cells[start:end]}
        found: set[int] = set()
        while start > 0 and len(found) < count:
            start -= 1
            cell = row_cells[start]
            if cell.row not in going_on | found and cell.work is not Work.FINISH:
                found.add(cell.row)
                lost.add(cell)
    return lost


_GLYPHS = {
    Work.PREFILL: "╱",
    Work.DECODE: "─",
    Work.VERIFY: "═",
    Work.FINISH: "●",
    Work.PREEMPTED: "\N{MULTIPLICATION SIGN}",
}
_ENDS = (Work.FINISH, Work.PREEMPTED)


def render_terminal(picture: Picture, width: int) -> RenderableType:
    """Return the figure as coloured text of at most `width` columns."""
    room = max(10, width - len(f"row {picture.num_rows} "))
    per_column = -(-picture.num_steps // room) if picture.num_steps else 1
    num_columns = -(-picture.num_steps // per_column)
    lines = [terminal_row(picture, row, per_column, num_columns) for row in range(picture.num_rows)]
    return Group(*lines, _terminal_axis(per_column, num_columns), Text(), _key(picture))


def terminal_row(picture: Picture, row: int, per_column: int, num_columns: int) -> Text:
    """Return one row of the figure, after its number."""
    glyphs: list[tuple[str, str]] = [("·", "bright_black")] * num_columns
    for run in (run for run in picture.runs if run.row == row):
        colour = picture.colour(run.request_id)
        for i, work in enumerate(run.work):
            at = (run.first + i) // per_column
            is_dark = work is Work.PREFILL
            style = f"white on {shade(colour, 0.6)}" if is_dark else f"{ink(colour)} on {colour}"
            glyph = _GLYPHS[work]
            # Where several steps share a column, the end of a request must not be hidden.
            if i > 0 and glyphs[at][0] in (_GLYPHS[end] for end in _ENDS):
                continue
            glyphs[at] = (glyph, f"bold {style}" if work in _ENDS else style)
        start = run.first // per_column
        number = str(picture.number(run.request_id) + 1)
        if len(run.work) > per_column and picture.labels[run.request_id]:
            glyphs[start] = (number, f"bold white on {shade(colour, 0.6)}")
    places = len(str(picture.num_rows - 1))
    return Text(f"row {row:<{places}} ", style="bold").append_text(Text.assemble(*glyphs))


def _terminal_axis(per_column: int, num_columns: int) -> Text:
    axis = [" "] * num_columns
    for column in range(0, num_columns, 10):
        mark = str(column * per_column)
        if column + len(mark) <= num_columns:
            axis[column : column + len(mark)] = mark
    return Text("step  " + "".join(axis).rstrip(), style="bright_black")


def _key(picture: Picture) -> Text:
    marks = "╱ prompt   ─ one token   ═ checks drafts   ● last token"
    seen = {work for run in picture.runs for work in run.work}
    marks += "   \N{MULTIPLICATION SIGN} preempted" if Work.PREEMPTED in seen else ""
    return Text(f"{marks}\n{describe_use(picture)}", style="dim")


def describe_use(picture: Picture) -> str:
    """Return one line on how full the rows were."""
    return (
        f"{picture.num_steps} steps, {picture.num_rows} rows, "
        f"{picture.utilization:.0%} of the cells used"
    )


def ink(colour: str) -> str:
    """Return the colour of a number on one of `COLOURS`: white on blue only."""
    return "#ffffff" if colour == COLOURS[0] else "#111111"


def shade(colour: str, factor: float) -> str:
    """Return a darker `#rrggbb`: each part times factor."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part * factor):02x}" for part in parts)
