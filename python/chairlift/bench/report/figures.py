"""The figures of a report, each with a table of the same numbers."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from chairlift.api.figures import format_value
from chairlift.bench.bound import StepCurve
from chairlift.bench.medians import medians
from chairlift.bench.report.answer import is_modelled
from chairlift.bench.report.charts import Bar, Chart, Series, draw_bars, draw_lines
from chairlift.bench.steps import NUM_RECORDS
from chairlift.timeline.axis import Unit
from chairlift.timeline.cut import cut, first_steps
from chairlift.timeline.figure import draw_figure
from chairlift.timeline.line_styles import BOUND, policy_style
from chairlift.timeline.lists import from_lists
from chairlift.timeline.shapes import Figure as Drawing

Run = Mapping[str, Any]
Lines = Sequence[Mapping[str, Any]]

SERVER: Final = "server"
"""In the place of a policy, where only the server knows it."""

TITLES: Final = {
    "none": "no batching",
    "padded": "padded",
    "static": "static",
    "dynamic": "dynamic",
    "unchunked": "unchunked",
    "continuous": "continuous",
    "cached": "cached",
    "recorded": "recorded",
    SERVER: "server",
}
_DRAWN: Final = ("static", "dynamic", "continuous")
"""Policies of the timelines, where there are runs of them."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the page."""

    name: str
    """Name of its files."""
    title: str
    about: str
    drawing: Drawing
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def figures_of(
    runs: Sequence[Run], bounds: Sequence[tuple[str, float]], max_steps: int = NUM_RECORDS
) -> Iterator[Figure]:
    """Yield the figures that the runs allow; titles of what is modelled say so.

    Args:
        runs: At least one.
        bounds: Names of figures and their bounds in seconds.
        max_steps: Steps of the timelines.
    """
    mark = " (model)" if is_modelled(runs) else ""
    for figure in _figures(runs, bounds, max_steps):
        yield replace(figure, title=figure.title + mark)


def _figures(
    runs: Sequence[Run], bounds: Sequence[tuple[str, float]], max_steps: int
) -> Iterator[Figure]:
    # Figures of several policies show the most rows that were measured.
    rows = max((run["rows"] for run in runs if run["rows"] is not None), default=None)
    same = [run for run in runs if run["rows"] == rows or run["policy"] == "none"]
    lines = medians(same)
    rate = "max" if any(line["rate_per_s"] == "max" for line in lines) else lines[-1]["rate_per_s"]
    alike = [line for line in lines if line["rate_per_s"] == rate]
    if runs[0]["policy"] != SERVER:
        yield _throughput(alike, rate)
    flows = [run["flow"] for run in same if run["rate_per_s"] == rate and "flow" in run]
    if flows:
        yield _flow(flows[0])
    drawn = {
        run["policy"]: run for run in same if run["rate_per_s"] == rate and run.get("timeline")
    }
    if drawn:
        yield _timelines(drawn, max_steps)
    offered = [line for line in lines if isinstance(line["rate_per_s"], int | float)]
    if len({line["rate_per_s"] for line in offered}) > 1:
        yield from _sweep(offered, bounds)
    if len({run["rows"] for run in runs if run["policy"] != "none"}) > 1:
        yield _batch_sizes(medians(r for r in runs if r["rate_per_s"] == rate))
    yield from _step_times(runs)
    shown = [drawn[name] for name in ("static", "continuous") if name in drawn]
    if shown:
        yield _memory(shown)


def _throughput(lines: Lines, rate: float | str | None) -> Figure:
    bars = [
        Bar(
            TITLES[line["policy"]],
            policy_style(TITLES[line["policy"]]).colour,
            line["tokens_per_s"],
            line["tokens_per_s_min"],
            line["tokens_per_s_max"],
        )
        for line in lines
    ]
    best = max(bars, key=lambda bar: bar.value)
    label = f"Output tokens per second: {best.name} has the most, {best.value:.0f}"
    repeats = max(line["num_repeats"] for line in lines)
    return Figure(
        "throughput",
        "Throughput",
        f"Output tokens per second, {_offered(rate)}."
        + (f" Medians of {repeats} runs, with their range." if repeats > 1 else ""),
        draw_bars(label, "output tokens per second", bars),
        ("policy", "tokens/s", "least", "most"),
        [(b.name, *(f"{value:,.1f}" for value in (b.value, b.low, b.high))) for b in bars],
    )


def _offered(rate: float | str | None) -> str:
    if rate is None:
        return "requests at the work's own times"
    return "all requests at once" if rate == "max" else f"{rate:g} requests per second offered"


