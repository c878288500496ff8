"""A client that does not read delays no other client."""

import asyncio

import grpc
import pytest
from chairlift.server.calls import outbox
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc, server_pb2

from tests.server.connection import Status, cancel, receive, start

ALL = pb.Output(token_ids=True, logprobs=0)

# The receiver owns the window: with the smallest, a server is held up after about 64 KiB.
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535))


async def flood(call, num):
    """Send commands that are each answered by a refusal, until the stream takes no more."""
    wrong = pb.GenerateRequest(update=pb.Update(request_id="x" * 128))
    for _ in range(num):
        await call.write(wrong)


async def read_to_end(call):
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_client_that_never_reads_is_ended_and_its_requests_freed(serve):
    async with serve(server={"write_timeout_s": 0.2}) as server:
        channel = grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW)
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate()
        await call.write(start("a", max_tokens=250))
        sending = asyncio.create_task(flood(call, 20_000))
        # The server stops reading, so the client cannot send all of it.
        await server.until_idle()
        assert not sending.done()
        # Others are served meanwhile.
        assert (await server.say(start("b"))).end("b").HasField("finished")
        sending.cancel()
        call.cancel()
        await channel.close()


async def test_a_call_whose_first_message_is_not_taken_in_time_has_a_status(serve):
    async with serve(server={"write_timeout_s": 1e-9}) as server:
        calls = [
            server.generation.Generate(iter([start("a")])),
            server.generation.GenerateOne(pb.GenerateOneRequest(start=start("b").start)),
            server.info.WatchLoad(server_pb2.WatchLoadRequest()),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await read_to_end(call)
            status = Status.of(failed.value)
            assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert status.reason == "SLOW_READER"
        await server.until_idle()


async def test_a_client_that_reads_late_gets_everything_in_fewer_events(serve):
    async with serve() as server:
        channel = grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW)
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate()
        for i in range(64):
            await call.write(start(f"r{i}", max_tokens=150))
        await call.write(cancel("r0"))
        await call.done_writing()
        await server.until_load(lambda load: not (load.num_running or load.num_waiting))
        received = await receive(call)
        for i in range(1, 64):
            assert len(received.tokens(f"r{i}")) == 150
            assert received.end(f"r{i}").HasField("finished")
        assert len(received.events) < 64 * 150
        await channel.close()


async def test_requests_of_a_full_stream_are_suspended_until_it_is_read(serve, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_TOKEN_BYTES", 1024)
    async with serve(max_num_seqs=64, max_num_batched_tokens=256) as server:
        channel = grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW)
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate()
        # Far more than the windows of gRPC hold.
        for i in range(256):
            await call.write(start(f"r{i}", max_tokens=200, output=ALL))
        await call.done_writing()
        await server.until_load(lambda load: load.num_running_suspended)
        # Other requests may have the rows meanwhile.
        alone = (await server.say(start("b"))).tokens("b")
        assert len(alone) == 8
        received = await receive(call)
        for i in range(256):
            assert len(received.tokens(f"r{i}")) == 200
            assert received.end(f"r{i}").HasField("finished")
        assert len({tuple(received.tokens(f"r{i}")) for i in range(256)}) == 1
        await channel.close()


async def test_a_full_stream_that_breaks_frees_its_requests(serve, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_TOKEN_BYTES", 1024)
    async with serve(max_num_seqs=64, max_num_batched_tokens=256) as server:
        channel = grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW)
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate()
        for i in range(256):
            await call.write(start(f"r{i}", max_tokens=200, output=ALL))
        await server.until_load(lambda load: load.num_running_suspended)
        call.cancel()
        await server.until_idle()
        await channel.close()
