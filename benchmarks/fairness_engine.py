"""A quiet tenant beside a flood on a real engine: `python -m benchmarks.fairness_engine --help`.

A quiet tenant asks now and then, alone and beside another tenant of whom there are always more
requests than rows. Seconds from when a request is due to its first token; one line of JSON each.
"""

import argparse
import json
import math
import random
import statistics
import sys
import time

from chairlift import Engine
from chairlift.api.types import Request, Sampling, Schedule, Stopping, Tokens

FOREVER = Schedule(queue_timeout_s=math.inf, time_limit_s=math.inf)


def main() -> None:
    """Print a line for each situation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder")
    parser.add_argument("--requests", type=int, default=40, help="of the quiet tenant")
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between them, on average")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256, help="of a step")
    options = parser.parse_args()
    alone = measure(options, has_flood=False)
    for name, waits_s in (("alone", alone), ("beside a flood", measure(options, has_flood=True))):
        median, most = statistics.median(waits_s), max(waits_s)
        line = {"quiet tenant": name, "ttft_p50_s": median, "ttft_max_s": most}
        ratios = {
            "p50_to_alone": median / statistics.median(alone),
            "max_to_alone": most / max(alone),
        }
        print(json.dumps(line | ratios), flush=True)


def measure(options: argparse.Namespace, *, has_flood: bool) -> list[float]:
    """Return the seconds to the first token of each request of the quiet tenant."""
    engine = Engine(
        options.model,
        max_num_seqs=options.rows,
        max_num_batched_tokens=options.tokens,
        prefix_cache=False,
    )
    draw, others = random.Random(0), random.Random(1)
    # Both tenants are known from the start.
    engine.add(request(draw, "quiet", 16))
    run_until_idle(engine)
    waits_s: list[float] = []
    due_at: dict[int, float] = {}
    due = time.perf_counter() + options.pause
    while len(waits_s) < options.requests:
        while has_flood and engine.load().num_waiting < options.rows:
            engine.add(request(others, "flood", 100))
        if due <= time.perf_counter():
            due_at[engine.add(request(draw, "quiet", 16)).request_id] = due
            due += draw.expovariate(1 / options.pause)
        if not engine.has_work:
            time.sleep(max(0.0, due - time.perf_counter()))
            continue
        events = engine.step()
        begun = {event.request_id for event in events if isinstance(event, Tokens)} & set(due_at)
        waits_s += [time.perf_counter() - due_at.pop(number) for number in begun]
        print(f"\r\033[K{len(waits_s)} answers have begun", end="", file=sys.stderr)
    print("\r\033[K", end="", file=sys.stderr)
    return waits_s


def request(draw: random.Random, tenant: str, most_tokens: int) -> Request:
    """A chat."""
    prompt = [draw.randrange(3, 1000) for _ in range(draw.randint(50, 400))]
    stopping = Stopping(max_tokens=draw.randint(most_tokens // 4, most_tokens), ignore_eos=True)
    return Request(prompt, Sampling(temperature=0), stopping, schedule=FOREVER, tenant=tenant)


def run_until_idle(engine: Engine) -> None:
    """Run steps until every request has ended."""
    while engine.has_work:
        engine.step()


if __name__ == "__main__":
    main()
