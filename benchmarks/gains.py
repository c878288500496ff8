"""Published gains of continuous batching, by replay: `python -m benchmarks.gains --into FOLDER`.

The real scheduler on a virtual clock with a model of the device, or arithmetic on drawn lengths:
nothing is measured, nothing is fitted, and the figures are the same on every machine. A line of
JSON for each number, an SVG for each figure of docs/gains.md, and the interactive one, gain.html.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from chairlift.api.choices import Batching
from chairlift.api.figures import Run
from chairlift.bench.report.charts import Bar, Chart, Series, draw_bars, draw_lines
from chairlift.replay.device_models import DeviceName
from chairlift.replay.options import ReplayOptions
from chairlift.replay.padding import replay_padded
from chairlift.replay.recipes import draw_trace
from chairlift.replay.reservation import Reserve
from chairlift.replay.run import replay
from chairlift.replay.settings import settings_of, step_time_of
from chairlift.timeline.line_styles import policy_style
from chairlift.timeline.shapes import Figure
from chairlift.timeline.svg import svg_of

from benchmarks.gain_page import render_gain_page
from benchmarks.slot_use import gain_of, slot_use

OPT: Any = {"device_model": DeviceName.A100_OPT_13B, "max_model_len": 2048}
QUOTA_BYTES = 8_100 * 800 * 2**10
"""KV memory of 8,100 tokens, the quota that text-generation-inference had."""
STYLES = [policy_style(name) for name in ("static", "dynamic", "unchunked", "continuous")]
MAX_SHOWN_S = 0.3
"""Latency per output token up to which a line is drawn: behind it the queue grows for ever."""


def main() -> None:
    """Print the numbers and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True, help="folder for the figures")
    names = [*(make.__name__ for make in FIGURES), PAGE.stem]
    parser.add_argument("--only", choices=names, help="one of the figures")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    for make in FIGURES:
        if options.only in {None, make.__name__}:
            path = options.into / f"{make.__name__.replace('_', '-')}.svg"
            path.write_text(svg_of(make()), encoding="utf-8")
    if options.only in {None, PAGE.stem}:
        (options.into / PAGE).write_text(render_gain_page(), encoding="utf-8")


def say(figure: str, **numbers: float | str) -> None:
    """Print a line of numbers."""
    print(json.dumps({"figure": figure, **numbers}), flush=True)


def run_of(recipe: str, batching: Batching, num_requests: int | None = None, **given: Any) -> Run:  # noqa: ANN401, of whatever type an option has
    """Replay a recipe; `rate_per_s` is the recipe's, every other name one of `ReplayOptions`."""
    trace = draw_trace(recipe, num_requests=num_requests, rate_per_s=given.pop("rate_per_s", None))
    options = ReplayOptions(**given)
    settings = settings_of(trace.header, options, batching)
    step_time = step_time_of(trace.header, [], options)
    return replay(trace, settings, step_time, reserve=options.reserve or Reserve.NONE).run


def waterfall() -> Figure:
    """Anyscale's comparison: prompt and output tokens per second, rule after rule."""
    trace, options = draw_trace("anyscale"), ReplayOptions(**OPT | {"max_model_len": 4096})
    settings = settings_of(trace.header, options, Batching.STATIC)
    continuous = Batching.CONTINUOUS
    runs = [
        (
            "static, padded to the longest of all",
            "1",
            replay_padded(trace, settings, step_time_of(trace.header, [], options)).run,
        ),
        ("static, to the longest of its batch", "4", run_of("anyscale", Batching.STATIC, **OPT)),
        ("continuous, the same 4 rows", "", run_of("anyscale", continuous, max_num_seqs=4, **OPT)),
        (
            "continuous, 8,100 tokens reserved",
            "8",
            run_of(
                "anyscale", continuous, reserve=Reserve.EXACT, kv_cache_memory=QUOTA_BYTES, **OPT
            ),
        ),
        ("continuous, paged", "23", run_of("anyscale", continuous, **OPT)),
    ]
    rates = [(run.num_prompt_tokens + run.num_output_tokens) / run.seconds for *_, run in runs]
    bars = []
    for (name, published, run), rate in zip(runs, rates, strict=True):
        gain, rows = rate / rates[0], run.num_rows / run.num_steps
        say("waterfall", rule=name, tokens_per_s=rate, gain=gain, rows=rows, published=published)
        words = f"{gain:.1f}x" + (f"  (published {published}x)" if published else "")
        bars.append(Bar(name, policy_style(name.split(",")[0]).colour, gain, gain, gain, words))
    return draw_bars("Anyscale's comparison, by a model", "throughput over the first (model)", bars)


