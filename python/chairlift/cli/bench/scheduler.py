"""`chairlift bench scheduler`: the scheduler alone, on decode steps."""

import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from chairlift.cli.progress import Progress
from chairlift.cli.report import Json, Result, report

PROMPT_TOKENS = 128
VOCAB_SIZE = 32_000
BLOCK_SIZE = 16


def scheduler(
    running: Annotated[
        list[int] | None,
        typer.Option(help="Running requests; may be repeated. Default: 64, 256, 1024 and 4096."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Measured decode steps.", min=10)] = 400,
    as_json: Json = False,
) -> None:
    """Measure schedule and update in one decode step, without a model."""
    counts = running or (64, 256, 1024, 4096)
    progress = Progress("steps", steps * len(counts), as_json=as_json)
    results = (measure(count, steps, progress.tick) for count in counts)
    title = f"Scheduler, {steps} decode steps"
    report(results, title=title, as_json=as_json, progress=progress)


def measure(running: int, steps: int, on_step: Callable[[], None] = lambda: None) -> Result:
    """Return the median and the 99th percentile of a decode step of `running` requests."""
    import numpy as np

    seconds = []
    for step_s in _decode_steps(running, steps):
        seconds.append(step_s)
        on_step()
    return {
        "running": running,
        "step_p50_s": float(np.percentile(seconds, 50)),
        "step_p99_s": float(np.percentile(seconds, 99)),
    }


def _decode_steps(running: int, steps: int) -> Iterator[float]:
    """Yield the seconds of schedule plus update, for each step in which all requests decode."""
    import torch

    from chairlift import _core
    from chairlift.core.new_request import NewRequest

    budget = max(8192, running)
    # While the last prompts are computed, the first requests decode already.
    prefill_steps = -(-running * (PROMPT_TOKENS + BLOCK_SIZE) // (budget - running + 1)) + 1
    longest = PROMPT_TOKENS + BLOCK_SIZE + prefill_steps + steps
    blocks_per_request = -(-longest // BLOCK_SIZE) + 1
    core = _core.Scheduler(
        policy="continuous",
        batch_size=running,
        batch_window=0,
        batch_timeout=0,
        max_num_seqs=running,
        max_num_batched_tokens=budget,
        max_model_len=2 * longest,
        max_queued_requests=running,
        vocab_size=VOCAB_SIZE,
        block_size=BLOCK_SIZE,
        num_blocks=1 + running * blocks_per_request,
        kv_windows=[None],
        prefix_cache=True,
        hash_key=bytes(32),
        token_table=_core.TokenTable([b" word"] * VOCAB_SIZE, []),
    )
    for i in range(running):
        # One in BLOCK_SIZE requests fills a block in each step, as in real traffic.
        length = PROMPT_TOKENS + i % BLOCK_SIZE
        prompt = [(7 * i + j) % VOCAB_SIZE for j in range(length)]
        core.add(time.monotonic_ns(), NewRequest(prompt, max_tokens=longest))
    plan = torch.zeros(core.plan_capacity, dtype=torch.int32)
    tokens = torch.full((running,), 5, dtype=torch.int32)
    measured = 0
    while measured < steps:
        started = time.perf_counter()
        step = core.schedule(time.monotonic_ns(), plan)
        scheduled = time.perf_counter()
        assert step is not None, "requests are running"
        num_rows, num_tokens, num_samples = plan[:3].tolist()
        updating = time.perf_counter()
        core.update(time.monotonic_ns(), step, tokens[:num_samples])
        ended = time.perf_counter()
        if num_rows == num_tokens == running:
            measured += 1
            yield (scheduled - started) + (ended - updating)
