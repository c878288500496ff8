"""A timeline in the terminal: the classic figure of continuous batching.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (OSDI 2022),
schedule iteration by iteration; this draws the result.
"""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from chairlift.timeline.colours import colour_of, ink, shade
from chairlift.timeline.values import Run, Timeline, Work

_GLYPHS = {Work.PREFILL: "╱", Work.DECODE: "─", Work.VERIFY: "═", Work.FINISH: "●"}
_CROSS = "\N{MULTIPLICATION SIGN}"
_ENDS = (_GLYPHS[Work.FINISH], _CROSS)


def render_terminal(timeline: Timeline, width: int) -> RenderableType:
    """Return the figure as coloured text of at most `width` columns."""
    room = max(10, width - len(f"row {timeline.num_rows} "))
    per_column = max(1, -(-timeline.num_steps // room))
    num_columns = -(-timeline.num_steps // per_column)
    lines = terminal_rows(timeline, timeline.num_rows, per_column)
    return Group(*lines, _terminal_axis(per_column, num_columns), Text(), _key(timeline))


def terminal_rows(
    timeline: Timeline, num_rows: int, per_column: int, *, numbered: bool = True
) -> list[Text]:
    """Return the first rows of the figure, each after its number.

    Args:
        timeline: What is drawn.
        num_rows: How many rows.
        per_column: Steps of a column.
        numbered: Begin each request with its number.
    """
    runs: list[list[Run]] = [[] for _ in range(timeline.num_rows)]
    for run in timeline.runs():
        runs[run.row].append(run)
    return [_row(timeline, row, runs[row], per_column, numbered) for row in range(num_rows)]


def _row(
    timeline: Timeline, row: int, runs: Iterable[Run], per_column: int, numbered: bool
) -> Text:
    num_columns = -(-timeline.num_steps // per_column)
    glyphs: list[tuple[str, str]] = [("·", "bright_black")] * num_columns
    crossed = {(lost.step, lost.request) for lost in timeline.preemptions if lost.row == row}
    for run in runs:
        number = timeline.requests[run.request].number
        colour = colour_of(number)
        dark = f"white on {shade(colour, 0.6)}"
        for span in run.spans:
            is_dark = span.work is Work.PREFILL
            style = dark if is_dark else f"{ink(colour)} on {colour}"
            for step in range(span.first_step, span.end):
                is_lost = (step, run.request) in crossed
                glyph = _CROSS if is_lost else _GLYPHS[span.work]
                is_end = glyph in _ENDS
                # Where several steps share a column, the end of a request must not be hidden.
                if is_end or glyphs[step // per_column][0] not in _ENDS:
                    glyphs[step // per_column] = glyph, f"bold {style}" if is_end else style
        start = run.first_step // per_column
        has_room = run.end - run.first_step > per_column
        if numbered and has_room and glyphs[start][0] not in _ENDS:
            glyphs[start] = str(number), f"bold {dark}"
    places = len(str(timeline.num_rows - 1))
    return Text(f"row {row:<{places}} ", style="bold").append_text(Text.assemble(*glyphs))


def _terminal_axis(per_column: int, num_columns: int) -> Text:
    axis = [" "] * num_columns
    for column in range(0, num_columns, 10):
        mark = str(column * per_column)
        if column + len(mark) <= num_columns:
            axis[column : column + len(mark)] = mark
    return Text("step  " + "".join(axis).rstrip(), style="bright_black")


def _key(timeline: Timeline) -> Text:
    marks = "╱ prompt   ─ one token   ═ checks drafts   ● last token"
    marks += f"   {_CROSS} preempted" if timeline.preemptions else ""
    return Text(f"{marks}\n{timeline.describe()}", style="dim")
