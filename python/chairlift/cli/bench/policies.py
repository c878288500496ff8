"""`chairlift bench policies`: ways of batching on the same work and the same engine."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chairlift.bench.arrivals import rates_of
from chairlift.bench.policies import USUAL, Grid, policies_of
from chairlift.bench.slo import bounds_of
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.bench.load_options import Seed, Slo
from chairlift.cli.bench.policies_options import (
    Arrival,
    Work,
    offered_of,
    sizes_of,
    source_of,
)
from chairlift.cli.bench.policies_results import (
    print_results,
    title_of,
    write_csv,
    write_json,
)
from chairlift.cli.config_options import ADAPTER_SETTINGS, engine_options
from chairlift.cli.progress import Progress
from chairlift.cli.report import Json, ReportFile

if TYPE_CHECKING:
    from chairlift.bench.comparison import Comparison, Run


@engine_options(
    without=ADAPTER_SETTINGS
    | {"batching", "batch_size", "prefix_cache", "default_max_tokens"}
    | {"queue_timeout_s", "time_limit_s"},
    defaults={"max_num_seqs": 16},
)
def policies(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "demo",
    *,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            help="Some of none, padded, static, dynamic, unchunked, continuous, cached.",
        ),
    ] = ",".join(USUAL),
    requests: Annotated[
        int | None,
        typer.Option(help="How many; default: 96, of a recipe, trace or file its own.", min=1),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 192,
    recipe: Annotated[
        str | None, typer.Option(help="Lengths and arrivals of a recipe of chairlift replay.")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Recipe: divide all lengths by this.", min=1)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Lengths and arrivals of a file of serve --record.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help='Lines of {"prompt": "text"}, "max_tokens": N beside it.')
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            "--rates",
            "--rate",
            metavar="LIST",
            help="Arrivals per second, such as 2,4,8,max; max is all at once. Default: max, of a "
            "recipe or trace its own times.",
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(help="Shape of the gaps' gamma distribution; 1 is Poisson.", min=0.01),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests at a time, instead of a rate.", min=1)
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Rows, such as 1,2,4,8; default: --max-num-seqs."),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Runs of each.", min=1)] = 1,
    slo: Slo = None,
    into: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps finished runs: the same command continues there."),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="File for a table, one line per run.")] = None,
    report: ReportFile = None,
    plots: Annotated[
        Path | None, typer.Option(help="Folder for the figures: SVG, and PNG for light and dark.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
    settings: dict[str, Any],
) -> None:
    """Compare ways of batching on the same seeded work.

    Figures are those of vllm bench serve; docs/benchmark-policies.md defines them.
    """
    from chairlift.bench.comparison import Comparison
    from chairlift.bench.report.figures import figures_of
    from chairlift.bench.report.files import check_report
    from chairlift.bench.report.plots import check_plots, write_plots

    check_model(model)
    if plots is not None:
        check_plots(plots)
    if report is not None:
        check_report(report)
    chosen = Work(requests, max_tokens, seed, recipe, scale, trace, prompts)
    source = source_of(chosen)
    arrival = Arrival(rates_of(rates), burstiness, concurrency)
    grid = Grid(
        policies_of(policies),
        sizes_of(batch_sizes) or [settings.pop("max_num_seqs")],
        arrival.rates_of(source),
        repeat,
    )
    settings.pop("max_num_seqs", None)
    bounds = bounds_of(slo) if slo else []
    comparison = Comparison(model, source, grid, offered_of(arrival), bounds, settings)
    runs = _runs(comparison, into, as_json=as_json)
    if csv is not None:
        write_csv(csv, runs)
    if report is not None:
        _report(report, runs, comparison)
    if plots is not None:
        limits = [(bound.figure, bound.max_s) for bound in bounds]
        write_plots(plots, figures_of(runs, limits))
    if as_json:
        for line in write_json(runs, bounds):
            typer.echo(line)
    else:
        print_results(runs, comparison)


def _report(path: Path, runs: "list[Run]", comparison: "Comparison") -> None:
    from chairlift.bench.medians import medians
    from chairlift.bench.report.answer import policy_sentences
    from chairlift.bench.report.files import command_line, write_report
    from chairlift.bench.report.method import policies_method
    from chairlift.bench.report.page import render

    bounds = comparison.bounds
    page = render(
        runs,
        title=title_of(comparison, medians(runs)),
        sentences=policy_sentences(runs, bounds),
        command=command_line(),
        method=policies_method(runs),
        bounds=[(bound.figure, bound.max_s) for bound in bounds],
    )
    write_report(path, page)


def _runs(comparison: "Comparison", into: Path | None, *, as_json: bool) -> "list[Run]":
    """Measure what is not there yet; with JSON print each run when it has ended."""
    from chairlift.bench.run_file import RunFile
    from chairlift.cli.bench.policies_results import json_line

    with ExitStack() as stack:
        file = stack.enter_context(RunFile(into)) if into is not None else None
        known = file.runs if file is not None else {}
        done = len(comparison.finished(known)) * comparison.source.num_requests
        progress = Progress("requests", comparison.num_requests, as_json=as_json, num_before=done)
        stack.enter_context(progress)
        runs = []
        on_run = file.add if file is not None else lambda _run: None
        for run in comparison.runs(known, progress.tick, on_run):
            if as_json:
                typer.echo(json_line(run))
            runs.append(run)
        return runs
