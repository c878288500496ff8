"""Constraints that ask for more time, memory or stack than there is, beside another tenant."""

import asyncio
import itertools
import json
import time
from contextlib import suppress

import grpc
from chairlift.v1 import generation_pb2 as pb

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside, in_words
from tests.chaos.malformed import GENERATE_ONE, end_of
from tests.chaos.served import Setup
from tests.engine.test_hostile_constraints import HOSTILE, MAY_PASS
from tests.server.connection import start

ROUNDS = {Scale.QUICK: 1, Scale.MEDIUM: 4, Scale.LONG: 60}
AT_ONCE = 8
MAX_GAP_S = 0.25
"""Of the good client, between two messages of tokens."""
MAX_ANSWER_S = 1.0
"""Of another tenant's constrained request."""
MAX_DRAIN_S = 5.0

FINE, REFUSED = ("OK", ""), ("INVALID_ARGUMENT", "BAD_PARAMETER")
TOO_COMPLEX = ("INVALID_ARGUMENT", "CONSTRAINT_TOO_COMPLEX")
"""It compiled, and exceeds the bounds of a mask."""
BUSY = {("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"), ("UNAVAILABLE", "ENGINE_BUSY")}
BUSY |= {("DEADLINE_EXCEEDED", "QUEUE_TIMEOUT")}
"""What a tenant gets that sends more than its share."""
QUICK = ("remainders", "two remainders", "references and levels", "rules", "many references")
SLOW = HOSTILE["two remainders"]
"""It takes all the time that there is."""
TENANTS = {"trust_tenant_metadata": True}


async def run(scale, lab):
    server = await lab.server(server=TENANTS, **PACED)
    is_done = asyncio.Event()
    names = QUICK if scale is Scale.QUICK else [*HOSTILE, *MAY_PASS]
    before = await server.inside("figures")

    async def storm():
        attacks = asyncio.create_task(attack(server, names, ROUNDS[scale], lab))
        attacks.add_done_callback(lambda _: is_done.set())
        waits_s = await other_tenant(server, is_done)
        await attacks
        return waits_s

    storming = asyncio.ensure_future(storm())
    (alone,), (during,) = await beside(lab, server, storming)
    waits_s = storming.result()
    await server.until_idle()
    after = await server.inside("figures")
    drained_s = await drain(lab)
    if scale is not Scale.QUICK:
        assert during.worst_gap_s < MAX_GAP_S, during
        assert max(waits_s) < MAX_ANSWER_S, max(waits_s)
        assert drained_s < MAX_DRAIN_S, drained_s
    return Figures(
        "hostile constraints",
        f"{ROUNDS[scale]} x {len(names)} constraints, {AT_ONCE} at once",
        [
            "all refused by their field, or answered",
            f"another tenant's {len(waits_s)} constrained requests answered within"
            f" {max(waits_s) * 1e3:.0f} ms",
            f"SIGTERM amid them: exit code 0 after {drained_s:.1f} s",
            in_words(alone, during, "alone"),
            f"memory {(after['memory'] - before['memory']) / 2**20:+.1f} MiB",
        ],
    )


def message(kind, text, max_tokens=2):
    """A request with a constraint."""
    limits = pb.Constraint(**{kind: text})
    command = start("c", max_tokens=max_tokens, constraint=limits)
    return pb.GenerateOneRequest(start=command.start).SerializeToString()


async def attack(server, names, num_rounds, lab):
    """Send every hostile constraint, some at once, and leave some of the calls."""
    places = asyncio.Semaphore(AT_ONCE)

    numbers = itertools.count()

    async def send(channel, name, timeout=None):
        kind, text = HOSTILE[name] if name in HOSTILE else MAY_PASS[name]
        # A text of its own: what was refused or compiled before would cost nothing.
        own = f"|{next(numbers)}" if kind == "regex" else "\n" * next(numbers)
        async with places:
            call = channel.unary_stream(GENERATE_ONE)(
                message(kind, text + own), metadata=[("chairlift-tenant", "hog")], timeout=timeout
            )
            status = await end_of(call)
        left = ("DEADLINE_EXCEEDED", "")
        expected = {REFUSED, *BUSY} | ({left} if timeout else set())
        expected |= {FINE, TOO_COMPLEX} if name in MAY_PASS else set()
        assert status in expected, (name, status)

    async with server.channel() as channel:
        for i in range(num_rounds):
            sent = [send(channel, name) for name in names]
            # Clients that leave while their constraint is compiled.
            sent += [send(channel, "two remainders", 0.1) for _ in range(AT_ONCE)]
            await asyncio.gather(*sent)
            lab.progress(f"hostile constraints: {i + 1} rounds")


async def other_tenant(server, is_done):
    """Send a new schema, again and again; return the seconds of each answer."""
    waits_s = []
    async with server.channel() as channel:
        while not is_done.is_set() or not waits_s:
            values = {"enum": [f"{len(waits_s)}up", f"{len(waits_s)}down"]}
            began = time.monotonic()
            call = channel.unary_stream(GENERATE_ONE)(
                message("json_schema", json.dumps(values)),
                metadata=[("chairlift-tenant", "other")],
            )
            assert await end_of(call) == FINE
            waits_s.append(time.monotonic() - began)
            await asyncio.sleep(0.02)
    return waits_s


async def drain(lab):
    """End a server that compiles; return the seconds that it takes."""
    server = await lab.start(Setup(server={"drain_grace_s": 30.0, **TENANTS}))
    async with server.channel() as channel:
        calls = [
            asyncio.create_task(end_of(channel.unary_stream(GENERATE_ONE)(message(*SLOW))))
            for _ in range(AT_ONCE)
        ]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        server.signal()
        assert await server.exit_code() == 0
        drained_s = time.monotonic() - began
        with suppress(grpc.aio.AioRpcError):
            await asyncio.gather(*calls)
    return drained_s
