"""Gaps between the tokens of chats while long prompts arrive: `python -m benchmarks.roles`.

Two servers on a core each, one that computes prompts and one that draws, beside one server on both
cores without and with a step budget. Chats go on all the time; prompts arrive one after another at
a fixed interval. One line of JSON for each way.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chairlift.client import AsyncClient, connect_async

BUDGETS_MS = (5, 10, 20)
PREFILL, DECODE = "127.0.0.1:50161", "127.0.0.1:50162"
_START_S = 300.0


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--chats", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of a long prompt")
    parser.add_argument("--interval", type=float, default=30.0, help="seconds between prompts")
    parser.add_argument("--seconds", type=float, default=90.0, help="of each way")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    one = ("--num-threads", "1")
    print(json.dumps(vars(options) | {"cores": len(cores)}), flush=True)
    with (
        serving(options.model, PREFILL, cores[:1], *one, "--role", "prefill"),
        serving(
            *(options.model, DECODE, cores[1:], *one),
            *("--role", "decode", "--prefill-peers", PREFILL),
        ),
    ):
        report("two servers of one core", options)
    for budget in (None, *BUDGETS_MS):
        settings = () if budget is None else ("--step-budget", f"{budget}ms")
        with serving(options.model, DECODE, cores, "--num-threads", "2", *settings):
            name = "no step budget" if budget is None else f"a step budget of {budget} ms"
            report(f"one server of two cores, {name}", options)


@contextmanager
def serving(model: str, address: str, cores: list[int], *settings: str) -> Iterator[None]:
    """Serve on some cores until the block ends."""
    program = [sys.executable, "-m", "chairlift", "serve", model, "--listen", address]
    command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *program]
    command += ["--max-num-seqs", "24", "--drafts", "off", *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        until = time.monotonic() + _START_S
        while not re.match("serving on", process.stdout.readline()):
            assert time.monotonic() < until, "it does not start"
            assert process.poll() is None, "it has ended"
        yield
    finally:
        process.terminate()
        process.communicate()


def report(name: str, options: argparse.Namespace) -> None:
    """Measure a way and print its line."""
    print(json.dumps({"way": name} | asyncio.run(measure(options))), flush=True)


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of the server at `DECODE`."""
    async with connect_async(DECODE) as client:
        # Kernels, memory and the cost of a step are known.
        await client.generate(prompt(99, 600), max_tokens=8, temperature=0.0).text()
        run = Run(client)
        chats = [asyncio.create_task(run.chat(number)) for number in range(options.chats)]
        long_prompts = []
        for number in range(int(options.seconds / options.interval)):
            long_prompts.append(asyncio.create_task(run.long_prompt(number, options.prompt)))
            await asyncio.sleep(options.interval)
        gaps = list(run.gaps)
        await asyncio.gather(*long_prompts)
        for chat in chats:
            chat.cancel()
        await asyncio.gather(*chats, return_exceptions=True)
    cuts = statistics.quantiles(gaps, n=100)
    return {
        "chat_tokens_s": round(len(gaps) / options.seconds, 1),
        "itl_p50_ms": round(cuts[49] * 1e3, 1),
        "itl_p99_ms": round(cuts[98] * 1e3, 1),
        "itl_max_ms": round(max(gaps) * 1e3, 1),
        "first_token_of_prompts_s": round(statistics.median(run.first_s), 2),
        "prompts": len(run.first_s),
        "transferred_tokens": run.num_transferred,
    }


class Run:
    """What clients see of a server."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.gaps: list[float] = []
        self.first_s: list[float] = []
        self.num_transferred = 0

    async def chat(self, number: int) -> None:
        """Note the gaps between tokens, of one answer after another."""
        for turn in itertools.count():
            tokens, last = prompt(1000 + 100 * number + turn, 40), None
            answer = self._client.generate(tokens, max_tokens=400, temperature=0.0, ignore_eos=True)
            async for event in answer.events():
                if event.HasField("tokens"):
                    now = time.monotonic()
                    if last is not None:
                        self.gaps.append(now - last)
                    last = now

    async def long_prompt(self, number: int, length: int) -> None:
        """Note the time to the first token of a long prompt."""
        began = time.monotonic()
        answer = self._client.generate(
            prompt(number, length), max_tokens=1, temperature=0.0, queue_timeout_s=120.0
        )
        async for event in answer.events():
            if event.HasField("tokens"):
                self.first_s.append(time.monotonic() - began)
            elif event.HasField("finished"):
                self.num_transferred += event.finished.usage.transferred_tokens


def prompt(seed: int, length: int) -> list[int]:
    """Return token ids that no other seed begins with."""
    return [(7919 * place + 104_729 * seed) % 31_000 + 5 for place in range(length)]


if __name__ == "__main__":
    main()
