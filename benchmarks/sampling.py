"""What the options of draws cost, beside a plain draw and beside a decode step of a model.

    python -m benchmarks.sampling [MODEL]

64 rows, each 512 tokens into its request. The draws of the two kinds alternate in one process;
medians. With a model (`python -m benchmarks.peers` makes the one of 336 M parameters) also the time
of a decode step of 64 rows of it.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from chairlift import _core
from chairlift.api.sampler_options import SamplerOptions, SamplingParameters
from chairlift.api.types import Request, Sampling, Stopping
from chairlift.engine.engine import Engine
from chairlift.engine.runner.sampler import NoEnd, Sampler

NUM_ROWS = 64
VOCAB_SIZE = 32_000
HISTORY = 512
ROUNDS = 15

PLAIN = SamplingParameters(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=1)
OPTIONS = SamplerOptions(
    banned_token_ids=(7,),
    bad_words=((1, 2, 8), (11,)),
    logit_bias=((5, 2.0), (6, -3.0)),
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    dry_multiplier=0.8,
    dry_sequence_breakers=(b"\n", b":", b'"', b"*"),
    top_n_sigma=3.0,
    typical_p=0.9,
    xtc_probability=0.5,
    num_candidates=20,
)
ALL = SamplingParameters(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05, seed=1, options=OPTIONS)
WITHOUT_TOP_K = SamplingParameters(
    temperature=0.8, top_k=0, top_p=0.9, min_p=0.05, seed=1, options=OPTIONS
)


def draws(sampling: SamplingParameters) -> Callable[[], float]:
    """Return a function that draws for all rows, and the milliseconds that it takes."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(NUM_ROWS, VOCAB_SIZE, generator=generator)
    prompt = torch.randint(VOCAB_SIZE, (HISTORY,), generator=generator).tolist()
    table = _core.TokenTable([b"%d " % i for i in range(VOCAB_SIZE)], [])
    sampler = Sampler(NUM_ROWS)
    for slot in range(NUM_ROWS):
        sampler.set(slot, sampling, prompt, NoEnd((2,), 10), table)
    slots = torch.arange(NUM_ROWS, dtype=torch.int32)
    position = torch.full((NUM_ROWS,), HISTORY, dtype=torch.int32)
    last = torch.full((NUM_ROWS,), prompt[-1], dtype=torch.int32)

    def draw() -> float:
        nonlocal last
        began = time.perf_counter()
        sampled = sampler.sample(logits, slots, 0 * slots, position, last)
        taken = time.perf_counter() - began
        position.add_(1)
        last = sampled.tokens
        return 1e3 * taken

    return draw


def step_ms(model: str) -> float:
    """Return the median milliseconds of a decode step of so many rows."""
    with Engine(model, max_num_seqs=NUM_ROWS, kv_cache_memory="1GiB") as engine:
        times: list[float] = []
        engine.watch_steps(lambda step: times.append(1e3 * step.duration_s))
        stopping = Stopping(max_tokens=ROUNDS + 8, ignore_eos=True)
        for i in range(NUM_ROWS):
            engine.add(Request([5 + i, 6, 7, 8], Sampling(temperature=0.8), stopping))
        while engine.has_work:
            engine.step()
    return statistics.median(times[4:-4])


def main() -> None:
    """Print the medians."""
    kinds = {"plain": PLAIN, "all options": ALL, "all options, no top-k": WITHOUT_TOP_K}
    functions = {name: draws(sampling) for name, sampling in kinds.items()}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, draw in functions.items():
            times[name].append(draw())
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name:24} {median:8.2f} ms for {NUM_ROWS} rows")
    if len(sys.argv) > 1:
        step = step_ms(sys.argv[1])
        for name, median in medians.items():
            more = median - medians["plain"]
            print(f"{name:24} {more:8.2f} ms more, {100 * more / step:.1f} % of {step:.0f} ms")


if __name__ == "__main__":
    main()
