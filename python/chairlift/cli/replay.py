"""`chairlift replay`: recorded or drawn traffic through the real scheduler, without a model."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from chairlift.api.config import Batching, checked
from chairlift.api.errors import ConfigError
from chairlift.api.figures import BRIEF, summarize
from chairlift.cli.config_options import config_options
from chairlift.cli.picture import render_terminal
from chairlift.cli.progress import Progress
from chairlift.cli.recipes import RecipeRate, RecipeRequests, RecipeScale, draws_of, load_trace
from chairlift.cli.replay_fleet import FleetRuns, fleet_of
from chairlift.cli.report import Json, Result, SparseResult, report
from chairlift.replay.fleet_options import FleetOptions
from chairlift.replay.options import ReplayOptions
from chairlift.replay.reservation import Reserve

if TYPE_CHECKING:
    from chairlift.replay.format import Header, StepTime
    from chairlift.replay.trace import Trace
    from chairlift.timeline.values import Timeline


@config_options(
    FleetOptions,
    FleetOptions.model_fields,
    into="fleet",
    panel="A fleet",
    defaults=dict.fromkeys(FleetOptions.model_fields),
)
@config_options(
    ReplayOptions, ReplayOptions.model_fields, into="settings", panel="Instead of the trace's"
)
def replay(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="A file of `serve --record` or in Mooncake's format, or a recipe: chat, code, "
            "long, sharegpt-like, anyscale, anyscale-512, anyscale-128, anyscale-32, nano, prefix, "
            "sharegpt-opt, burst.",
        ),
    ] = None,
    *,
    named_trace: Annotated[
        str | None, typer.Option("--trace", help="The same as the argument.")
    ] = None,
    batching: Annotated[
        list[Batching] | None,
        typer.Option(help="Policy; may be repeated to compare. Default: the trace's."),
    ] = None,
    requests: RecipeRequests = None,
    rate: RecipeRate = None,
    seed: Annotated[int | None, typer.Option(help="Recipe, fleet: of all draws.", min=0)] = None,
    scale: RecipeScale = None,
    write: Annotated[
        Path | None, typer.Option(help="Recipe: write its trace to a file, and replay nothing.")
    ] = None,
    draw: Annotated[
        int, typer.Option(help="Draw the first so many steps of each policy.", min=0)
    ] = 0,
    pad_static: Annotated[
        bool,
        typer.Option(
            "--pad-static",
            help="Add a static run that computes every answer to the length of the longest of all.",
        ),
    ] = False,
    as_json: Json = False,
    settings: dict[str, Any],
    fleet: dict[str, Any],
) -> None:
    """Run a trace through the scheduler on a virtual clock, to compare settings.

    Requests arrive at their recorded times and have answers of their recorded lengths. The time of
    a step is a model fitted to the recorded steps; the same trace has the same figures everywhere.
    With --replicas many schedulers run behind a router.
    """
    from chairlift.replay.settings import step_time_of

    given = draws_of(requests=requests, rate_per_s=rate, seed=seed, scale=scale)
    given_fleet = fleet_of(fleet, settings)
    if given_fleet is not None:
        _refuse_beside_replicas(
            {"draw": draw, "write": write, "pad-static": pad_static}
            | {"reserve": settings.get("reserve")}
        )
    name = _one_trace(trace, named_trace)
    loaded = load_trace(
        name, given, to_be_written=write is not None, has_fleet=given_fleet is not None
    )
    if write is not None:
        from chairlift.replay.trace import write_trace

        write_trace(loaded, write)
        typer.echo(f"wrote {len(loaded.requests)} requests to {write}")
        return
    options = checked(ReplayOptions, **settings)
    step_time = step_time_of(loaded.header, loaded.steps, options)
    notes = _faults(loaded)
    drawn: list[Timeline] = []
    policies: list[Batching] | list[None] = batching or [None]
    num_runs = len(policies) + bool(loaded.steps) + pad_static
    progress = Progress("runs", num_runs, as_json=as_json)
    results: Iterator[SparseResult] = chain(
        _padded(loaded, options, step_time) if pad_static else (),
        _results(loaded, policies, options, step_time, notes, drawn, num_drawn=draw),
    )
    figures: list[SparseResult] = []
    if given_fleet is not None:
        runs = FleetRuns(loaded, options, step_time, given_fleet, seed or 0)
        results = chain(_recorded(loaded), runs.results(policies, notes, figures))
    title = f"{name}: {len(loaded.requests)} requests"
    report(
        progress.counting(results),
        title=f"{title}; {_describe(step_time, options)}",
        as_json=as_json,
        omit=BRIEF,
        progress=progress,
    )
    if figures:
        report(figures, title=f"{title}; the fleet", as_json=as_json)
    if not as_json:
        console = Console()
        for timeline in drawn:
            picture = render_terminal(timeline, console.width)
            console.print(f"\n[bold]{timeline.name}[/bold]", picture, sep="\n")
    for note in notes:
        typer.echo(note, err=True)


def _one_trace(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None:
        message = f"--trace: expected one trace, got {argument!r} and {option!r}"
        raise ConfigError(message)
    name = argument if option is None else option
    if name is None:
        message = "--trace: expected a file or a recipe"
        raise ConfigError(message)
    return name


def _refuse_beside_replicas(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value:
            message = f"--{name}: expected none with --replicas"
            raise ConfigError(message)


def _results(
    trace: "Trace",
    policies: list[Batching] | list[None],
    options: ReplayOptions,
    step_time: "StepTime",
    notes: list[str],
    drawn: "list[Timeline]",
    *,
    num_drawn: int,
) -> Iterator[Result]:
    from chairlift.replay.run import replay
    from chairlift.replay.settings import settings_of
    from chairlift.timeline.from_replay import ReplayTimeline

    yield from _recorded(trace)
    for batching in policies:
        settings = settings_of(trace.header, options, batching)
        first = ReplayTimeline(settings, trace.requests, max_steps=num_drawn)
        on_step = first.note if num_drawn else None
        reserve = options.reserve or Reserve.NONE
        replayed = replay(trace, settings, step_time, on_step, reserve)
        if num_drawn:
            drawn.append(first.timeline(only_used_rows=True))
        yield summarize(settings.batching.value, replayed.run, **_sizes(settings))
        if replayed.unanswered:
            reasons = ", ".join(f"{count} {why}" for why, count in replayed.unanswered.items())
            notes.append(f"{settings.batching.value}: not answered: {reasons}")


def _recorded(trace: "Trace") -> Iterator[Result]:
    from chairlift.replay.run import recorded_run

    if trace.steps:
        yield summarize("recorded", recorded_run(trace), **_sizes(trace.header))


def _padded(trace: "Trace", options: ReplayOptions, step_time: "StepTime") -> Iterator[Result]:
    from chairlift.replay.padding import replay_padded
    from chairlift.replay.settings import settings_of

    settings = settings_of(trace.header, options, Batching.STATIC)
    run = replay_padded(trace, settings, step_time).run
    yield summarize("padded", run, **_sizes(settings))


def _faults(trace: "Trace") -> list[str]:
    if not trace.restarts:
        return []
    times = "once" if len(trace.restarts) == 1 else f"{len(trace.restarts)} times"
    return [f"recorded: the engine was lost {times}; the requests it had are of unknown length"]


def _sizes(settings: "Header") -> dict[str, int]:
    return {
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
    }


def _describe(time: "StepTime", options: ReplayOptions) -> str:
    name = options.device_model
    by = "" if name is None else f"model of {name.value}: "
    return (
        f"{by}a step takes {time.fixed_s * 1e3:.3g} ms + {time.per_token_s * 1e6:.3g} µs per "
        f"token + {time.per_context_token_s * 1e9:,.0f} ns per token of context"
    )
