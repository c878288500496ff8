"""kill -9 of a server under load, and another in its place: clients try again and finish."""

import asyncio
import random
import socket
import time
from contextlib import closing

import grpc
from chairlift.v1 import generation_pb2_grpc

from tests.chaos.figures import Figures, Scale
from tests.chaos.history import History
from tests.chaos.traffic import Spec

CYCLES = {Scale.QUICK: 3, Scale.MEDIUM: 8, Scale.LONG: 100}
CLIENTS = 6
MAY_END = {("UNAVAILABLE", ""), ("UNAVAILABLE", "STARTING"), ("CANCELLED", "")}


async def run(scale, lab):
    await lab.server()
    history = History(lab.scratch / "kill.jsonl")
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    path = lab.scratch / "lift.sock"
    restart_s, num_retries = [], 0
    for address in (f"127.0.0.1:{port}", f"unix:{path}"):
        stop = asyncio.Event()
        server = await lab.start(address=address)
        clients = [
            asyncio.create_task(client(lab, address, history, random.Random(i), stop))
            for i in range(CLIENTS)
        ]
        for cycle in range(CYCLES[scale]):
            async with server.stub() as stub:
                await lab.traffic.one(stub, Spec("first", 0, 5))
            server.signal(9)
            assert await server.exit_code() == 137
            began = time.monotonic()
            server = await lab.start(address=address)
            restart_s.append(time.monotonic() - began)
            lab.progress(f"kill -9: {cycle + 1} times on {address}")
        stop.set()
        num_retries += sum(await asyncio.gather(*clients))
        await server.until_idle()
        server.signal()
        assert await server.exit_code() == 0
    assert not path.exists()
    assert num_retries > 0
    records = history.check(lab.traffic.answers, may_end=MAY_END)
    return Figures(
        "kill -9 of the server",
        f"{len(restart_s)} times, on a port and on a Unix socket",
        [
            f"serving again {max(restart_s):.1f} s after its start at most",
            f"{len(records):,} requests, {num_retries:,} tried again, all finished",
        ],
    )


async def client(lab, address, history, draw, stop):
    """Send each request until it is answered; return how often it had to be sent again."""
    num_retries = 0
    async with grpc.aio.insecure_channel(
        address,
        options=(
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
        ),
    ) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        while not stop.is_set():
            spec = lab.traffic.draw(draw, "r")
            while True:
                record = await lab.traffic.one(stub, spec)
                history.note(record)
                if record.status == "OK":
                    break
                num_retries += 1
                await asyncio.sleep(0.02)
    return num_retries
