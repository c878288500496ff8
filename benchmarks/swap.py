"""Who gives way computes again, or keeps its blocks: `python -m benchmarks.swap --model FOLDER`.

The same requests, all at once, with the KV blocks that they hold at their ends, and with a share
of these, without and with host memory beside. One line of JSON for each run, in turns.
"""

import argparse
import json
import random
import sys
import time
from typing import Any

from chairlift import Engine
from chairlift.api.types import Request, Sampling, Schedule, Stopping

FOREVER = Schedule(queue_timeout_s=float("inf"), time_limit_s=float("inf"))
BLOCK_SIZE = 16


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=256, help="tokens at most")
    parser.add_argument("--output", type=int, default=256, help="tokens at most")
    parser.add_argument("--share", type=float, default=0.6, help="of the blocks of all requests")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    requests = draw(options.requests, options.prompt, options.output)
    needed = sum(num_blocks(request) for request in requests)
    few = int(options.share * needed)
    ways = [("none", needed, 0), ("computed again", few, 0), ("swapped in", few, needed)]
    block = block_bytes(options.model)
    for _ in range(options.rounds):
        for name, count, num_host_blocks in ways:
            found = measure(
                options.model,
                requests,
                kv_cache_memory=(count + 1) * block,
                swap_memory=num_host_blocks * block or None,
            )
            print(json.dumps({"preempted requests": name, "blocks": count, **found}), flush=True)


def draw(count: int, max_prompt: int, max_output: int) -> list[Request]:
    """Greedy requests of drawn lengths that do not end by themselves, no two alike."""
    numbers = random.Random(0)
    requests = []
    for i in range(count):
        num_prompt = numbers.randint(max_prompt // 8, max_prompt)
        stopping = Stopping(
            max_tokens=numbers.randint(max_output // 8, max_output), ignore_eos=True
        )
        prompt = [3 + i, *(numbers.randrange(3, 1000) for _ in range(num_prompt - 1))]
        requests.append(Request(prompt, Sampling(temperature=0), stopping, schedule=FOREVER))
    return requests


def num_blocks(request: Request) -> int:
    """KV blocks that a request holds at its end."""
    assert isinstance(request.prompt, list)
    return -(-(len(request.prompt) + (request.stopping.max_tokens or 0)) // BLOCK_SIZE)


def block_bytes(model: str) -> int:
    """Bytes of a KV block."""
    engine = Engine(model)
    return engine.runner.kv_cache.nbytes // (engine.load().num_blocks + 1)


def measure(model: str, requests: list[Request], **settings: Any) -> dict[str, float]:  # noqa: ANN401
    """Run the requests to their ends."""
    engine = Engine(model, prefix_cache=True, max_num_seqs=len(requests), **settings)
    # The cost model learns from this, as it does from a server's own requests at its start.
    for num_prompt in (200, 50):
        engine.add(Request(list(range(3, 3 + num_prompt)), stopping=Stopping(max_tokens=8)))
        while engine.has_work:
            engine.step()
    began = time.perf_counter()
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
        print(f"\r\033[K{engine.load().num_kv_tokens} tokens", end="", file=sys.stderr)
    took_s = time.perf_counter() - began
    print("\r\033[K", end="", file=sys.stderr)
    load = engine.load()
    num_output = sum(request.stopping.max_tokens or 0 for request in requests)
    return {
        "seconds": took_s,
        "output_tokens_per_s": num_output / took_s,
        "preemptions": load.num_preemptions,
        "recomputed_tokens": load.num_recomputed_tokens,
        "swapped_tokens": load.num_swapped_tokens,
    }


if __name__ == "__main__":
    main()
