"""`chairlift timeline`: which request had which row at which step, as a file to take away."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chairlift.api.config import Batching, checked
from chairlift.api.errors import ChairliftError, ConfigError
from chairlift.cli.config_options import config_options
from chairlift.cli.recipes import RecipeRate, RecipeRequests, RecipeScale, draws_of, load_trace
from chairlift.cli.remote import DEFAULT_TARGET, Target, TlsCa, TlsCert, TlsKey
from chairlift.cli.values import duration
from chairlift.replay.options import ReplayOptions
from chairlift.replay.reservation import Reserve
from chairlift.timeline.axis import Unit

if TYPE_CHECKING:
    from chairlift.replay.trace import Trace
    from chairlift.timeline.values import Timeline

POLICIES = (Batching.STATIC, Batching.DYNAMIC, Batching.CONTINUOUS)


@config_options(ReplayOptions, ReplayOptions.model_fields, into="settings", panel="Of a replay")
def timeline(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(help="A file of `serve --record`, or a recipe of `chairlift replay`."),
    ] = None,
    *,
    out: Annotated[
        Path, typer.Option(help="File to write: .html, .svg, .png or .pftrace (Perfetto).")
    ],
    x: Annotated[Unit, typer.Option(help="What the x axis counts.")] = Unit.STEP,
    title: Annotated[
        str | None, typer.Option(help="Above the figure; default: its source.")
    ] = None,
    animate: Annotated[
        bool, typer.Option("--animate", help="Let the rows of an .svg run; without lanes.")
    ] = False,
    batching: Annotated[
        list[Batching] | None,
        typer.Option(
            help="Replay under this policy; may be repeated. Default: a recorded run as it was, "
            "anything else under static, dynamic and continuous batching."
        ),
    ] = None,
    requests: RecipeRequests = None,
    rate: RecipeRate = None,
    seed: Annotated[int | None, typer.Option(help="Recipe: of all draws.", min=0)] = None,
    scale: RecipeScale = None,
    live: Annotated[
        str | None, duration("--live", help="Watch the server at --target for so long.")
    ] = None,
    target: Target = DEFAULT_TARGET,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    settings: dict[str, Any],
) -> None:
    """Draw the work of each row: of a recorded run, of policies beside one another, of a server.

    A recipe and a file of requests are run through the scheduler on a virtual clock, without a
    model; `chairlift replay` has their figures.
    """
    write = _writer(out, is_animated=animate)
    drawn = draws_of(requests=requests, rate_per_s=rate, seed=seed, scale=scale)
    if live is not None:
        if source is not None or batching or drawn or settings:
            message = "--live watches a server: it takes no SOURCE and no option of a replay"
            raise ConfigError(message)
        tls = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
        timelines, from_source = _watched(target, float(live), tls)
    elif source is None:
        message = "expected a SOURCE (a trace or a recipe) or --live"
        raise ConfigError(message)
    else:
        _refuse_without_live(context)
        trace = load_trace(source, drawn, to_be_written=False)
        timelines = _replayed(trace, batching, checked(ReplayOptions, **settings))
        from_source = f"{source}: {len(trace.requests):,} requests"
    content = write(timelines, title or from_source, x)
    try:
        out.write_bytes(content)
    except OSError as error:
        message = f"cannot write {out}: {(error.strerror or 'unknown error').lower()}"
        raise ChairliftError(message) from None
    for one in timelines:
        typer.echo(f"{one.name}: {one.describe()}")
    typer.echo(f"wrote {out}")


def _refuse_without_live(context: typer.Context) -> None:
    """Refuse options of a server on the command line; their variables may be set for others."""
    for name in ("target", "tls_ca", "tls_cert", "tls_key"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            message = f"--{name.replace('_', '-')}: expected --live beside it"
            raise ConfigError(message)


Write = Callable[["Sequence[Timeline]", str, Unit], bytes]


def _writer(out: Path, *, is_animated: bool) -> Write:
    """Return what makes the file, chosen by its ending."""
    if is_animated:
        if out.suffix != ".svg":
            message = f"--animate: expected a file that ends with .svg, got {out}"
            raise ConfigError(message)
        return _moving_svg
    if out.suffix not in _ENDINGS:
        message = f"--out: expected a file that ends with {', '.join(_ENDINGS)}, got {out}"
        raise ConfigError(message)
    return _ENDINGS[out.suffix]


def _svg(timelines: "Sequence[Timeline]", title: str, unit: Unit) -> bytes:
    from chairlift.timeline.svg import render_svg

    return render_svg(timelines, title, unit=unit).encode()


def _moving_svg(timelines: "Sequence[Timeline]", title: str, unit: Unit) -> bytes:
    from chairlift.timeline.svg import render_svg

    return render_svg(timelines, title, unit=unit, lanes=(), animated=True).encode()


def _png(timelines: "Sequence[Timeline]", title: str, unit: Unit) -> bytes:
    from chairlift.timeline.figure import draw_figure
    from chairlift.timeline.png import render_png

    return render_png(draw_figure(timelines, title, unit=unit))


def _html(timelines: "Sequence[Timeline]", title: str, unit: Unit) -> bytes:
    from chairlift.timeline.html import render_html

    return render_html(timelines, title, unit=unit).encode()


def _perfetto(timelines: "Sequence[Timeline]", _title: str, _unit: Unit) -> bytes:
    from chairlift.timeline.perfetto import render_perfetto

    return render_perfetto(timelines)


_ENDINGS: dict[str, Write] = {
    ".html": _html,
    ".svg": _svg,
    ".png": _png,
    ".pftrace": _perfetto,
}


def _watched(
    target: str, seconds: float, tls: dict[str, str | None]
) -> "tuple[list[Timeline], str]":
    from chairlift.cli.watch import watch_timeline

    watched = watch_timeline(target, seconds, tls)
    return [watched], f"{watched.name} at {target}"


def _replayed(
    trace: "Trace", batching: list[Batching] | None, options: ReplayOptions
) -> "list[Timeline]":
    """Return the recorded run, or one timeline per policy."""
    from chairlift.replay.run import replay
    from chairlift.replay.settings import settings_of, step_time_of
    from chairlift.timeline.from_replay import ReplayTimeline
    from chairlift.timeline.from_trace import recorded_timeline

    if trace.steps and not batching:
        if options.model_fields_set:
            message = "settings of a replay need --batching: a recorded run is drawn as it was"
            raise ConfigError(message)
        return [recorded_timeline(trace)]
    step_time = step_time_of(trace.header, trace.steps, options)
    timelines = []
    for policy in batching or POLICIES:
        settings = settings_of(trace.header, options, policy)
        steps = ReplayTimeline(settings, trace.requests)
        replay(trace, settings, step_time, steps.note, options.reserve or Reserve.NONE)
        timelines.append(steps.timeline())
    return timelines
