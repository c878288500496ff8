"""Results as JSON lines or as a table."""

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from chairlift.api.figures import format_value
from chairlift.cli.progress import Progress

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, nothing else.")]
ReportFile = Annotated[
    Path | None, typer.Option(help="File for a report: one page of HTML without network.")
]
Result = Mapping[str, str | int | float]
SparseResult = Mapping[str, str | int | float | None]
"""None where a result has no such figure: null in JSON, an empty cell in a table."""


def report(
    results: Iterable[SparseResult],
    *,
    title: str,
    as_json: bool,
    by_row: bool = False,
    omit: Collection[str] = (),
    progress: Progress | None = None,
) -> None:
    """Print results as they come (JSON), or all of them in a table.

    Args:
        results: All with the same keys; names end in their unit: `_s` seconds, `_per_s` rates.
        title: Title of the table.
        as_json: One object per line on stdout.
        by_row: One result per row of the table; else one per column.
        omit: Names that the table leaves out.
        progress: Shown until the results are complete; they count their work in it.
    """
    with progress or nullcontext():
        rows = [_written(result, as_json=as_json) for result in results]
    if not as_json:
        shown = [{k: v for k, v in row.items() if k not in omit} for row in rows]
        _print_table(shown, title, by_row=by_row)


def _written(result: SparseResult, *, as_json: bool) -> SparseResult:
    """Return the result; write it at once as JSON if asked for."""
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
    return result


def _print_table(rows: Sequence[SparseResult], title: str, *, by_row: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if by_row:
        # Without lines between them nine columns fit a terminal of 80.
        table = Table(
            title=title,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for place, key in enumerate(rows[0]):
            table.add_column(key.replace("_", " "), justify="right" if place > 1 else "left")
        for row in rows:
            table.add_row(*(format_value(key, value) for key, value in row.items()))
        console.print(table)
        return
    table = Table(title=title, title_justify="left")
    table.add_column()
    for row in rows:
        table.add_column(str(next(iter(row.values()))), justify="right")
    for key in list(rows[0])[1:]:
        table.add_row(key, *(format_value(key, row[key]) for row in rows))
    console.print(table)