def _flow(points: Sequence[Sequence[float]]) -> Figure:
    names = ("sent", "begun", "ended")
    styles = [policy_style(name) for name in ("dynamic", "static", "continuous")]
    series = [
        Series(name, style, [(point[0], point[i]) for point in points], has_marks=False)
        for i, (name, style) in enumerate(zip(names, styles, strict=True), start=1)
    ]
    quarters = [points[round(i * (len(points) - 1) / 4)] for i in range(5)]
    return Figure(
        "flow",
        "Requests over time",
        "Requests that were sent, had their first token, and had ended. The "
        "distance of two lines along the time is the wait for the first token, and the time of an "
        "answer; their distance in height is how many wait, and how many run.",
        draw_lines(
            Chart("Requests sent, begun and ended over time", "seconds", "requests", series)
        ),
        ("seconds", *names),
        [(f"{point[0]:.3g}", *(f"{n:,.0f}" for n in point[1:])) for point in quarters],
    )


def _timelines(drawn: Mapping[str, Run], max_steps: int) -> Figure:
    names = [name for name in _DRAWN if name in drawn] or list(drawn)[:3]
    kept = {name: replace(from_lists(drawn[name]["timeline"]), name=TITLES[name]) for name in names}
    kept = {name: first_steps(timeline, max_steps) for name, timeline in kept.items()}
    # A policy of which the first steps alone are kept must not look as if it had ended.
    ends_s = [t.seconds for name, t in kept.items() if t.num_steps < drawn[name]["num_steps"]]
    timelines = {name: cut(t, min(ends_s, default=t.seconds)) for name, t in kept.items()}
    part = f"the first {min(ends_s):.2g} s" if ends_s else "from the first step to the last"
    return Figure(
        "rows",
        "The rows over time",
        "A line is a row of the batch, a colour and a number a request. Hatched: its prompt; "
        "plain: a token a step; striped: drafts that are checked; dot: its last token; cross: it "
        "lost its row. What is empty is idle.",
        draw_figure(list(timelines.values()), f"The rows over time, {part}", unit=Unit.TIME),
        ("policy", "steps", "requests", "rows in use of the run"),
        [
            (
                TITLES[name],
                str(timeline.num_steps),
                str(len({span.request for span in timeline.spans})),
                f"{drawn[name]['mean_rows']:.1f} of {drawn[name]['rows']}",
            )
            for name, timeline in timelines.items()
        ],
    )


def _series(lines: Lines, x: str, y: str) -> list[Series]:
    names = dict.fromkeys(line["policy"] for line in lines)
    return [
        Series(
            TITLES[name],
            policy_style(TITLES[name]),
            [(float(e[x]), float(e[y])) for e in lines if e["policy"] == name and e[y] is not None],
        )
        for name in names
    ]


def _sweep(lines: Lines, bounds: Sequence[tuple[str, float]]) -> Iterator[Figure]:
    """Yield the figures over the offered rate."""
    offered = "offered requests per second"
    lines = sorted(lines, key=lambda line: float(line["rate_per_s"]))
    yield _over_rate(
        lines, "tokens_per_s", "Throughput over the offered rate", "output tokens/s", offered
    )
    limits = dict(bounds)
    for key, title in (
        ("ttft_p99_s", "Time to the first token, 99th percentile"),
        ("itl_p99_s", "Inter-token latency, 99th percentile"),
    ):
        limit = limits.get(key)
        yield _over_rate(lines, key, title, "seconds, logarithmic", offered, limit)
    if "goodput_per_s" in lines[0]:
        yield _over_rate(
            lines, "goodput_per_s", "Goodput", "requests/s that keep the bounds", offered
        )
    chart = Chart(
        "Median latency over throughput, a line per policy",
        "output tokens per second",
        "median latency, logarithmic",
        _series(lines, "tokens_per_s", "latency_p50_s"),
        y_form="s",
        is_log=True,
    )
    yield Figure(
        "knee",
        "The knee",
        "Each mark is an offered rate: below the knee more load is more throughput, above it more "
        "load is more waiting.",
        draw_lines(chart),
        ("policy", "offered/s", "tokens/s", "latency p50"),
        [
            (
                TITLES[line["policy"]],
                f"{line['rate_per_s']:g}",
                f"{line['tokens_per_s']:,.1f}",
                format_value("latency_p50_s", line["latency_p50_s"]),
            )
            for line in lines
        ],
    )


