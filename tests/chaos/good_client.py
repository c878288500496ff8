"""Clients that do nothing wrong, in processes of their own, and how long their tokens take."""

import asyncio
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import grpc
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc

from tests.chaos.figures import percentile
from tests.chaos.pipes import end, next_message
from tests.server.connection import start

TOKENS = 25
ALONE = 5
"""Requests before the storm, to compare with."""

USUAL = {"max_num_seqs": 64, "max_num_batched_tokens": 256}
"""As many rows as the product has on a CPU: a good client does not wait for one."""

PACED = {"engine": USUAL, "step_s": 0.02}
"""The same at 50 steps a second, as a model on a CPU has; the tiny model takes 1 or 2 ms."""


class Waits(NamedTuple):
    """The seconds that a client waited."""

    first_token_s: float
    """p99 from the call to its first message of tokens."""
    next_token_s: float
    """p99 between two messages of tokens."""
    worst_gap_s: float
    """The largest time between two messages of tokens."""
    num_answers: int

    @classmethod
    def of(cls, answers):
        """Of the seconds to each token, answer by answer."""
        firsts = [gaps[0] for gaps in answers]
        others = [gap for gaps in answers for gap in gaps[1:]]
        return cls(
            percentile(firsts, 99), percentile(others, 99), max(others, default=0.0), len(answers)
        )


def send_until_stopped(address, prompts, answers, pipe):
    """Run as a process: send a few requests and report, then send more until a message comes."""
    asyncio.run(_send_until_stopped(address, prompts, answers, pipe))


async def _send_until_stopped(address, prompts, answers, pipe):
    async with grpc.aio.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        alone = [await _send(stub, prompts[i], answers[i]) for i in range(ALONE)]
        pipe.send(Waits.of(alone))
        received = []
        while not pipe.poll() or not received:
            i = len(received) % len(prompts)
            received.append(await _send(stub, prompts[i], answers[i]))
        pipe.send(Waits.of(received))


async def _send(stub, prompt, answer):
    """One request, answered rightly; seconds to each message of tokens, the first and the next."""
    command = start("good", prompt=prompt, max_tokens=TOKENS)
    tokens, gaps_s, last = [], [], time.monotonic()
    async for response in stub.GenerateOne(pb.GenerateOneRequest(start=command.start)):
        now = time.monotonic()
        gaps_s.append(now - last)
        last = now
        tokens += [i for event in response.events for i in event.tokens.token_ids]
    assert tokens == answer[:TOKENS]
    return gaps_s


async def beside(lab, server, work, *, num=1):
    """Run work beside good clients, as from another machine: it gets the time that they leave.

    Returns:
        The clients' waits before it and during it.
    """
    traffic = lab.traffic
    clients = [
        lab.client(send_until_stopped, server.address, traffic.prompts, traffic.answers)
        for _ in range(num)
    ]
    alone = [await next_message(pipe) for _, pipe in clients]
    with _out_of_the_way():
        await work
    for _, pipe in clients:
        pipe.send("stop")
    during = [await next_message(pipe) for _, pipe in clients]
    for process, _ in clients:
        await end(process)
    return alone, during


async def beside_one(lab, server, work):
    """Run work beside a good client; return the client's figures in words."""
    (alone,), (during,) = await beside(lab, server, work)
    return in_words(alone, during, "alone")


def in_words(before, during, what):
    """Compares a good client's waits with those that it had before."""
    assert during.num_answers > 0
    words = [
        f"{name} {then * 1e3:.1f} ms ({then / base:.1f} x)"
        for name, base, then in (
            ("first", before.first_token_s, during.first_token_s),
            ("next", before.next_token_s, during.next_token_s),
        )
    ]
    p99 = f"a good client's p99 to the {' and the '.join(words)} token, against {what}"
    return f"{p99}; worst gap {during.worst_gap_s * 1e3:.0f} ms"


@contextmanager
def _out_of_the_way():
    """Lowers the priority of all threads of this process."""
    _set_priority(10)
    try:
        yield
    finally:
        # Only root may raise it again.
        with suppress(PermissionError):
            _set_priority(0)


def _set_priority(nice):
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
