"""Requests per second within a bound on the pauses of answers: `python -m benchmarks.capacity`.

By replay, so that the figures are the same on every machine. Prompts that are computed whole,
before the next tokens of running requests, against chunks of a fixed number of tokens and of the
time that the bound leaves. Capacity as defined by Sarathi-Serve (OSDI '24): the highest rate of
arrivals at which the 99th percentile of the time between two tokens is within the bound, and the
median request waits at most two seconds for its first token. One line of JSON each.
"""

import argparse
import json

import numpy as np
from chairlift.replay.options import ReplayOptions
from chairlift.replay.recipes import draw_trace
from chairlift.replay.run import replay
from chairlift.replay.settings import settings_of, step_time_of

RECIPES = ("chat", "code")
BOUNDS_S = (0.05, 0.1)
"""Five and ten times a step of 32 rows that only decode, as the paper's strict and relaxed ones."""
MEDIAN_TTFT_S = 2.0
WHOLE = 16384
"""Tokens of a step that no prompt of these recipes exceeds."""


def main() -> None:
    """Print a line for each recipe, bound and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="of each replay")
    options = parser.parse_args()
    for recipe in RECIPES:
        for bound_s in BOUNDS_S:
            ways = {
                "whole prompts": ReplayOptions(max_num_batched_tokens=WHOLE),
                "512 tokens": ReplayOptions(max_num_batched_tokens=512),
                f"{0.8 * bound_s:g} s": ReplayOptions(step_budget_s=0.8 * bound_s),
            }
            for way, settings in ways.items():
                rate = capacity(recipe, settings, bound_s, options.requests)
                line = {"recipe": recipe, "itl_p99_within_s": bound_s, "budget": way}
                print(json.dumps(line | {"requests_per_s": rate}), flush=True)


def capacity(recipe: str, options: ReplayOptions, bound_s: float, num_requests: int) -> float:
    """Return the highest rate that keeps the bound, to 2 %; 0 if 0.01 does not."""
    low, high = 0.01, 0.02
    if not holds(recipe, options, low, bound_s, num_requests):
        return 0.0
    while holds(recipe, options, high, bound_s, num_requests):
        low, high = high, 2 * high
    while high > 1.02 * low:
        middle = (low * high) ** 0.5
        if holds(recipe, options, middle, bound_s, num_requests):
            low = middle
        else:
            high = middle
    return round(low, 3)


def holds(
    recipe: str, options: ReplayOptions, rate_per_s: float, bound_s: float, num_requests: int
) -> bool:
    """Whether requests that come at this rate get their tokens in time."""
    trace = draw_trace(recipe, num_requests=num_requests, rate_per_s=rate_per_s)
    settings = settings_of(trace.header, options, None)
    run = replay(trace, settings, step_time_of(trace.header, [], options)).run
    itl_p99_s, ttft_p50_s = np.percentile(run.itl_s, 99), np.median(run.ttft_s)
    return bool(itl_p99_s <= bound_s and ttft_p50_s <= MEDIAN_TTFT_S)


if __name__ == "__main__":
    main()
