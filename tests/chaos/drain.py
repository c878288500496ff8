"""SIGTERM under full load: running requests end whole, waiting ones fail, none is lost."""

import asyncio
import time
from contextlib import suppress

from tests.chaos.figures import Figures, Scale
from tests.chaos.history import History
from tests.chaos.served import Setup
from tests.chaos.traffic import ENDED, Spec

CYCLES = {Scale.QUICK: 5, Scale.MEDIUM: 10, Scale.LONG: 200}
STREAMS = 6
REQUESTS = 4
MAY_FAIL = {"DRAINING"}
# A call that reaches gRPC while it closes its port is cancelled by gRPC itself.
MAY_END = {("UNAVAILABLE", "DRAINING"), ("UNAVAILABLE", ""), ("CANCELLED", "")}


async def run(scale, lab):
    await lab.server()
    history = History(lab.scratch / "drain.jsonl")
    drained_s = []
    for cycle in range(CYCLES[scale]):
        drained_s.append(await drain(lab, history, cycle))
        lab.progress(f"drain: {cycle + 1} servers")
    records = history.check(lab.traffic.answers, may_fail=MAY_FAIL, may_end=MAY_END)
    whole = sum(record.end == "LENGTH" for record in records)
    num_refused = sum(record.end == "DRAINING" for record in records)
    # Every request that was accepted has its end.
    assert not [r for r in records if "accepted" in r.kinds and not r.lasts]
    assert whole > 0
    assert num_refused > 0
    return Figures(
        "drain under load",
        f"{CYCLES[scale]} servers, {len(records):,} requests",
        [
            f"0 lost: {whole:,} answered whole, {num_refused:,} refused as DRAINING",
            f"exit code 0 after {max(drained_s):.1f} s at most",
        ],
    )


async def drain(lab, history, cycle):
    """One server; seconds from the signal to its end."""
    setup = Setup(server={"drain_grace_s": 30.0}, step_s=0.005)
    server = await lab.start(setup)
    running = asyncio.Event()

    async def stream(number):
        async def disturb(call, records):
            while not any(record.tokens for record in records.values()):
                await asyncio.sleep(0.001)
            running.set()

        specs = [Spec(f"r{i}", (number + i) % 16, 40 + 20 * i) for i in range(REQUESTS)]
        async with server.stub() as stub:
            history.note(*await lab.traffic.converse(stub, specs, disturb=disturb))

    async def late():
        await running.wait()
        async with server.stub() as stub:
            for _ in range(20):
                with suppress(*ENDED):
                    history.note(await lab.traffic.one(stub, Spec("late", cycle % 16, 5)))

    work = asyncio.gather(late(), *(stream(i) for i in range(STREAMS)))
    await running.wait()
    server.signal()
    began = time.monotonic()
    await work
    assert await server.exit_code() == 0
    return time.monotonic() - began
