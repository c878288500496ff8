"""A long prompt arrives among chats: `python -m benchmarks.long_prompt --model FOLDER`.

What the chats feel (seconds between two of their tokens) and how long the prompt waits for its
first token, under budgets of time, of tokens, and without chunks; and alone, for comparison. One
line of JSON each.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from chairlift import Engine
from chairlift.api.types import Request, Sampling, Schedule, Stopping, Tokens

FOREVER = Schedule(queue_timeout_s=float("inf"), time_limit_s=float("inf"))


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder")
    parser.add_argument("--chats", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("--step-budget", type=float, nargs="+", default=[0.5], help="seconds")
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 2048])
    options = parser.parse_args()
    whole = options.prompt + options.chats
    ways: list[tuple[str, dict[str, object]]] = [
        *(
            (f"{s:g} s", {"step_budget_s": s, "max_num_batched_tokens": 256})
            for s in options.step_budget
        ),
        *((f"{n} tokens", {"max_num_batched_tokens": n}) for n in options.tokens),
        ("no chunks", {"max_num_batched_tokens": whole}),
    ]
    alone_s = measure(options.model, 0, options.prompt, {"max_num_batched_tokens": 256})["ttft_s"]
    print(json.dumps({"budget": "alone", "ttft_s": alone_s}), flush=True)
    for name, settings in ways:
        found = measure(options.model, options.chats, options.prompt, settings)
        line = {"budget": name, **found, "ttft_to_alone": found["ttft_s"] / alone_s}
        print(json.dumps(line), flush=True)


def measure(
    model: str, num_chats: int, num_prompt: int, settings: dict[str, Any]
) -> dict[str, float]:
    """Run the chats until all of them decode, add the prompt, and go on until its first token."""
    engine = Engine(model, prefix_cache=False, max_num_seqs=num_chats + 1, **settings)
    # The cost model learns from these, as it does from a server's own requests at its start.
    for count in (200, 50):
        answer(engine, count)
    chats = {engine.add(request(range(3, 40 + i), 2000)).request_id for i in range(num_chats)}
    last: dict[int, float] = {}
    while len(last) < num_chats:
        last |= dict.fromkeys(tokens_of(engine), time.perf_counter())
    began = time.perf_counter()
    long = engine.add(request(range(3, 3 + num_prompt), 8)).request_id
    gaps_s, ttft_s = [], None
    while ttft_s is None:
        ids = list(tokens_of(engine))
        now = time.perf_counter()
        gaps_s += [now - last[i] for i in ids if i in chats]
        last |= dict.fromkeys(ids, now)
        ttft_s = now - began if long in ids else None
        show(engine)
    print("\r\033[K", end="", file=sys.stderr)
    if not gaps_s:
        return {"ttft_s": ttft_s}
    ordered = sorted(gaps_s)
    return {
        "itl_p50_s": statistics.median(ordered),
        "itl_p99_s": ordered[int(0.99 * (len(ordered) - 1))],
        "itl_max_s": ordered[-1],
        "ttft_s": ttft_s,
    }


def answer(engine: Engine, num_prompt: int) -> None:
    """One request, to its end."""
    engine.add(request(range(3, 3 + num_prompt), 8))
    while engine.has_work:
        engine.step()


def request(prompt: range, max_tokens: int) -> Request:
    """A greedy request that does not end by itself."""
    stopping = Stopping(max_tokens=max_tokens, ignore_eos=True)
    return Request(list(prompt), Sampling(temperature=0), stopping, schedule=FOREVER)


def tokens_of(engine: Engine) -> Iterator[int]:
    """Run a step; return the requests that got tokens."""
    return (event.request_id for event in engine.step() if isinstance(event, Tokens))


def show(engine: Engine) -> None:
    """Progress on stderr."""
    print(f"\r\033[K{engine.load().num_kv_tokens} tokens", end="", file=sys.stderr)


if __name__ == "__main__":
    main()
