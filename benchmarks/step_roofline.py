"""Steps of mixed requests beside their linear layers at the roofline.

`python -m benchmarks.step_roofline --quantize int8`: the 48 requests of `make bench-peers` three
times in one process, of which the last counts: it holds neither loading nor first touches. The
limits are those that `chairlift bench kernels` measures. Without `--model` the model has the shape
of `make bench-peers` and random weights. One line of JSON for each kind of steps.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from chairlift import Engine
from chairlift.api.types import Request, Sampling, Stopping
from chairlift.cli.bench.kernels import Roofline
from chairlift.model.config import ModelConfig
from chairlift.model.specs.model_spec import ModelSpec

from benchmarks.peers.__main__ import made_model, made_workload

FORMATS = {"none": ("bfloat16", 2), "int8": ("int8", 8.125 / 8), "int4": ("int4", 5 / 8)}
"""The arithmetic of each, and the bytes of a weight with its share of scales and minima."""


def main() -> None:
    """Print a line for each kind of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder, a dense model in bfloat16")
    parser.add_argument("--quantize", choices=FORMATS, default="none")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--rows", type=int, default=32, help="requests that run at once")
    options = parser.parse_args()
    model = options.model or made_model("llama")
    lines = made_workload(model, options.requests, "chat").read_text(encoding="utf-8").splitlines()
    limits = Limits.measured(options.quantize)
    print(json.dumps({"quantize": options.quantize, **limits._asdict()}), flush=True)
    settings = {"max_num_seqs": options.rows, "prefix_cache": False, "drafts": "off"}
    with Engine(model, quantize=options.quantize, **settings) as engine:
        for _ in range(3):
            steps = run(engine, [json.loads(line) for line in lines])
    report(ModelConfig.load(model).spec, limits, steps)


class Limits(NamedTuple):
    """What the machine can do at most with weights of a format."""

    bytes_per_weight: float
    read_bytes_per_s: float
    operations_per_s: float

    @classmethod
    def measured(cls, quantize: str) -> "Limits":
        """Return medians of some measurements."""
        arithmetic, size = FORMATS[quantize]
        found = {str(limit["name"]): limit for limit in Roofline(5).limits()}
        read, rate = found["read"]["gb_per_s"], found[arithmetic]["gflop_per_s"]
        return cls(size, 1e9 * float(read), 1e9 * float(rate))

    def seconds(self, num_weights: int, num_rows: int) -> float:
        """Return the time of a linear layer at the roofline."""
        reading = num_weights * self.bytes_per_weight / self.read_bytes_per_s
        return max(reading, 2 * num_weights * num_rows / self.operations_per_s)


class Step(NamedTuple):
    """A step of the engine."""

    num_rows: int
    num_tokens: int
    seconds: float

    @property
    def kind(self) -> str:
        """Whether it has chunks of prompts, else how many answers it continues."""
        if self.num_tokens > self.num_rows:
            return "chunks of prompts"
        bounds = (16, "16 answers or more"), (8, "8 to 15 answers"), (0, "fewer answers")
        return next(name for least, name in bounds if self.num_rows >= least)


def run(engine: Engine, work: list[dict[str, Any]]) -> list[Step]:
    """Run all requests; return their steps."""
    steps = []
    for each in work:
        stopping = Stopping(max_tokens=each["max_tokens"], ignore_eos=True)
        engine.add(Request(each["prompt_token_ids"], Sampling(temperature=0), stopping))
    while engine.has_work:
        output = engine.advance()
        engine.events(output)
        if output.record is not None:
            counts = output.record.num_tokens
            steps.append(Step(len(counts), int(counts.sum()), output.record.duration_s))
    return steps


def report(spec: ModelSpec, limits: Limits, steps: list[Step]) -> None:
    """Print the time of each kind of steps, and that of their layers at the roofline."""
    hidden, inner, num_heads, num_kv_heads, head_dim = spec.shape
    heads, kv_heads = num_heads * head_dim, num_kv_heads * head_dim
    sizes = [(2 * heads + 2 * kv_heads) * hidden, 3 * inner * hidden]
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    for step in steps:
        least = len(spec.layers) * sum(limits.seconds(size, step.num_tokens) for size in sizes)
        # The head has the last token of each row.
        least += limits.seconds(spec.vocab_size * hidden, step.num_rows)
        for kind in (step.kind, "all"):
            parts = 1, step.num_tokens, step.seconds, least
            sums[kind] = [a + b for a, b in zip(sums[kind], parts, strict=True)]
    names = "steps", "tokens", "seconds", "layers_at_roofline_s"
    for kind, totals in sums.items():
        found = {name: round(total, 2) for name, total in zip(names, totals, strict=True)}
        print(json.dumps({"kind": kind, **found}))


if __name__ == "__main__":
    main()
