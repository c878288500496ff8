"""`chairlift bench offline`: output tokens per second on a fixed workload."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from chairlift.bench.workload import Item, read_workload
from chairlift.checkpoints.files.folder import MODEL_HELP, check_model
from chairlift.cli.config_options import ADAPTER_SETTINGS, engine_options
from chairlift.cli.progress import Progress
from chairlift.cli.report import Json, Result, report


@engine_options(
    without=ADAPTER_SETTINGS
    | {"prefix_cache", "default_max_tokens", "queue_timeout_s", "time_limit_s"}
)
def offline(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "demo",
    *,
    workload: Annotated[
        Path,
        typer.Option(help='Lines of {"prompt_token_ids": [..], "max_tokens": N}.'),
    ],
    repeat: Annotated[int, typer.Option(help="Runs, one result each.", min=1)] = 1,
    as_json: Json = False,
    settings: dict[str, Any],
) -> None:
    """Run a workload through the engine: greedy, end-of-sequence ignored, no prefix cache."""
    check_model(model)
    work = read_workload(workload)
    progress = Progress("requests", repeat * len(work), as_json=as_json)
    runs = _runs(model, work, repeat, settings, progress)
    report(runs, title=f"{model}, {workload}", as_json=as_json, progress=progress)


def _runs(
    model: str, work: list[Item], repeat: int, settings: dict[str, Any], progress: Progress
) -> Iterator[Result]:
    from chairlift.bench.drive import drive, warm_up
    from chairlift.engine.engine import Engine

    settings = {"max_queued_requests": max(1024, len(work)), **settings, "prefix_cache": False}
    engine = Engine(model, **settings)
    warm_up(engine)
    for _ in range(repeat):
        run = drive(engine, work, progress.tick)
        yield {
            "output_tokens": run.num_output_tokens,
            "seconds": run.seconds,
            "tokens_per_s": run.num_output_tokens / run.seconds,
        }
