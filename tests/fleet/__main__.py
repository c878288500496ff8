"""`make check-fleet`: two servers of a small model behind the router, beside their simulation.

    python -m tests.fleet [--model MODEL] [--requests N] [--rate PER_SECOND]

The simulation gets the work, the settings and the step times that the servers recorded. It knows
steps alone, so steps have to be long beside what a call costs, and those of `demo` are too short.
Prints both sides, and fails where they differ by more than the limits.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from chairlift.client import connect
from chairlift.replay.fleet import FleetReplayed, fleet_settings, replay_fleet
from chairlift.replay.fleet_options import FleetOptions
from chairlift.replay.format import Header, Step, StepTime
from chairlift.replay.recipes import draw_trace
from chairlift.replay.step_time import fit
from chairlift.replay.trace import Trace, read_trace

from tests.fleet.servers import Answered, drive, router_of

REPLICAS = 2
IDLE_NS = 3_000_000
"""A longer time between two steps is no part of either: nothing was there to compute."""

LIMITS = {"hits": 0.02, "tokens_per_s": 0.10, "ttft_p50_s": 0.20, "ttft_p99_s": 0.20}
"""How far the simulation may be from the servers, as a share."""


def main() -> int:
    """Print a line per figure; return 1 if one is outside of its limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    # Less than the prompts take: which server has what matters.
    parser.add_argument("--kv-cache-memory", default="270MiB")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rate", type=float, default=1.2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trace = draw_trace(
        "prefix", num_requests=options.requests, rate_per_s=options.rate, seed=options.seed, scale=4
    )
    with tempfile.TemporaryDirectory() as folder:
        records = [Path(folder) / f"{number}.jsonl" for number in range(REPLICAS)]
        with contextlib.ExitStack() as stack:
            addresses = [
                stack.enter_context(served(options.model, options.kv_cache_memory, record))
                for record in records
            ]
            router = router_of(REPLICAS, blocks_of(addresses[0]), seed=options.seed)
            answered = drive(trace, addresses, router)
        recorded = [read_trace(record) for record in records]
    step_time = fit([step for one in recorded for step in busy_steps(one.steps)])
    done = simulated(trace, answered, recorded[0].header, step_time, seed=options.seed)
    return compare(trace, answered, done)


@contextlib.contextmanager
def served(model: str, kv_cache_memory: str, record: Path) -> Iterator[str]:
    """Serve a model on one thread; yield the address."""
    command = [sys.executable, "-m", "chairlift", "serve", model, "--log-level", "error"]
    command += ["--listen", "127.0.0.1:0", "--num-threads", "1", "--drafts", "off"]
    command += ["--kv-cache-memory", kv_cache_memory, "--record", str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            lines = iter(server.stdout.readline, "")
            yield next(line.split()[2] for line in lines if line.startswith("serving on"))
        finally:
            server.terminate()


def blocks_of(address: str) -> int:
    """Return the KV blocks of a server."""
    with connect(address) as client:
        return client.server_info().num_blocks


def busy_steps(steps: Sequence[Step]) -> list[Step]:
    """Return steps whose durations go on to the next one: a server does more than compute."""
    busy = []
    for step, following in pairwise(steps):
        if following.t - (step.t + step.duration) < IDLE_NS:
            busy.append(step.model_copy(update={"duration": following.t - step.t}))
    return busy


def simulated(
    trace: Trace, answered: list[Answered], header: Header, step_time: StepTime, *, seed: int
) -> FleetReplayed:
    """Run the same work over the same fleet, at the times at which it was sent."""
    for request, one in zip(trace.requests, answered, strict=True):
        request.arrival = round(one.sent * 1e9)
        request.num_output = one.num_output
    again = Trace(header, trace.requests, tokens_per_name=trace.tokens_per_name)
    options = FleetOptions(replicas=REPLICAS)
    settings = fleet_settings(header, options, len(trace.requests), has_queue=True)
    return replay_fleet(again, settings, step_time, options, seed=seed)


def compare(trace: Trace, answered: list[Answered], done: FleetReplayed) -> int:
    """Print both sides of each figure."""
    waits = [one.first_token - one.sent for one in answered]
    seconds = max(one.ended for one in answered) - min(one.sent for one in answered)
    real = {
        "hits": sum(one.num_cached for one in answered),
        "tokens_per_s": sum(one.num_output for one in answered) / seconds,
        "ttft_p50_s": float(np.percentile(waits, 50)),
        "ttft_p99_s": float(np.percentile(waits, 99)),
    }
    run = done.run
    simulation = {
        "hits": int(done.num_cached.sum()),
        "tokens_per_s": run.num_output_tokens / run.seconds,
        "ttft_p50_s": float(np.percentile(run.ttft_s, 50)),
        "ttft_p99_s": float(np.percentile(run.ttft_s, 99)),
    }
    same = sum(one.replica == of for one, of in zip(answered, done.replica_of, strict=True))
    write = sys.stdout.write
    write(f"{len(trace.requests)} requests, {same} to the same replica in both\n")
    has_failed = False
    for name, limit in LIMITS.items():
        off = simulation[name] / real[name] - 1
        is_outside = abs(off) > limit
        has_failed |= is_outside
        write(f"{name:14} servers {real[name]:10.4g}  simulation {simulation[name]:10.4g}")
        write(f"  {off:+.1%}{f'  outside of {limit:.0%}' if is_outside else ''}\n")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
