"""Messages that clients do not finish: bounded in number and in time, and others are served."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest
from chairlift.server.limits import receiving
from chairlift.server.ops import memory
from chairlift.server.ops.memory import resident_bytes
from chairlift.v1 import generation_pb2 as pb

from tests.server.connection import Status, next_event, start
from tests.server.raw_http2 import GENERATE, GENERATE_ONE, message, raw_client

LENGTH = 4096
FEW = {"max_receive_bytes": LENGTH, "receive_memory_bytes": LENGTH}
"""As few streams may send at once as there ever are."""
UNFINISHED = message(b"\0" * 100, length=LENGTH)
TCP = {"listen": "127.0.0.1:0", "server": FEW}


async def test_a_single_message_that_is_not_finished_ends_its_call(serve, monkeypatch):
    monkeypatch.setattr(receiving, "MESSAGE_S", 0.05)
    async with serve(**TCP) as server, raw_client(server.address) as client:
        idle = server.generation.Generate()
        stream = client.begin(GENERATE_ONE)
        await client.send(stream, UNFINISHED)
        await client.until(lambda: stream in client.ended)
        await idle.write(start("late"))
        await next_event(idle, "finished")
        idle.cancel()
        assert (await server.say(start("a"))).end("a").HasField("finished")


@pytest.mark.parametrize("path", [GENERATE, GENERATE_ONE])
async def test_unfinished_messages_make_room_for_other_clients(serve, path):
    async with serve(**TCP) as server, raw_client(server.address) as client:
        streams = [client.begin(path) for _ in range(64)]
        for stream in streams:
            await client.send(stream, UNFINISHED)
        # A connection has a share of all, so that calls beyond are refused at once.
        await client.until(lambda: len(client.ended) >= 64 - 13)
        for name in "abcdef":
            assert (await server.say(start(name))).end(name).HasField("finished")
            assert (await server.one(start(name))).end(name).HasField("finished")


async def test_a_stream_with_a_live_request_does_not_make_room(serve):
    async with serve(**TCP) as server, raw_client(server.address) as client:
        calls = [server.generation.Generate() for _ in range(3)]
        for call in calls:
            await call.write(start("live", max_tokens=250, credit=1))
            await next_event(call, "tokens")
        for _ in range(64):
            await client.send(client.begin(GENERATE), UNFINISHED)
        await client.until(lambda: len(client.ended) >= 40)
        for call in calls:
            await call.write(pb.GenerateRequest(credit=pb.Credit(request_id="live", tokens=1)))
            await next_event(call, "tokens")
            call.cancel()
        await server.until_idle()


async def test_a_call_without_its_message_is_an_error_of_the_caller(serve):
    async with serve() as server:
        none = server.channel.stream_unary(GENERATE_ONE)(iter(()))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await none
        status = Status.of(failed.value)
        assert status.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "expected one message, got none" in status.message


async def test_a_connection_beyond_the_most_is_closed_and_the_others_live(serve):
    settings = {"listen": "127.0.0.1:0", "server": {"max_connections": 2}}
    async with serve(**settings) as server:
        assert await server.health()
        async with raw_client(server.address), raw_client(server.address) as third:
            await third.until(lambda: third.is_gone)
            assert (await server.say(start("a"))).end("a").HasField("finished")


async def test_where_memory_grows_calls_with_unfinished_messages_end(serve, monkeypatch):
    monkeypatch.setattr(receiving, "_RELIEF_S", 0)
    monkeypatch.setattr(memory, "_GROWTH_BYTES", -1)
    async with serve(listen="127.0.0.1:0") as server, raw_client(server.address) as client:
        live = server.generation.Generate()
        await live.write(start("live", max_tokens=250))
        stream = client.begin(GENERATE)
        await client.send(stream, UNFINISHED)
        await client.until(lambda: stream in client.ended)
        await next_event(live, "finished")
        live.cancel()


async def test_what_is_freed_goes_back_to_the_system():
    blocks = [bytearray(60_000) for _ in range(2_000)]
    kept = blocks[::100]
    before = resident_bytes()
    blocks.clear()
    await asyncio.to_thread(memory.return_free_memory)
    assert kept
    assert before - resident_bytes() > 60 * 2**20


async def test_calls_that_arrive_at_once_all_get_a_status(serve):
    unary = "/chairlift.v1.ServerService/GetLoad"
    async with serve(listen="127.0.0.1:0") as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_client(server.address)) for _ in range(16)]
        for _ in range(200):
            for client in clients:
                await client.send(client.begin(unary), message(b""))
        for client in clients:
            await client.until(lambda client=client: len(client.ended) == 200)
        ends = [headers for client in clients for headers in client.ended.values()]
        assert not any(b"CANCELLED" in headers for headers in ends)
