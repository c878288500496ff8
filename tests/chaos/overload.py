"""Ten times as many requests as the server can answer."""

import asyncio
import random
import time
from typing import NamedTuple

from chairlift.v1 import generation_pb2 as pb
from google.protobuf import duration_pb2

from tests.chaos.figures import COMPARED_S, Figures, Scale, milliseconds, percentile
from tests.chaos.history import History
from tests.chaos.traffic import Spec

SECONDS = {Scale.QUICK: 2, Scale.MEDIUM: 20, Scale.LONG: 600}
ROWS, TOKENS, STEP_S = 8, 20, 0.02
# Slow steps: the server's order of work is measured, not the speed of the clients beside it.
SETUP = {
    "engine": {"max_num_seqs": ROWS, "max_num_batched_tokens": 512, "max_queued_requests": 32},
    "step_s": STEP_S,
}
# One connection carries all requests: beyond its share of the queue it gets QUOTA_EXCEEDED.
REFUSALS = ("QUEUE_FULL", "QUOTA_EXCEEDED", "DEADLINE_UNREACHABLE")
MAY_FAIL = {*REFUSALS, "QUEUE_TIMEOUT"}
MAY_END = {
    ("RESOURCE_EXHAUSTED", "QUEUE_FULL"),
    ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"),
    ("DEADLINE_EXCEEDED", "QUEUE_TIMEOUT"),
    ("DEADLINE_EXCEEDED", "DEADLINE_UNREACHABLE"),
}
TARGET_S = 0.75
"""To the first token; the queue is a wait of some two seconds when it is full."""


async def run(scale, lab):
    await lab.server()
    server = await lab.server(**SETUP)
    history = History(lab.scratch / "overload.jsonl")
    brief = min(COMPARED_S, SECONDS[scale])
    async with server.stub() as stub:
        peak = await at_peak(lab, stub, history, brief)
        flood = await flooded(lab, stub, history, SECONDS[scale], 10 * peak)
        without_target = await flooded(lab, stub, history, brief, 2 * peak)
        target = pb.Schedule(time_to_first_token=duration_pb2.Duration(nanos=int(TARGET_S * 1e9)))
        with_target = await flooded(lab, stub, history, brief, 2 * peak, schedule=target)
    await server.until_idle()
    records = history.check(lab.traffic.answers, may_fail=MAY_FAIL, may_end=MAY_END)
    assert flood.refused_s
    assert flood.goodput > 0
    p99 = milliseconds(percentile(flood.refused_s, 99))
    in_time = [run.in_time / peak for run in (with_target, without_target)]
    return Figures(
        "overload, ten times what it can do",
        f"{SECONDS[scale]} s, {len(records):,} requests",
        [
            f"goodput {flood.goodput / peak:.0%} of the peak",
            f"{len(flood.refused_s):,} refused, p99 {p99}",
            f"at twice what it can do, answers that begin within {TARGET_S} s: {in_time[0]:.0%} of"
            f" the peak where the server knows it, {in_time[1]:.0%} where not",
        ],
    )


async def at_peak(lab, stub, history, seconds):
    """Answer per second with as many callers as rows and a few behind them."""
    until = time.monotonic() + seconds
    num = 0

    async def caller(draw):
        nonlocal num
        while time.monotonic() < until:
            history.note(await lab.traffic.one(stub, draw_spec(draw)))
            num += time.monotonic() < until

    await asyncio.gather(*(caller(random.Random(i)) for i in range(2 * ROWS)))
    return num / seconds


class Flood(NamedTuple):
    """What an open loop gave: answers per second, those that began in time, seconds to refusals."""

    goodput: float
    in_time: float
    refused_s: list


async def flooded(lab, stub, history, seconds, rate, **fields):
    """An open loop of requests with these fields."""
    draw = random.Random(1)
    began = time.monotonic()
    ended_at, in_time, refused_s, calls = [], [], [], []

    async def call(spec):
        sent = time.monotonic()
        record = await lab.traffic.one(stub, spec, **fields)
        history.note(record)
        if record.status == "OK":
            ended_at.append(time.monotonic() - began)
            in_time.extend(ended_at[-1:] if record.first_s < TARGET_S else [])
        elif record.reason in REFUSALS:
            refused_s.append(time.monotonic() - sent)

    due = began
    while due < began + seconds:
        due += draw.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        calls.append(asyncio.create_task(call(draw_spec(draw))))
        lab.progress(f"overload: {len(calls):,} requests")
    await asyncio.gather(*calls)
    ended, timely = (sum(at < seconds for at in times) / seconds for times in (ended_at, in_time))
    return Flood(ended, timely, refused_s)


def draw_spec(draw):
    return Spec("r", draw.randrange(16), TOKENS)
