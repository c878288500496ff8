"""What every `run_*.py` takes and prints; imports nothing but the standard library."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

STEP_TOKENS = 512
"""Of a step at most, for Chairlift and OpenVINO; llama.cpp takes as many of its own accord."""

KV_CACHE_DTYPES = ("auto", "int8")
"""Of the keys and values, on both sides."""


@dataclass(frozen=True, slots=True)
class Job:
    """One measured run."""

    model: Path
    work: list[tuple[list[int], int]]
    """Prompt token ids and the length of the answer, greedy, end-of-sequence ignored."""
    dtype: str
    """Of the weights: float32, bfloat16, int8, int4, or a format of llama.cpp."""
    rows: int
    """Requests that may run at once."""
    threads: int
    converted: Path
    """Where the peer keeps the model in its own format between runs; may not exist yet."""
    convert_only: bool
    """Make that file, and measure nothing."""
    kv_cache_dtype: str = "auto"
    """Of the keys and values: auto is 16 bits, where the weights are not float32; or int8."""

    @property
    def warm_up(self) -> list[tuple[list[int], int]]:
        """A little work, so that no first-time cost is measured."""
        return [(prompt[:16], 4) for prompt, _ in self.work[:2]]


def read_job() -> Job:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--converted", type=Path, required=True)
    parser.add_argument("--convert-only", action="store_true")
    options = vars(parser.parse_args())
    lines = options.pop("workload").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    work = [(entry["prompt_token_ids"], entry["max_tokens"]) for entry in entries]
    return Job(work=work, **options)


def print_result(output_tokens: int, seconds: float) -> None:
    """Print the one JSON line, with the keys of `chairlift bench offline --json`."""
    result = {
        "output_tokens": output_tokens,
        "seconds": seconds,
        "tokens_per_s": output_tokens / seconds,
    }
    print(json.dumps(result), flush=True)
