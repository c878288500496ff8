"""`chairlift bench policies`: the three batching policies on the same work and the same engine."""

import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chairlift.cli.bench.report import Json, Result, report
from chairlift.cli.bench.workload import chat_workload
from chairlift.cli.config_options import engine_options

if TYPE_CHECKING:
    from chairlift.cli.bench.drive import Course, Trace

POLICIES = ("static", "dynamic", "continuous")


@engine_options(
    without=frozenset(
        {"batching", "prefix_cache", "default_max_tokens", "queue_timeout_s", "time_limit_s"}
    ),
    defaults={"max_num_seqs": 16},
)
def policies(
    model: Annotated[str, typer.Argument(help="demo, a folder or a Hugging Face id.")] = "demo",
    *,
    requests: Annotated[int, typer.Option(help="How many.", min=1)] = 96,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 192,
    rate: Annotated[
        float | None, typer.Option(help="Poisson arrivals per second; default: all at once.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of lengths, tokens and arrivals.")] = 0,
    as_json: Json = False,
    settings: dict[str, Any],
) -> None:
    """Compare static, dynamic and continuous batching on the same seeded work."""
    work = {"num_requests": requests, "max_tokens": max_tokens, "seed": seed, "rate_per_s": rate}
    arrivals = "all at once" if rate is None else f"{rate:g} per second"
    title = f"{model}: {requests} requests, {arrivals}, {settings['max_num_seqs']} rows"
    report(_runs(model, work, settings), title=title, as_json=as_json)


def _runs(
    model: str, work: dict[str, int | float | None], settings: dict[str, Any]
) -> Iterator[Result]:
    from chairlift.cli.bench.drive import drive, warm_up
    from chairlift.engine.engine import Engine

    for policy in POLICIES:
        engine = Engine(model, batching=policy, prefix_cache=False, **settings)
        items = chat_workload(vocab_size=engine.model_config.vocab_size, **work)  # type: ignore[arg-type]
        warm_up(engine)
        trace = drive(engine, items)
        yield summarize(
            policy, trace, engine.config.max_num_seqs, engine.config.max_num_batched_tokens
        )
        # Two KV caches at once may not fit.
        del engine
        gc.collect()


def summarize(
    policy: str, trace: "Trace", max_num_seqs: int, max_num_batched_tokens: int
) -> Result:
    """The figures of one run.

    slot_utilization is scheduled rows over rows, budget_utilization computed tokens over the token
    budget, kv_waste the allocated KV slots not yet written, all averaged over the steps that ran.
    """
    courses, steps = trace.courses, max(1, trace.num_steps)
    ttft = [c.token_times_s[0] - c.arrival_s for c in courses if c.token_times_s]
    latency = [c.finished_s - c.arrival_s for c in courses if c.finished_s is not None]
    return {
        "policy": policy,
        "requests": len(courses),
        "output_tokens": trace.num_output_tokens,
        "seconds": trace.seconds,
        "tokens_per_s": trace.num_output_tokens / trace.seconds,
        "requests_per_s": len(courses) / trace.seconds,
        "slot_utilization": trace.num_rows / (steps * max_num_seqs),
        "budget_utilization": trace.num_tokens / (steps * max_num_batched_tokens),
        "kv_waste": trace.kv_waste / steps,
        **_percentiles("ttft", ttft),
        **_percentiles("itl", _gaps(courses)),
        **_percentiles("latency", latency),
    }


def _gaps(courses: Sequence["Course"]) -> list[float]:
    """Seconds between the tokens of each answer."""
    return [
        after - before
        for course in courses
        for before, after in zip(course.token_times_s, course.token_times_s[1:], strict=False)
    ]


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    import numpy as np

    p50, p99 = np.percentile(values or [0.0], (50, 99)).tolist()
    return {f"{name}_p50_s": p50, f"{name}_p99_s": p99}