def _over_rate(
    lines: Lines, key: str, title: str, y_title: str, x_title: str, limit: float | None = None
) -> Figure:
    is_time = key.endswith("_s") and not key.endswith("_per_s")
    bounds = [] if limit is None else [(f"bound {format_value(key, limit)}", limit)]
    chart = Chart(
        f"{title}, a line per policy",
        x_title,
        y_title,
        _series(lines, "rate_per_s", key),
        y_form="s" if is_time else "",
        is_log=is_time,
        bounds=bounds,
    )
    rates = list(dict.fromkeys(line["rate_per_s"] for line in lines))
    names = list(dict.fromkeys(line["policy"] for line in lines))
    values = {(line["policy"], line["rate_per_s"]): line[key] for line in lines}
    return Figure(
        key.removesuffix("_s").replace("_", "-") + "-over-rate",
        title,
        "",
        draw_lines(chart),
        ("policy", *(f"{rate:g}/s" for rate in rates)),
        [
            (TITLES[name], *(format_value(key, values.get((name, rate))) for rate in rates))
            for name in names
        ],
    )


def _batch_sizes(lines: Lines) -> Figure:
    swept = [line for line in lines if line["policy"] != "none"]
    series = _series(sorted(swept, key=lambda e: int(e["rows"])), "rows", "tokens_per_s")
    chart = Chart(
        "Throughput over the rows of the batch, a line per policy",
        "rows of the batch",
        "output tokens/s",
        series,
    )
    one = {line["policy"]: line["tokens_per_s"] for line in swept if line["rows"] == 1}
    return Figure(
        "batch-sizes",
        "Batch sizes",
        "How the throughput grows with the rows; the next figure says why not as fast.",
        draw_lines(chart),
        ("policy", "rows", "tokens/s", "of one row"),
        [
            (
                TITLES[line["policy"]],
                str(line["rows"]),
                f"{line['tokens_per_s']:,.1f}",
                f"{line['tokens_per_s'] / one[line['policy']]:.2f}x"
                if line["policy"] in one
                else "",
            )
            for line in swept
        ],
    )


def _step_times(runs: Sequence[Run]) -> Iterator[Figure]:
    points = StepCurve(run.get("step_curve", ()) for run in runs).points
    if not points:
        return
    name = "model" if is_modelled(runs) else "measured"
    series = [Series(name, policy_style("continuous"), points, has_marks=len(points) <= 20)]
    environment = runs[0].get("environment", {})
    floor = _floor_s(environment)
    about = (
        "The median time of a step in which so many rows decode: it takes back a part of what full "
    )
    about += "slots gain."
    if floor is not None:
        ends = [(float(points[0][0]), floor), (float(points[-1][0]), floor)]
        series.append(Series("weights read once", BOUND, ends, has_marks=False))
        about += (
            f" To read the weights once from memory takes {format_value('x_s', floor)} at "
            f"{environment['read_bytes_per_s'] / 1e9:.1f} GB/s; what fits into caches is faster."
        )
    chart = Chart(
        "The time of a decode step over its rows",
        "rows of the step",
        "time of a step",
        series,
        y_form="s",
    )
    first = points[0][1]
    yield Figure(
        "step-times",
        "The time of a step",
        about,
        draw_lines(chart),
        ("rows", "time", "of the least", "tokens/s at most"),
        [(str(n), format_value("x_s", s), f"{s / first:.2f}x", f"{n / s:,.0f}") for n, s in points],
    )


def _floor_s(environment: Mapping[str, Any]) -> float | None:
    size, rate = environment.get("active_weight_bytes"), environment.get("read_bytes_per_s")
    return float(size) / float(rate) if size and rate else None


def _memory(runs: Sequence[Run]) -> Figure:
    series = []
    for run in runs:
        name, kv = TITLES[run["policy"]], run["kv"]
        style = policy_style(name)
        written = style._replace(width=1.0, dashes="3 2")
        reserved_points, used_points = [(t, s) for t, _, s in kv], [(t, n) for t, n, _ in kv]
        series.append(Series(f"{name}: reserved", style, reserved_points, has_marks=False))
        series.append(Series(f"{name}: used", written, used_points, has_marks=False))
    chart = Chart("KV slots over time, reserved and used", "seconds", "tokens", series)

    def mean(run: Run, place: int) -> float:
        return statistics.fmean(point[place] for point in run["kv"])

    def cells(run: Run) -> tuple[str, ...]:
        reserved, used = mean(run, 2), mean(run, 1)
        return TITLES[run["policy"]], f"{reserved:,.0f}", f"{used:,.0f}", f"{run['kv_waste']:.1%}"

    return Figure(
        "kv-memory",
        "KV memory, used and reserved",
        "Slots of allocated blocks, and those with keys and values in them. Blocks are allocated "
        "as answers grow, so that little is reserved in vain.",
        draw_lines(chart),
        ("policy", "mean reserved", "mean used", "waste"),
        [cells(run) for run in runs],
    )
