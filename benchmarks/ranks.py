"""Two ranks of one thread beside one process with two: `python -m benchmarks.ranks --model FOLDER`.

A process of its own for each way, in turns: tokens per second of decode steps with 1 and 16 rows,
and seconds of a prompt of 2,000 tokens. Then what the ranks exchange: the bytes of a step, and the
time of a gather between two processes that do nothing else. One line of JSON each.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from chairlift import Engine
from chairlift.api.choices import Quantize
from chairlift.api.types import Request, Sampling, Stopping, Tokens
from chairlift.engine.ranks.segment import Layout
from chairlift.model.config import ModelConfig

NUM_RANKS = 2
NUM_PROMPT = 2000
NUM_STEPS = 48
NUM_GATHERS = 5000
_PATIENCE_S = 60.0


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder")
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, help="measure one way, in this process")
    options = parser.parse_args()
    if options.ranks is not None:
        print(json.dumps(measure(options.model, options.ranks, options.quantize)))
        return
    found: dict[int, list[dict[str, float]]] = {1: [], NUM_RANKS: []}
    for _ in range(options.rounds):
        for ranks, rounds in found.items():
            command = [sys.executable, "-m", "benchmarks.ranks", "--ranks", str(ranks)]
            command += ["--model", str(options.model), "--quantize", options.quantize]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            rounds.append(json.loads(output.splitlines()[-1]))
            print(json.dumps({"ranks": ranks, **rounds[-1]}), flush=True)
    for name in found[1][0]:
        pairs = zip(found[1], found[NUM_RANKS], strict=True)
        # Seconds are the other way round: more than 1 is faster.
        ratios = [
            one[name] / ranks[name] if name.endswith("_s") else ranks[name] / one[name]
            for one, ranks in pairs
        ]
        line = {"figure": name, "ratio": statistics.median(ratios)}
        print(json.dumps(line | {"min": min(ratios), "max": max(ratios)}), flush=True)
    config = ModelConfig.load(options.model)
    for rows in (1, 16):
        line = {"rows": rows, "gathers": num_gathers(config), "bytes": rows * row_bytes(config)}
        print(json.dumps(line | {"gather_us": gather_us(rows, config.spec.hidden_size)}))


def measure(model: Path, num_ranks: int, quantize: str) -> dict[str, float]:
    """Return the figures of one way."""
    engine = Engine(
        model,
        tensor_parallel=num_ranks,
        num_threads=NUM_RANKS,
        quantize=Quantize(quantize),
        max_num_seqs=16,
        max_num_batched_tokens=512,
        prefix_cache=False,
        drafts="off",
    )
    found = {}
    for rows in (1, 16):
        found[f"decode_{rows}"] = decode(engine, rows)
    found["prompt_s"] = statistics.median(prompt(engine, start) for start in range(3))
    engine.close()
    return found


def decode(engine: Engine, rows: int) -> float:
    """Return the tokens per second of steps in which every row decodes."""
    ids = {engine.add(request(range(3, 35 + row), 2 * NUM_STEPS)).request_id for row in range(rows)}
    begun: set[int] = set()
    while begun != ids:
        begun.update(tokens_of(engine))
    for _ in range(4):
        engine.step()
    began, count = time.perf_counter(), 0
    for _ in range(NUM_STEPS):
        count += sum(1 for _ in tokens_of(engine))
    took = time.perf_counter() - began
    for request_id in ids:
        engine.abort(request_id)
    while engine.has_work:
        engine.step()
    return count / took


def prompt(engine: Engine, start: int) -> float:
    """Return the seconds to the first token of a long prompt."""
    began = time.perf_counter()
    engine.add(request(range(3 + start, 3 + start + NUM_PROMPT), 1))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began


def request(tokens: range, num_tokens: int) -> Request:
    """Return a request for so many tokens, the likeliest ones."""
    return Request(
        [*tokens], Sampling(temperature=0), Stopping(max_tokens=num_tokens, ignore_eos=True)
    )


def tokens_of(engine: Engine) -> Iterator[int]:
    """Run a step; yield the request of each of its tokens."""
    for event in engine.step():
        if isinstance(event, Tokens):
            yield from [event.request_id] * len(event.token_ids)


def num_gathers(config: ModelConfig) -> int:
    """Return the gathers of a decode step: four of each layer, and the logits."""
    return 4 * len(config.spec.layers) + 1


def row_bytes(config: ModelConfig) -> int:
    """Return the bytes that all ranks write for a row of a decode step."""
    spec = config.spec
    widths = [attention.query_size for attention in spec.attentions]
    widths += [layer.dense.intermediate_size for layer in spec.layers if layer.dense is not None]
    numbers = sum(widths) + 2 * spec.hidden_size * len(spec.layers)
    return numbers * config.dtype.itemsize + 4 * spec.vocab_size


def gather_us(rows: int, width: int) -> float:
    """Return the microseconds of a gather of two processes that do nothing else."""
    layout = Layout(NUM_RANKS, 16)
    descriptor = layout.create()
    other = multiprocessing.get_context("fork").Process(
        target=_gathers, args=(layout, descriptor, 1, rows, width)
    )
    other.start()
    took = _gathers(layout, descriptor, 0, rows, width)
    other.join(_PATIENCE_S)
    os.close(descriptor)
    return 1e6 * took / NUM_GATHERS


def _gathers(layout: Layout, descriptor: int, rank: int, rows: int, width: int) -> float:
    group = layout.open(descriptor, rank, 50e-6, _PATIENCE_S)
    widths = [width // NUM_RANKS] * NUM_RANKS
    x, out = torch.zeros(rows, widths[rank]), torch.zeros(rows, sum(widths))
    # The other process takes its time to begin.
    group.gather(x, out, widths)
    began = time.perf_counter()
    for _ in range(NUM_GATHERS):
        group.gather(x, out, widths)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
