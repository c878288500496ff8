"""Clients that do nothing wrong, in processes of their own, and how long their tokens take."""

import asyncio
import time

import grpc
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc

from tests.chaos.figures import percentile
from tests.server.talk import start

TOKENS = 60
ALONE = 5
"""Requests before the storm, to compare with."""


def ask_on(address, prompts, answers, pipe):
    """The process: asks a few times, says so, asks on until it is told to stop, and reports."""
    asyncio.run(_ask_on(address, prompts, answers, pipe))


async def _ask_on(address, prompts, answers, pipe):
    async with grpc.aio.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        gaps_s = []
        for i in range(ALONE):
            gaps_s += await _ask(stub, prompts[i], answers[i])
        pipe.send(percentile(gaps_s, 99))
        num, gaps_s = 0, []
        while not pipe.poll():
            gaps_s += await _ask(stub, prompts[num % len(prompts)], answers[num % len(prompts)])
            num += 1
        pipe.send((num, percentile(gaps_s, 99)))


async def _ask(stub, prompt, answer):
    """One request, answered rightly; seconds to the first token and between tokens."""
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
    """Runs work beside good clients.

    Returns:
        The work's result, the mean of their p99 before it and during it in seconds, and how many
        answers they got.
    """
    traffic = lab.traffic
    clients = [
        lab.client(ask_on, server.address, traffic.prompts, traffic.answers) for _ in range(num)
    ]
    alone_s = [await asyncio.to_thread(pipe.recv) for _, pipe in clients]
    result = await work
    for _, pipe in clients:
        pipe.send("stop")
    reports = [await asyncio.to_thread(pipe.recv) for _, pipe in clients]
    for process, _ in clients:
        await asyncio.to_thread(process.join)
    p99_s = sum(p99_s for _, p99_s in reports) / num
    return result, sum(alone_s) / num, p99_s, sum(answers for answers, _ in reports)


async def beside_one(lab, server, work):
    """Runs work beside a good client; gives the client's figures in words."""
    _, alone_s, p99_s, num_answers = await beside(lab, server, work)
    return (
        f"a good client's p99 gap {p99_s * 1e3:.1f} ms ({p99_s / alone_s:.1f} x alone),"
        f" {num_answers:,} answers right"
    )
