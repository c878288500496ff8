"""`chairlift bench policies`: the three batching policies on the same work and the same engine."""

import gc
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from chairlift.api.choices import Batching
from chairlift.api.figures import BRIEF, summarize
from chairlift.bench.arrivals import Arrivals
from chairlift.bench.workload import chat_workload
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.config_options import ADAPTER_SETTINGS, engine_options
from chairlift.cli.progress import Progress
from chairlift.cli.report import Json, Result, report

POLICIES = (Batching.STATIC, Batching.DYNAMIC, Batching.CONTINUOUS)


@engine_options(
    without=ADAPTER_SETTINGS
    | {"batching", "prefix_cache", "default_max_tokens", "queue_timeout_s", "time_limit_s"},
    defaults={"max_num_seqs": 16},
)
def policies(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "demo",
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
    check_model(model)
    arrival = Arrivals() if rate is None else Arrivals(rate)
    work = {"num_requests": requests, "max_tokens": max_tokens, "seed": seed, "arrivals": arrival}
    arrivals = "all at once" if rate is None else f"{rate:g} per second"
    title = f"{model}: {requests} requests, {arrivals}, {settings['max_num_seqs']} rows"
    progress = Progress("requests", len(POLICIES) * requests, as_json=as_json)
    runs = _runs(model, work, settings, progress)
    report(runs, title=title, as_json=as_json, omit=BRIEF, progress=progress)


def _runs(
    model: str,
    work: dict[str, Any],
    settings: dict[str, Any],
    progress: Progress,
) -> Iterator[Result]:
    from chairlift.bench.drive import drive, warm_up
    from chairlift.engine.engine import Engine

    for policy in POLICIES:
        engine = Engine(model, batching=policy, prefix_cache=False, **settings)
        items = chat_workload(vocab_size=engine.model_config.spec.vocab_size, **work)
        warm_up(engine)
        yield summarize(
            policy,
            drive(engine, items, progress.tick),
            max_num_seqs=engine.config.max_num_seqs,
            max_num_batched_tokens=engine.config.max_num_batched_tokens,
        )
        # Two KV caches at once may not fit.
        del engine
        gc.collect()
