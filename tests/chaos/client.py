"""Clients in processes of their own, to be killed."""

import asyncio

import grpc
from chairlift.v1 import generation_pb2_grpc

from tests.server.connection import next_event, start


def stream(address, num_requests, pipe):
    """Start requests, report when all run, and then read until the process is killed."""
    asyncio.run(_stream(address, num_requests, pipe))


async def _stream(address, num_requests, pipe):
    async with grpc.aio.insecure_channel(address) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        for i in range(num_requests):
            await call.write(start(f"r{i}", max_tokens=250))
        events = await next_event(call, "accepted")
        while sum(event.HasField("accepted") for event in events) < num_requests:
            events += await next_event(call, "accepted")
        pipe.send("streaming")
        while await call.read() is not grpc.aio.EOF:
            pass
