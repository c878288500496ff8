"""Ten times as many requests as the server can answer."""

import asyncio
import random
import time

from tests.chaos.figures import Figures, Scale, milliseconds, percentile
from tests.chaos.history import History
from tests.chaos.traffic import Ask

SECONDS = {Scale.QUICK: 2, Scale.MEDIUM: 20, Scale.LONG: 600}
ROWS, TOKENS, STEP_S = 8, 20, 0.02
# Slow steps: the server's order of work is measured, not the speed of the clients beside it.
SETUP = {
    "engine": {"max_num_seqs": ROWS, "max_num_batched_tokens": 512, "max_queued_requests": 32},
    "step_s": STEP_S,
}
MAY_FAIL = {"QUEUE_FULL", "QUEUE_TIMEOUT"}
MAY_END = {("RESOURCE_EXHAUSTED", "QUEUE_FULL"), ("DEADLINE_EXCEEDED", "QUEUE_TIMEOUT")}


async def run(scale, lab):
    await lab.server()
    server = await lab.server(**SETUP)
    history = History(lab.scratch / "overload.jsonl")
    async with server.stub() as stub:
        peak = await at_peak(lab, stub, history, SECONDS[scale])
        goodput, refused_s = await flooded(lab, stub, history, SECONDS[scale], 10 * peak)
    await server.until_idle()
    records = history.check(lab.traffic.answers, may_fail=MAY_FAIL, may_end=MAY_END)
    assert refused_s
    assert goodput > 0
    return Figures(
        "overload, ten times what it can do",
        f"{SECONDS[scale]} s, {len(records):,} requests",
        [
            f"goodput {goodput / peak:.0%} of the peak",
            f"{len(refused_s):,} refused, p99 {milliseconds(percentile(refused_s, 99))}",
        ],
    )


async def at_peak(lab, stub, history, seconds):
    """Answers per second with as many callers as rows and a few behind them."""
    until = time.monotonic() + seconds
    num = 0

    async def caller(draw):
        nonlocal num
        while time.monotonic() < until:
            history.note(await lab.traffic.one(stub, ask(draw)))
            num += time.monotonic() < until

    await asyncio.gather(*(caller(random.Random(i)) for i in range(2 * ROWS)))
    return num / seconds


async def flooded(lab, stub, history, seconds, rate):
    """Answers per second of an open loop, and how long each refusal took."""
    draw = random.Random(1)
    began = time.monotonic()
    ended_at, refused_s, calls = [], [], []

    async def call(ask):
        sent = time.monotonic()
        record = await lab.traffic.one(stub, ask)
        history.note(record)
        if record.status == "OK":
            ended_at.append(time.monotonic() - began)
        elif record.reason == "QUEUE_FULL":
            refused_s.append(time.monotonic() - sent)

    due = began
    while due < began + seconds:
        due += draw.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        calls.append(asyncio.create_task(call(ask(draw))))
        lab.tell(f"overload: {len(calls):,} requests")
    await asyncio.gather(*calls)
    return sum(at < seconds for at in ended_at) / seconds, refused_s


def ask(draw):
    return Ask("r", draw.randrange(16), TOKENS)
