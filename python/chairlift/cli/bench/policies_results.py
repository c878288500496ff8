"""Results of `chairlift bench policies`: a table, lines of JSON, a file of CSV."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from chairlift.api.errors import ConfigError
from chairlift.api.figures import format_value
from chairlift.bench.medians import medians
from chairlift.bench.policies import SCHEMA
from chairlift.bench.report.answer import capacities_of, describe_rate, gains_of
from chairlift.bench.slo import Bound

if TYPE_CHECKING:
    from chairlift.bench.comparison import Comparison, Run

_NOT_IN_LINES: Final = frozenset({"timeline", "kv"})
"""What is in the file of runs and in reports alone: it is long."""

_COLUMNS: Final = {
    "tokens per s": "tokens_per_s",
    "slot use": "slot_utilization",
    "KV waste": "kv_waste",
    "TTFT p50": "ttft_p50_s",
    "TTFT p99": "ttft_p99_s",
    "ITL p50": "itl_p50_s",
    "ITL p99": "itl_p99_s",
    "good req/s": "goodput_per_s",
}
"""Figures of the table by their headings, which break where a column is narrow."""


def json_line(run: "Run") -> str:
    """Return a run as a line of JSON."""
    return json.dumps({name: v for name, v in run.items() if name not in _NOT_IN_LINES})


def write_json(runs: "Sequence[Run]", bounds: Sequence[Bound]) -> Iterator[str]:
    """Yield what follows the runs: gains with their bounds, and the capacity of each policy."""
    for gain in gains_of(runs):
        yield json.dumps(
            {
                "schema": SCHEMA,
                "kind": "gain",
                **gain._asdict(),
                "predicted": gain.predicted,
                "is_claim": gain.is_claim,
                "sentence": gain.sentence(),
            }
        )
    for policy, rows, rate, is_exceeded in capacities_of(runs, bounds):
        yield json.dumps(
            {
                "schema": SCHEMA,
                "kind": "capacity",
                "policy": policy,
                "rows": rows,
                "rate_per_s": rate,
                "is_exceeded": is_exceeded,
            }
        )


def print_results(runs: "Sequence[Run]", comparison: "Comparison") -> None:
    """Print a table of medians, the gain in a sentence, and the capacities."""
    lines = medians(runs)
    _print_table(title_of(comparison, lines), lines)
    for gain in gains_of(runs):
        typer.echo(f"\n{gain.sentence()}")
    for policy, num_rows, rate, is_exceeded in capacities_of(runs, comparison.bounds):
        if rate == 0:
            typer.echo(f"capacity of {policy} at {num_rows} rows: below every rate")
            continue
        beyond = "" if is_exceeded else " or more: no rate exceeded the bounds"
        typer.echo(f"capacity of {policy} at {num_rows} rows: {rate:g} requests/s{beyond}")


def _print_table(title: str, lines: Sequence[Mapping[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("policy", no_wrap=True)
    # Without batching there is one row, whatever the others have.
    batched = [line for line in lines if line["policy"] != "none"]
    several = {name for name in ("rows", "rate_per_s") if len({line[name] for line in batched}) > 1}
    for name in ("rows", "rate_per_s"):
        if name in several:
            table.add_column(name.removesuffix("_per_s"), justify="right", no_wrap=True)
    columns = {heading: key for heading, key in _COLUMNS.items() if key in lines[0]}
    if several and "good req/s" in columns:
        # All of them would not fit a terminal of 80 columns.
        del columns["KV waste"]
    for heading in columns:
        table.add_column(heading, justify="right")
    for line in lines:
        cells = [line["policy"]]
        cells += [str(line["rows"])] if "rows" in several else []
        cells += [_short_rate(line["rate_per_s"])] if "rate_per_s" in several else []
        table.add_row(*cells, *(format_value(key, line[key]) for key in columns.values()))
    Console().print(table)


def _short_rate(rate: float | str | None) -> str:
    return rate if isinstance(rate, str) else "own" if rate is None else f"{rate:g}"


def title_of(comparison: "Comparison", lines: Sequence[Mapping[str, Any]]) -> str:
    """Return one line on the work."""
    rates = {line["rate_per_s"] for line in lines}
    parts = [f"{comparison.model}: {comparison.source.num_requests} requests"]
    parts.append(comparison.source.title)
    if comparison.offered.concurrency is not None:
        parts.append(f"{comparison.offered.concurrency} at a time")
    elif len(rates) == 1:
        parts.append(describe_rate(rates.pop()))
    sizes = comparison.grid.rows
    parts += [f"{sizes[0]} rows"] if len(sizes) == 1 else []
    parts += [f"medians of {comparison.grid.repeat}"] if comparison.grid.repeat > 1 else []
    return ", ".join(parts)


def write_csv(path: Path, runs: "Sequence[Run]") -> None:
    """Write the figures of each run.

    Raises:
        ConfigError: The file cannot be written.
    """
    lines = [
        {k: v for k, v in run.items() if v is None or isinstance(v, str | int | float)}
        for run in runs
    ]
    names = list(dict.fromkeys(name for line in lines for name in line))
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(lines)
    except OSError as error:
        message = f"csv: cannot write {path}: {error.strerror}"
        raise ConfigError(message) from None
