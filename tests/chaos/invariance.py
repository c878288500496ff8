"""The same tokens alone and in any company: mates, order, chunks, preemption, cache, policy."""

import math
import random

from chairlift.api.config import Dtype
from chairlift.api.types import Finished, Request, Sampling, Schedule, Stopping
from chairlift.attention.cpu import CpuBackend
from chairlift.engine.engine import Engine
from chairlift.model.config import ModelConfig
from chairlift.model.forward.kv_cache import kv_bytes_per_block

from tests.chaos.figures import Figures, Scale
from tests.engine.drive import assert_empty, end, token_ids
from tests.engine.drive import run as run_all

PROMPTS = {Scale.QUICK: 20, Scale.MEDIUM: 200, Scale.LONG: 5_000}
CONTEXTS = {Scale.QUICK: 6, Scale.MEDIUM: 16, Scale.LONG: 32}
TOKENS = 8


async def run(scale, lab):
    num, rounds = PROMPTS[scale], CONTEXTS[scale]
    found = []
    for dtype in ("float32", "bfloat16"):
        for temperature in (0.0, 1.0):
            wrong = compare(lab, num, rounds, dtype, temperature)
            if dtype == "float32":
                assert wrong == 0
            kind = "greedy" if temperature == 0 else "seeded"
            found.append(f"{dtype} {kind}: {wrong} diverge")
    return Figures("batch invariance", f"{num:,} prompts x {rounds} contexts", found)


def compare(lab, num, rounds, dtype, temperature):
    """How many answers in company differ from those alone."""
    requests = draw_requests(num, temperature)
    alone = Engine(lab.folder, dtype=dtype, max_num_seqs=1, prefix_cache=False)
    expected = [token_ids(run_all(alone, [request])[0]) for request in requests]
    draw = random.Random(num)
    wrong = 0
    for i in range(rounds):
        engine = Engine(lab.folder, dtype=dtype, **context(lab.folder, i, draw, dtype))
        order = draw.sample(range(num), num)
        answers = run_all(engine, [requests[j] for j in order])
        assert all(isinstance(end(answer), Finished) for answer in answers)
        wrong += sum(
            token_ids(answer) != expected[j] for j, answer in zip(order, answers, strict=True)
        )
        assert_empty(engine)
        lab.progress(f"invariance: {dtype}, context {i + 1}")
    return wrong


def context(folder, i, draw, dtype):
    """Settings under which the requests meet."""
    per_block = kv_bytes_per_block(ModelConfig.load(folder, Dtype(dtype)), CpuBackend(), 16)
    return {
        "batching": ("continuous", "dynamic", "static")[i % 3],
        "max_num_seqs": draw.choice([2, 5, 8, 32]),
        "max_num_batched_tokens": draw.choice([33, 64, 256]),
        "prefix_cache": bool(i % 2),
        "max_queued_requests": 100_000,
        # A tight pool preempts.
        **({"kv_cache_memory": 25 * per_block} if i % 4 < 2 else {}),
    }


def draw_requests(num, temperature):
    """Prompts of many lengths, half of which begin alike."""
    draw = random.Random(7)
    shared = [draw.randrange(1, 390) for _ in range(40)]
    return [
        Request(
            (shared[: draw.randrange(40)] if i % 2 else [])
            + [draw.randrange(1, 390) for _ in range(draw.choice([1, 3, 15, 16, 17, 40, 90]))],
            Sampling(temperature=temperature, seed=1000 + i),
            Stopping(max_tokens=TOKENS, ignore_eos=True),
            # All come at once, and the last of thousands is a while away.
            schedule=Schedule(queue_timeout_s=math.inf, time_limit_s=math.inf),
        )
        for i in range(num)
    ]
