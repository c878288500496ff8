"""What a constraint costs: per token in a batch, and for others when a large one is compiled.

    python -m benchmarks.constraints [MODEL] [--rows N] [--rounds N]

Rounds of answers without and with a constraint alternate in one process; milliseconds per token are
those of the decode steps, the median of the rounds. Then an answer without a constraint is streamed
while another client asks for one to a large schema for the first time.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any, Literal

from chairlift.api.types import Constraint, Finished, Request, Sampling, Stopping, Tokens
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine

MAX_TOKENS = 160
PROMPT = "Write a long list of ski lifts with their names, heights and opening hours:\n"

ROW: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 10, "maxLength": 40},
        "height_in_metres": {"type": "integer", "minimum": 100, "maximum": 4000},
        "is_open": {"type": "boolean"},
        "kind": {"enum": ["chair", "gondola", "drag"]},
    },
    "required": ["name", "height_in_metres", "is_open", "kind"],
    "additionalProperties": False,
}
KINDS = {
    "free": None,
    "any text": Constraint(regex="(?s:.{1,5000})"),
    "schema": Constraint(json_schema={"type": "array", "items": ROW, "minItems": 40}),
}


def round_ms(engine: Engine, constraint: Constraint | None, rows: int, seed: int) -> float:
    """Return the milliseconds per token of a batch, prompts left out."""
    for i in range(rows):
        sampling = Sampling(temperature=0.8, seed=seed * 1000 + i)
        stopping = Stopping(max_tokens=MAX_TOKENS, ignore_eos=True)
        engine.add(Request(f"{i}. {PROMPT}", sampling, stopping, constraint=constraint))
    num_tokens, spent = 0, 0.0
    has_begun: set[int] = set()
    while engine.has_work:
        began = time.perf_counter()
        events = engine.step()
        taken = time.perf_counter() - began
        tokens = [event for event in events if isinstance(event, Tokens)]
        # Steps in which every row decodes.
        if len(has_begun) == rows and len(tokens) == rows:
            spent += taken
            num_tokens += sum(len(event.token_ids) for event in tokens)
        has_begun.update(event.request_id for event in tokens)
    return 1e3 * spent / num_tokens


def cost(model: str, drafts: Literal["off", "lookup"], rows: int, rounds: int) -> None:
    """Print what a token costs without and with constraints."""
    engine = Engine(model, max_num_seqs=rows, drafts=drafts)
    times: dict[str, list[float]] = {name: [] for name in KINDS}
    for number in range(rounds + 1):
        for name, constraint in KINDS.items():
            taken = round_ms(engine, constraint, rows, number)
            # The first round compiles, and warms what is cold.
            if number > 0:
                times[name].append(taken)
    engine.close()
    free = statistics.median(times["free"])
    for name, of_kind in times.items():
        ratios = [a / b for a, b in zip(of_kind, times["free"], strict=True)]
        sys.stdout.write(
            f"drafts {drafts}, {rows} rows, {name}: {statistics.median(of_kind):.3f} ms a token,"
            f" {statistics.median(of_kind) / free:.3f} of a free one"
            f" (rounds {min(ratios):.3f} to {max(ratios):.3f})\n"
        )


def large_schema() -> str:
    """Return a schema of some 200 KB."""
    properties = {f"lift_{i}": {**ROW, "description": f"lift number {i}"} for i in range(500)}
    required = list(properties)[:3]
    return json.dumps({"type": "object", "properties": properties, "required": required})


async def gaps(model: str) -> None:
    """Print the worst gap of a stream with and without a large schema's first use beside it."""
    engine = AsyncEngine(model, max_num_seqs=8)
    await engine.start()
    schema = large_schema()

    async def other() -> float:
        began = time.perf_counter()
        request = Request(
            PROMPT,
            Sampling(seed=2),
            Stopping(max_tokens=8),
            constraint=Constraint(json_schema=schema),
            tenant="other",
        )
        async for event in engine.generate(request):
            if isinstance(event, Tokens):
                return time.perf_counter() - began
        return time.perf_counter() - began

    async def worst_gap(*, beside: bool) -> tuple[float, float]:
        stopping = Stopping(max_tokens=250, ignore_eos=True)
        last, worst, task = None, 0.0, None
        async for event in engine.generate(Request(PROMPT, Sampling(seed=1), stopping)):
            now = time.perf_counter()
            if isinstance(event, Finished):
                break
            if isinstance(event, Tokens):
                worst = max(worst, 0.0 if last is None else now - last)
                last = now
                if beside and task is None:
                    task = asyncio.create_task(other())
        return worst, 0.0 if task is None else await task

    for beside in (False, True, False):
        worst, first_token = await worst_gap(beside=beside)
        what = f" beside the first use of {len(schema) // 1024} KiB of schema" if beside else ""
        sys.stdout.write(f"worst gap of a stream{what}: {1e3 * worst:.0f} ms")
        sys.stdout.write(
            f", whose first token takes {1e3 * first_token:.0f} ms\n" if beside else "\n"
        )
    await engine.stop()


def main() -> None:
    """Print all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cost(options.model, "lookup", options.rows, options.rounds)
    cost(options.model, "off", options.rows, options.rounds)
    asyncio.run(gaps(options.model))


if __name__ == "__main__":
    main()
