"""A thousand requests cancelled at random moments, in every way there is."""

import asyncio
import random

import grpc
from chairlift.v1 import generation_pb2 as pb

from tests.server.talk import cancel, start

REQUESTS = 1000
CALLERS = 20


async def test_1000_random_cancels_leave_the_pool_full_and_nothing_running(serve, kv_blocks):
    # A small pool: many wait, and some are preempted.
    async with serve(kv_cache_memory=kv_blocks(24)) as server:
        server.outputs = []
        ways = [cancelled, broken, cancelled_while_sending, left_to_deadline, one_broken]
        counts = await asyncio.gather(
            *(caller(server, random.Random(seed), ways) for seed in range(CALLERS))
        )
        assert sum(counts) >= REQUESTS
        load = await server.until_idle()
        assert load.num_steps > 200
        assert load.num_preemptions > 0
        # Some were cancelled before their first token, some in the middle.
        assert min(server.outputs) == 0
        assert max(server.outputs) > 10
        heard = await server.say(start("after"))
        assert heard.end("after").HasField("finished")


async def caller(server, draw, ways):
    """Runs its share of the requests; gives how many."""
    done = 0
    while done < REQUESTS // CALLERS:
        done += await draw.choice(ways)(server, draw)
    return done


def some(draw, num):
    return [
        start(
            f"r{i}",
            prompt=[draw.randrange(390) for _ in range(draw.choice([1, 5, 16, 40, 90]))],
            max_tokens=draw.randrange(1, 120),
        )
        for i in range(num)
    ]


async def pause(server, draw):
    """Lets between none and a few dozen steps pass."""
    engine = server.server.gate.engine()
    until = engine.progress.num_steps + draw.choice([0, 1, 5, 20, 80])
    while engine.progress.num_steps < until and engine.progress.has_work:
        await asyncio.sleep(0.001)


async def cancelled(server, draw):
    """By command; every request still ends exactly once."""
    commands = some(draw, draw.randrange(1, 8))
    call = server.generation.Generate()
    for command in commands:
        await call.write(command)
    for command in draw.sample(commands, len(commands)):
        await pause(server, draw)
        await call.write(cancel(command.start.request_id))
    await call.done_writing()
    ends = {e.request_id: e async for r in call for e in r.events if e.last}
    assert sorted(ends) == sorted(command.start.request_id for command in commands)
    server.outputs += [end.finished.usage.output_tokens for end in ends.values()]
    return len(commands)


async def broken(server, draw):
    """By breaking the call."""
    commands = some(draw, draw.randrange(1, 8))
    call = server.generation.Generate()
    for command in commands:
        await call.write(command)
    await pause(server, draw)
    call.cancel()
    return len(commands)


async def cancelled_while_sending(server, draw):
    """By breaking the call while commands are still under way."""
    commands = some(draw, 8)
    call = server.generation.Generate(iter(commands))
    await pause(server, draw)
    call.cancel()
    return len(commands)


async def left_to_deadline(server, draw):
    """By the deadline of the call."""
    commands = some(draw, draw.randrange(1, 8))
    call = server.generation.Generate(iter(commands), timeout=draw.choice([0.001, 0.01, 0.05]))
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        # What the client's library makes of a deadline that meets one of its own writes varies.
        assert await call.code() is not grpc.StatusCode.OK
    return len(commands)


async def one_broken(server, draw):
    """A call of one request, broken."""
    (command,) = some(draw, 1)
    call = server.generation.GenerateOne(pb.GenerateOneRequest(start=command.start))
    await pause(server, draw)
    call.cancel()
    return 1
