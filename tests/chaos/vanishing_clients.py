"""Clients that are killed, and clients whose network goes dark: their requests end without them."""

import time
from contextlib import AsyncExitStack

import grpc
from chairlift.v1 import generation_pb2_grpc

from tests.chaos import client
from tests.chaos.black_hole import BlackHole
from tests.chaos.figures import Figures, Scale
from tests.chaos.pipes import end, next_message
from tests.server.connection import next_event, start

KILLED = {Scale.QUICK: 50, Scale.MEDIUM: 100, Scale.LONG: 1_000}
DARK = {Scale.QUICK: 5, Scale.MEDIUM: 10, Scale.LONG: 50}
AT_ONCE = 50
REQUESTS = 2

# A request takes 10 s and more, or a hundred: it is there when its client vanishes.
QUICK = {"step_s": 0.05, "keepalive_s": 1}
REAL = {"step_s": 0.5}


async def run(scale, lab):
    await lab.server()
    setup = QUICK if scale is Scale.QUICK else REAL
    server = await lab.server(engine={"max_num_seqs": 128, "max_num_batched_tokens": 256}, **setup)
    freed_s = []
    num_killed = 0
    while num_killed < KILLED[scale]:
        num = min(AT_ONCE, KILLED[scale] - num_killed)
        freed_s.append(await kill(lab, server, num))
        num_killed += num
        lab.progress(f"vanishing clients: {num_killed} killed")
    dark_s = await go_dark(server, DARK[scale])
    return Figures(
        "clients that vanish",
        f"{num_killed:,} processes killed, {DARK[scale]} connections gone dark",
        [
            f"killed: all blocks free after {max(freed_s):.1f} s at most",
            f"dark: after {dark_s:.0f} s",
        ],
    )


async def kill(lab, server, num):
    """Kills so many clients amid their streams; seconds until the server has forgotten them."""
    before = (await server.inside("figures"))["cancels"]
    clients = [lab.client(client.stream, server.address, REQUESTS) for _ in range(num)]
    for _, pipe in clients:
        assert await next_message(pipe) == "streaming"
    began = time.monotonic()
    for process, pipe in clients:
        process.kill()
        pipe.close()
    await server.until_idle()
    freed_s = time.monotonic() - began
    for process, _ in clients:
        await end(process)
    # They were cancelled, and had not just ended.
    num_cancels = (await server.inside("figures"))["cancels"] - before
    assert num_cancels == num * REQUESTS
    return freed_s


async def go_dark(server, num):
    """Streams over connections that carry nothing any more and are never closed."""
    before = (await server.inside("figures"))["cancels"]
    async with AsyncExitStack() as stack:
        hole = await stack.enter_async_context(BlackHole.before(server.address))
        for _ in range(num):
            options = (("grpc.use_local_subchannel_pool", 1),)
            channel = grpc.aio.insecure_channel(hole.address, options=options)
            await stack.enter_async_context(channel)
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
            for i in range(REQUESTS):
                await call.write(start(f"r{i}", max_tokens=250))
            await next_event(call, "accepted")
        hole.go_dark()
        began = time.monotonic()
        await server.until_idle()
        dark_s = time.monotonic() - began
    num_cancels = (await server.inside("figures"))["cancels"] - before
    assert num_cancels == num * REQUESTS
    return dark_s
