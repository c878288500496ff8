"""A quiet client beside a flood of a hundred times as much: `python -m benchmarks.fairness`.

By replay, so that the figures are the same everywhere: seconds to the first token of the quiet
client alone, beside the flood of another tenant, beside the same flood of its own tenant, and there
with a priority. One line of JSON each.
"""

import json
from typing import Any

import numpy as np
from chairlift.replay.options import ReplayOptions
from chairlift.replay.recipes import draw_trace
from chairlift.replay.run import first_tokens_s
from chairlift.replay.settings import settings_of, step_time_of
from chairlift.replay.trace import Request, Trace

QUIET_PER_S, FLOOD_PER_S, SECONDS = 1.0, 100.0, 120.0
NUM_RUNS = 5
"""Of one run the 99th percentile would be the second highest."""


def main() -> None:
    """Print a line for each situation."""
    alone = measure(flood=False)
    situations = {
        "alone": alone,
        "beside the flood of another tenant": measure(tenant=1),
        "beside a flood of its own tenant": measure(),
        "the same, with priority 10": measure(priority=10),
    }
    for name, waits_s in situations.items():
        p50_s, p99_s = np.percentile(waits_s, (50, 99))
        to_alone = p99_s / np.percentile(alone, 99)
        line = {"quiet client": name, "ttft_p50_s": p50_s, "ttft_p99_s": p99_s}
        print(json.dumps(line | {"p99_to_alone": to_alone}))


def measure(**situation: Any) -> np.ndarray:  # noqa: ANN401
    """Return the seconds to the first token of each request of the quiet client, of all runs."""
    return np.concatenate([run(2 * number, **situation) for number in range(NUM_RUNS)])


def run(seed: int, *, flood: bool = True, tenant: int = 0, priority: int = 0) -> np.ndarray:
    """Return those of one run."""
    quiet = draw(seed, QUIET_PER_S, tenant=0, priority=priority)
    others = draw(seed + 1, FLOOD_PER_S, tenant=tenant, priority=0) if flood else []
    requests = sorted(quiet + others, key=lambda request: request.arrival)
    header = draw_trace("chat", num_requests=1).header
    header = header.model_copy(update={"max_queued_requests": 100_000})
    options = ReplayOptions(max_num_seqs=64, max_num_batched_tokens=512)
    trace = Trace(header, requests)
    settings = settings_of(header, options, None)
    waits_s = first_tokens_s(trace, settings, step_time_of(header, [], options))
    names = {id(request) for request in quiet}
    return waits_s[[id(request) in names for request in requests]]


def draw(seed: int, per_s: float, *, tenant: int, priority: int) -> list[Request]:
    """Poisson arrivals of chats."""
    random = np.random.Generator(np.random.PCG64(seed))
    times = np.cumsum(random.exponential(1 / per_s, int(2 * per_s * SECONDS)))
    return [
        Request(
            arrival=int(time * 1e9),
            num_prompt=int(random.integers(50, 400)),
            max_tokens=(length := int(random.integers(20, 200))),
            num_output=length,
            tenant=tenant,
            priority=priority,
        )
        for time in times[times < SECONDS]
    ]


if __name__ == "__main__":
    main()
