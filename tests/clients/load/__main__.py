"""`make check-load`: the load tools of others beside `chairlift bench serve`, on one server.

    python -m tests.clients.load UV TOOLS [TOOL...]

Each tool, in an environment of its own, and `chairlift bench serve --url` send the same load in
turns: requests of equal lengths, so many at a time. Server and tools have processors of their own,
half of them each, so that the CPU time of a tool does not slow the steps; the model has 336 million
random weights, whose steps take longer than what a tool spends on their tokens. Below the figures
of each is what the server saw meanwhile. All must have all answers in full; how near the figures
are is to be read.
"""

import asyncio
import contextlib
import os
import random
import resource
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from chairlift.bench.workload import Item
from chairlift.cli.bench.http_stream import url_of
from chairlift.cli.bench.openai_load import send_openai_load
from chairlift.cli.bench.sent_load import figures

from benchmarks.peers.model import make_model
from tests.clients.load.tools import TOOLS, Figures, Load, Server
from tests.clients.openai.__main__ import served

LOAD = Load(num_requests=32, num_prompt=32, num_output=64, concurrency=8)
TURNS = 3
OURS = "bench serve"
DEFINITIONS = (
    "TTFT: from sending to the first event with text. TPOT: (latency - TTFT) / (tokens - 1).",
    "tokens/s of ours: over the time from the first request to the last event.",
    "server: means of its own metrics while the tool ran; its TTFT begins when it has the request.",
)


def main() -> None:
    uv, folder = sys.argv[1], Path(sys.argv[2]) / "load"
    names = sys.argv[3:] or [*TOOLS]
    environments = {name: installed(uv, folder / name, TOOLS[name].requirement) for name in names}
    model = folder / "model"
    if not (model / "config.json").exists():
        make_model(model)
    processors = sorted(os.sched_getaffinity(0))
    half = len(processors) // 2
    os.sched_setaffinity(0, processors[:half] or processors)
    # Drafts give more tokens a step the more an answer repeats itself.
    with served(str(model), "--drafts", "off") as url:
        os.sched_setaffinity(0, processors[half:])
        server = Server(url, model)
        draw = random.Random(1)
        ours(server, draw)
        senders: dict[str, Callable[[], Figures]] = {OURS: partial(ours, server, draw)}
        for name in names:
            senders[name] = partial(TOOLS[name].run, environments[name], server, LOAD)
        turns = [
            {name: measured(url, send) for name, send in senders.items()} for _ in range(TURNS)
        ]
    print(*table(turns), "", *DEFINITIONS, sep="\n")
    print(*(line for name in names for line in TOOLS[name].definitions), sep="\n")


def installed(uv: str, environment: Path, requirement: str) -> Path:
    """Install a tool, unless it is; return its environment."""
    mark = environment / ".installed"
    if not mark.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python"]
        subprocess.run([*install, requirement], check=True)
        mark.touch()
    return environment


def ours(server: Server, draw: random.Random) -> Figures:
    """Return the figures of our own load."""
    # Other words in each turn, so that the prefix cache finds nothing.
    work = [
        Item([draw.randrange(97) for _ in range(LOAD.num_prompt)], LOAD.num_output)
        for _ in range(LOAD.num_requests)
    ]
    sent = send_openai_load(
        url_of(server.url), server.model.name, work, concurrency=LOAD.concurrency
    )
    load = asyncio.run(sent)
    found = figures(load)
    assert found["failed"] == 0, found
    assert found["output_tokens"] == LOAD.num_requests * LOAD.num_output, found
    return {
        "TTFT mean, ms": 1e3 * float(found["ttft_mean_s"]),
        "TPOT mean, ms": 1e3 * float(found["tpot_mean_s"]),
        "latency mean, ms": 1e3 * float(found["latency_mean_s"]),
        "output tokens/s": float(found["tokens_per_s"]),
    }


def measured(url: str, send: Callable[[], Figures]) -> Figures:
    """Return the figures of a load, those of the server, and the CPU time of the tool."""
    before, cpu_before = counters(url), cpu_seconds()
    found = send()
    seen, cpu_s = counters(url), cpu_seconds() - cpu_before
    for name, value in before.items():
        seen[name] -= value

    def mean_ms(name: str) -> float:
        return 1e3 * seen[f"{name}_seconds_sum"] / seen[f"{name}_seconds_count"]

    return {
        **found,
        "server: TTFT, ms": mean_ms("time_to_first_token"),
        "server: prompt tokens": seen["prompt_tokens_total"] / LOAD.num_requests,
        "server: cached blocks": seen["prefix_cache_hits_total"] / LOAD.num_requests,
        "server: ITL, ms": mean_ms("inter_token_latency"),
        "server: step, ms": mean_ms("step"),
        "server: tokens/step": seen["generated_tokens_total"] / seen["step_seconds_count"],
        "CPU of the tool, s": cpu_s,
    }


def counters(url: str) -> dict[str, float]:
    """Return the sums of the server's metrics over all labels."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics") as response:
        for line in response.read().decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.partition("{")[0].removeprefix("chairlift_")
                with contextlib.suppress(ValueError):
                    found[name] = found.get(name, 0.0) + float(value)
    return found


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the children that have ended."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def table(turns: list[dict[str, Figures]]) -> Iterator[str]:
    """Yield the median turn of each figure, the others' beside ours, with their ratio to it."""
    yield (
        f"{LOAD.num_requests} requests of {LOAD.num_prompt} + {LOAD.num_output} tokens, "
        f"{LOAD.concurrency} at a time; medians of {TURNS} turns, "
        f"load of the machine {os.getloadavg()[0]:.1f}"
    )
    names = [name for name in turns[0] if name != OURS]
    yield f"{'':22}{OURS:>12}" + "".join(f"{name:>12}{'ratio':>7}" for name in names)
    for figure in turns[0][OURS]:
        medians = {
            name: statistics.median(turn[name][figure] for turn in turns) for name in turns[0]
        }
        base = medians[OURS]
        yield f"{figure:22}{base:12.1f}" + "".join(
            f"{medians[name]:12.1f}" + (f"{medians[name] / base:7.2f}" if base else f"{'-':>7}")
            for name in names
        )


if __name__ == "__main__":
    main()
