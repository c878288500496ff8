"""Requests cancelled at random moments, in every way there is."""

import asyncio
import random

from tests.chaos.figures import Figures, Scale
from tests.chaos.history import History
from tests.chaos.traffic import Spec, cancel_all

REQUESTS = {Scale.QUICK: 1_000, Scale.MEDIUM: 5_000, Scale.LONG: 100_000}
CALLERS = 20
MAY_END = {("DEADLINE_EXCEEDED", ""), ("CANCELLED", ""), ("client race", "")}


async def run(scale, lab):
    # A small pool: many wait, and some are preempted.
    server = await lab.server(engine={"kv_cache_memory": 204_800})
    history = History(lab.scratch / "cancels.jsonl")
    async with server.stub() as stub:
        await asyncio.gather(
            *(caller(lab, stub, history, random.Random(i), scale) for i in range(CALLERS))
        )
        for i in range(50):
            await cancelled_alone(lab, stub, history, i)
    load = await server.until_idle()
    records = history.check(
        lab.traffic.answers, may_fail={"DEADLINE_UNREACHABLE", "QUEUE_TIMEOUT"}, may_end=MAY_END
    )
    lengths = {len(record.tokens) for record in records if record.end == "CANCELLED"}
    assert min(lengths) == 0
    assert max(lengths) > 10
    assert load.num_preemptions > 0
    inside = await server.inside("figures")
    assert inside["release_steps"] <= 2
    return Figures(
        "random cancels",
        f"{len(records):,} requests",
        [
            "0 leaked blocks",
            f"freed within {inside['release_steps']} steps of the abort",
            f"{load.num_preemptions:,} preemptions",
        ],
    )


async def caller(lab, stub, history, draw, scale):
    """Make calls until its share of the requests is done."""
    ways = [by_command, by_breaking, by_breaking_early, by_deadline]
    while history.num_requests < REQUESTS[scale]:
        specs = [lab.traffic.draw(draw, f"r{i}") for i in range(draw.randrange(1, 9))]
        history.note(*await draw.choice(ways)(lab.traffic, stub, specs, draw))
        lab.progress(f"cancels: {history.num_requests:,} requests")


async def after_tokens(records, num):
    """Wait until some request has so many tokens, or all have ended."""
    while not any(len(r.tokens) >= num for r in records.values()) and not all(
        r.end for r in records.values()
    ):
        await asyncio.sleep(0.001)


async def by_command(traffic, stub, specs, draw):
    """One by one, by id; the call ends in order."""

    async def disturb(call, records):
        labels = [spec.label for spec in specs]
        for label in draw.sample(labels, len(labels)):
            await after_tokens(records, draw.choice([0, 0, 1, 5, 20]))
            await cancel_all(call, records, [label])

    return await traffic.converse(stub, specs, disturb=disturb)


async def by_breaking(traffic, stub, specs, draw):
    """By breaking the call at some token."""

    async def disturb(call, records):
        await after_tokens(records, draw.choice([0, 1, 5, 20, 80]))
        call.cancel()

    return await traffic.converse(stub, specs, disturb=disturb)


async def by_breaking_early(traffic, stub, specs, draw):
    """By breaking the call while its commands are under way."""

    async def disturb(call, records):
        call.cancel()

    return await traffic.converse(stub, specs, disturb=disturb)


async def by_deadline(traffic, stub, specs, draw):
    """By the deadline of the call."""
    return await traffic.converse(stub, specs, timeout=draw.choice([0.001, 0.01, 0.05]))


async def cancelled_alone(lab, stub, history, i):
    """Cancel a request that is alone, so that its blocks are the only ones in use."""

    async def disturb(call, records):
        await after_tokens(records, i % 5)
        await cancel_all(call, records, ["alone"])

    spec = Spec("alone", i % len(lab.traffic.prompts), 100)
    history.note(*await lab.traffic.converse(stub, [spec], disturb=disturb))
