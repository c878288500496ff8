"""`chairlift replay`: recorded or drawn traffic through the real scheduler, without a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from chairlift.cli.replay_fleet import OF_ROLES_ALONE, FleetRuns, fleet_of
from chairlift.cli.report import Json, ReportFile, Result, SparseResult
from chairlift.cli.report import report as print_results
from chairlift.replay.fleet_options import FleetOptions
from chairlift.replay.options import ReplayOptions
from chairlift.replay.reservation import Reserve

if TYPE_CHECKING:
    from chairlift.api.figures import Run
    from chairlift.bench.replay_steps import ReplaySteps
    from chairlift.replay.format import Header, StepTime
    from chairlift.replay.run import OnStep, ReplayedStep
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
    report: ReportFile = None,
    as_json: Json = False,
    settings: dict[str, Any],
    fleet: dict[str, Any],
) -> None:
    """Run a trace through the scheduler on a virtual clock, to compare settings.

    Requests arrive at their recorded times and have answers of their recorded lengths. The time of
    a step is a model fitted to the recorded steps; the same trace has the same figures everywhere.
    With --replicas many schedulers run behind a router; with --roles some compute prompts only.
    """
    from chairlift.bench.report.files import check_report
    from chairlift.replay.settings import step_time_of

    if report is not None:
        check_report(report)
    given = draws_of(requests=requests, rate_per_s=rate, seed=seed, scale=scale)
    given_fleet = fleet_of(fleet, settings)
    if given_fleet is not None:
        _refuse_beside_replicas(
            {"draw": draw, "write": write, "pad-static": pad_static, "report": report}
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
    replays = _Replays(loaded, options, step_time, draw, report is not None, notes=_faults(loaded))
    policies: list[Batching] | list[None] = batching or [None]
    num_runs = len(policies) + bool(loaded.steps) + pad_static
    progress = Progress("runs", num_runs, as_json=as_json)
    results: Iterator[SparseResult] = chain(
        replays.padded() if pad_static else (), replays.policies(policies)
    )
    figures: list[SparseResult] = []
    if given_fleet is not None:
        runs = FleetRuns(loaded, options, step_time, given_fleet, seed or 0)
        results = chain(replays.recorded(), runs.results(policies, replays.notes, figures))
    title = f"{name}: {len(loaded.requests)} requests"
    print_results(
        progress.counting(results),
        title=f"{title}; {_describe(step_time, options)}",
        as_json=as_json,
        omit=BRIEF,
        progress=progress,
    )
    if given_fleet is not None:
        omit = () if given_fleet.roles else OF_ROLES_ALONE
        print_results(figures, title=f"{title}; the fleet", as_json=as_json, omit=omit)
    if not as_json:
        console = Console()
        for timeline in replays.drawn:
            picture = render_terminal(timeline, console.width)
            console.print(f"\n[bold]{timeline.name}[/bold]", picture, sep="\n")
    if report is not None:
        replays.write_report(report, title)
    for note in replays.notes:
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


@dataclass(slots=True)
class _Replays:
    """The runs of a command, beside their figures: what is drawn, and what a report shows."""

    trace: "Trace"
    options: ReplayOptions
    step_time: "StepTime"
    num_drawn: int
    """Steps of each policy that the terminal shows."""
    has_report: bool
    drawn: "list[Timeline]" = field(default_factory=list)
    reported: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def padded(self) -> Iterator[Result]:
        """Yield the figures of static batching with padded answers."""
        from chairlift.replay.padding import replay_padded

        settings = self._settings(Batching.STATIC)
        steps = self._steps(settings)
        on_step = steps.note if steps else None
        run = replay_padded(self.trace, settings, self.step_time, on_step).run
        yield self._figures("padded", run, settings, steps)

    def policies(self, policies: list[Batching] | list[None]) -> Iterator[Result]:
        """Yield the figures of the recording, if there are any, and of each policy."""
        from chairlift.replay.run import replay
        from chairlift.timeline.from_replay import ReplayTimeline

        yield from self.recorded()
        for batching in policies:
            settings = self._settings(batching)
            first = ReplayTimeline(settings, self.trace.requests, max_steps=self.num_drawn)
            steps = self._steps(settings)
            noting = [first.note] if self.num_drawn else []
            noting += [steps.note] if steps else []
            reserve = self.options.reserve or Reserve.NONE
            replayed = replay(self.trace, settings, self.step_time, _each(noting), reserve)
            if self.num_drawn:
                self.drawn.append(first.timeline(only_used_rows=True))
            yield self._figures(settings.batching.value, replayed.run, settings, steps)
            if replayed.unanswered:
                reasons = ", ".join(f"{count} {why}" for why, count in replayed.unanswered.items())
                self.notes.append(f"{settings.batching.value}: not answered: {reasons}")

    def recorded(self) -> Iterator[Result]:
        """Yield the figures of the recording, if there are any."""
        from chairlift.replay.run import recorded_run

        if self.trace.steps:
            yield self._figures("recorded", recorded_run(self.trace), self.trace.header, None)

    def _settings(self, batching: Batching | None) -> "Header":
        from chairlift.replay.settings import settings_of

        return settings_of(self.trace.header, self.options, batching)

    def _steps(self, settings: "Header") -> "ReplaySteps | None":
        from chairlift.bench.replay_steps import ReplaySteps

        return ReplaySteps(settings, self.trace.requests) if self.has_report else None

    def _figures(
        self, name: str, run: "Run", settings: "Header", steps: "ReplaySteps | None"
    ) -> Result:
        figures = summarize(
            name,
            run,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
        )
        if self.has_report:
            from chairlift.bench.replay_steps import reported

            at_once = not any(request.arrival for request in self.trace.requests)
            self.reported.append(reported(figures, settings, "max" if at_once else None, steps))
        return figures

    def write_report(self, path: Path, title: str) -> None:
        """Write the page of the runs.

        Raises:
            ConfigError: The file cannot be written.
        """
        from chairlift.bench.report.answer import policy_sentences
        from chairlift.bench.report.files import command_line, write_report
        from chairlift.bench.report.method import replay_method
        from chairlift.bench.report.page import render

        settings = self._settings(None).model_dump(
            mode="json", exclude={"event", "version", "step_time"}
        )
        page = render(
            self.reported,
            title=title,
            sentences=[*policy_sentences(self.reported), *self.notes],
            command=command_line(),
            method=replay_method(settings, _describe(self.step_time, self.options)),
        )
        write_report(path, page)


def _each(noting: "Sequence[OnStep]") -> "OnStep | None":
    def note(step: "ReplayedStep") -> None:
        for take in noting:
            take(step)

    return note if noting else None


def _faults(trace: "Trace") -> list[str]:
    if not trace.restarts:
        return []
    times = "once" if len(trace.restarts) == 1 else f"{len(trace.restarts)} times"
    return [f"recorded: the engine was lost {times}; the requests it had are of unknown length"]


def _describe(time: "StepTime", options: ReplayOptions) -> str:
    name = options.device_model
    by = "" if name is None else f"model of {name.value}: "
    return (
        f"{by}a step takes {time.fixed_s * 1e3:.3g} ms + {time.per_token_s * 1e6:.3g} µs per "
        f"token + {time.per_context_token_s * 1e9:,.0f} ns per token of context"
    )