def reservations() -> Figure:
    """Latency per output token over the offered rate, by what a request reserves."""
    names = {
        Reserve.MAX: "longest of the model",
        Reserve.POW2: "power of two",
        Reserve.EXACT: "its own length",
        Reserve.NONE: "blocks as it grows",
    }
    series = []
    for (reserve, name), style in zip(names.items(), STYLES, strict=True):
        points = []
        for rate in (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0):
            run = run_of(
                "sharegpt-opt", Batching.CONTINUOUS, 250, rate_per_s=rate, reserve=reserve, **OPT
            )
            per_token = float(np.mean(run.latency_s)) * run.num_requests / run.num_output_tokens
            say(
                "reservations",
                reserve=reserve.value,
                rate_per_s=rate,
                s_per_output_token=per_token,
                rows=run.num_rows / run.num_steps,
                kv_waste=run.kv_waste / run.num_steps,
            )
            if per_token > MAX_SHOWN_S:
                break
            points.append((rate, per_token))
        series.append(Series(name, style, points))
    return draw_lines(
        Chart(
            "Latency per output token over the offered rate, a line per reservation, by a model",
            "requests per second (model)",
            "latency per output token",
            series,
            y_form="s",
            bounds=[("equal latency", 0.1)],
        )
    )


CVS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.2)


def utilization() -> Figure:
    """Slots that a static batch uses, over the variation of the lengths of answers."""
    series = []
    for rows, style in zip((4, 8, 16, 32), STYLES, strict=True):
        points = [(cv, slot_use(cv, rows)) for cv in CVS]
        for cv, use in points:
            say("utilization", rows=rows, cv=cv, slot_use=use)
        series.append(Series(f"{rows} rows", style, points))
    return draw_lines(
        Chart(
            "Slots in use under static batching, over the variation of lengths; computed",
            "variation of the lengths of answers: deviation over mean (computed)",
            "slots in use",
            series,
            y_form="%",
        )
    )


def batch_gain() -> Figure:
    """Throughput of a batch over one row, by how much a row adds to a step."""
    sizes = (1, 2, 4, 8, 16, 32, 64)
    series = []
    for (name, growth), style in zip(
        (("10 % a row", 0.1), ("4.8 % a row", 0.048), ("3.7 % a row", 0.037), ("0 % a row", 0.0)),
        STYLES,
        strict=True,
    ):
        points = [(float(n), n / (1 + growth * (n - 1))) for n in sizes]
        for n, gain in points:
            say("batch_gain", growth=growth, rows=n, gain=gain)
        series.append(Series(name, style, points))
    return draw_lines(
        Chart(
            "Throughput of a batch over that of one row, by what each row adds; computed",
            "rows of the batch (computed)",
            "throughput over one row",
            series,
            is_log=True,
            is_log_x=True,
        )
    )


def gain_by_variation() -> Figure:
    """The gain of 16 continuous rows over static ones, by the variation and the step times."""
    rows, series = 16, []
    for ratio, style in zip((1.0, 1.7, 3.7, 5.8), reversed(STYLES), strict=True):
        points = []
        for cv in CVS:
            points.append((cv, gain_of(cv, rows, ratio)))
            say("gain_by_variation", step_ratio=ratio, cv=cv, gain=points[-1][1])
        series.append(Series(f"t(16) = {ratio:g} t(1)", style, points))
    return draw_lines(
        Chart(
            "Gain of continuous over static batching at 16 rows, by step times; computed",
            "variation of the lengths of answers (computed)",
            "gain (1: none)",
            series,
        )
    )


def kv_waste() -> Figure:
    """Allocated KV slots that hold nothing, over the size of a block, by the real allocator."""
    pages = (1, 4, 16, 64, 256)
    recipes = {"sharegpt-opt": "161 in, 338 out", "chat": "1,200 in, 220 out"}
    series = []
    for (recipe, name), style in zip(recipes.items(), (STYLES[0], STYLES[3]), strict=True):
        points = []
        for page in pages:
            run = run_of(recipe, Batching.CONTINUOUS, 100, block_size=page, prefix_cache=False)
            points.append((float(page), run.kv_waste / run.num_steps))
            say("kv_waste", recipe=recipe, block_size=page, waste=points[-1][1])
        series.append(Series(name, style, points))
    return draw_lines(
        Chart(
            "KV slots that hold nothing, over the tokens of a block, by replay",
            "tokens of a block (replay)",
            "allocated slots that hold nothing",
            series,
            y_form="%",
            is_log_x=True,
            bounds=[("4 %", 0.04)],
        )
    )


PAGE = Path("gain.html")
FIGURES = (utilization, batch_gain, gain_by_variation, waterfall, reservations, kv_waste)

if __name__ == "__main__":
    main()
