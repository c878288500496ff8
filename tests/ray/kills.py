"""Kills of engines under load: what hangs, what is lost, what comes twice.

    python -m tests.ray.kills [--kills N] [--streams N] [--seed N]

Servers of the demo model in processes of their own, behind an ingress in this one. A stream is
followed by the next one, so that a kill always finds requests that wait and requests that have
begun. Each answer is compared with that of a server that nothing happens to.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from chairlift.api.errors import RequestError
from chairlift.client import connect_async
from chairlift.ray.forward.replicas import ReplicaInfo, Replicas
from chairlift.ray.forward.server import ForwardingServer
from chairlift.server.config import ServerConfig

from tests.ray import served

NUM_ENGINES = 2
NUM_PROMPTS = 64
NUM_TOKENS = 48
HANG_S = 120.0
"""A stream that has not ended by then hangs."""
UP_S = 600.0
OPTIONS = {
    "max_tokens": NUM_TOKENS,
    "ignore_eos": True,
    "temperature": 0.0,
    "token_ids": True,
    "queue_timeout_s": HANG_S,
}


@dataclass
class Counts:
    """What became of the streams."""

    kills: int = 0
    answered: int = 0
    began_and_failed: int = 0
    """UNAVAILABLE after the first token: what a client may expect."""
    hangs: int = 0
    lost: int = 0
    """Failed without a token."""
    wrong_tokens: int = 0
    """Doubled, missing or other tokens."""
    errors: Counter[str] = field(default_factory=Counter)


class Fleet:
    """Engines, and the ingress in front of them."""

    def __init__(self, replicas, folder):
        self._replicas = replicas
        self._folder = folder
        self._engines = {}
        self._number = 0

    async def add(self):
        """Start an engine."""
        self._number += 1
        engine = await asyncio.to_thread(served.start, f"unix:{self._folder}/e{self._number}.sock")
        self._engines[f"e{self._number}"] = engine
        self._update()
        async with asyncio.timeout(UP_S):
            while len(self._replicas.up) < len(self._engines):
                await asyncio.sleep(0.01)

    def _update(self):
        self._replicas.update(
            {tag: ReplicaInfo(e.address, num_tokens=4096) for tag, e in self._engines.items()}
        )

    @property
    def address(self):
        """The address of an engine."""
        return next(iter(self._engines.values())).address

    async def kill(self, draw):
        """Kill an engine, and start another one in its place."""
        tag = draw.choice(list(self._engines))
        engine = self._engines.pop(tag)
        os.kill(engine.process.pid, signal.SIGKILL)
        await asyncio.to_thread(engine.process.join)
        # Serve learns of it after some checks: until then the ingress has to find out by itself.
        await self.add()

    def stop(self):
        """End all engines."""
        for engine in self._engines.values():
            engine.process.kill()
            engine.process.join()


def prompt_of(number):
    return [3 + number, 5, 8]


async def stream(client, number, expected, counts):
    """Run a stream, and count what became of it."""
    generation = client.generate(prompt_of(number), **OPTIONS)
    try:
        async with asyncio.timeout(HANG_S):
            await generation.all()
    except TimeoutError:
        counts.hangs += 1
        return
    except RequestError as error:
        counts.errors[error.reason.value] += 1
        has_begun = bool(generation.answers[0].token_ids)
        if has_begun and error.reason.code == "UNAVAILABLE":
            counts.began_and_failed += 1
        else:
            counts.lost += 1
    else:
        counts.answered += 1
        counts.wrong_tokens += len(generation.answers[0].token_ids) != NUM_TOKENS
    found = generation.answers[0].token_ids
    counts.wrong_tokens += found != expected[number][: len(found)]


async def run(num_kills, num_streams, seed):
    """Kill so many engines under so many streams at once.

    Returns:
        What became of the streams.
    """
    counts, draw = Counts(), random.Random(seed)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        replicas = Replicas()
        stack.push_async_callback(replicas.close)
        server = ForwardingServer(ServerConfig(listen=f"unix:{folder}/ingress.sock"), replicas)
        address = await server.start()
        stack.push_async_callback(server.stop, 0)
        fleet = Fleet(replicas, folder)
        stack.callback(fleet.stop)
        for _ in range(NUM_ENGINES):
            await fleet.add()
        async with connect_async(fleet.address) as client:
            answers = [client.generate(prompt_of(n), **OPTIONS) for n in range(NUM_PROMPTS)]
            found = await asyncio.gather(*(generation.all() for generation in answers))
            expected = [answer.token_ids for (answer,) in found]
        client = await stack.enter_async_context(connect_async(address))
        is_over = asyncio.Event()

        # By stream: how many engines had been killed when its request began.
        begun_at = [0] * num_streams

        async def streams(place):
            number = place
            while not is_over.is_set():
                begun_at[place] = counts.kills
                await stream(client, number % NUM_PROMPTS, expected, counts)
                number += num_streams

        async def until_sent_once():
            # A request is sent again once: each one meets one kill.
            async with asyncio.timeout(UP_S):
                while min(begun_at) < counts.kills:
                    for task in tasks:
                        if task.done():
                            task.result()
                    await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(streams(n)) for n in range(num_streams)]
        for _ in range(num_kills):
            await until_sent_once()
            await asyncio.sleep(draw.random())
            await fleet.kill(draw)
            counts.kills += 1
            if counts.kills % 10 == 0:
                print(json.dumps(vars(counts)), file=sys.stderr, flush=True)
        is_over.set()
        async with asyncio.timeout(UP_S):
            await asyncio.gather(*tasks)
    return counts


def main():
    """Print what became of the streams; return 1 if one hung, was lost, or has wrong tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = asyncio.run(run(options.kills, options.streams, options.seed))
    print(json.dumps(vars(counts)))
    return int(bool(counts.hangs or counts.lost or counts.wrong_tokens))


if __name__ == "__main__":
    sys.exit(main())
