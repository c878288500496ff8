"""Bytes that are no message: INVALID_ARGUMENT for their own call, nothing for the others."""

import grpc
import pytest

from tests.server.connection import Status, next_event, receive, start, status_of

GENERATE = "/chairlift.v1.GenerationService/Generate"
GENERATE_ONE = "/chairlift.v1.GenerationService/GenerateOne"
GET_LOAD = "/chairlift.v1.ServerService/GetLoad"

WHOLE = start("a", prompt="a lift").SerializeToString()
BROKEN = {
    "truncated": WHOLE[:-3],
    # Field 1 (start) of 4 bytes: field 1 (request_id) of 2 bytes, which are not UTF-8.
    "not utf-8": bytes([0x0A, 4, 0x0A, 2, 0xC3, 0x28]),
    "wild": bytes([0xFF] * 20),
    "endless nesting": bytes([0x0B]) * 500,
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
async def test_a_broken_message_ends_its_stream_with_invalid_argument(serve, data):
    async with serve() as server:
        other = server.generation.Generate()
        await other.write(start("other", max_tokens=200))
        await next_event(other, "tokens")

        raw = server.channel.stream_stream(GENERATE)
        received = await listen_raw(
            raw(iter([start("a", max_tokens=250).SerializeToString(), data]))
        )
        assert received.code is grpc.StatusCode.INVALID_ARGUMENT
        assert received.reason == "BAD_PARAMETER"

        await other.done_writing()
        assert (await receive(other)).end("other").HasField("finished")
        await server.until_idle()


async def test_a_broken_request_of_one_message_is_invalid_argument(serve):
    data = bytes([0x0A, 9, 0x0A])
    async with serve() as server:
        one = await listen_raw(server.channel.unary_stream(GENERATE_ONE)(data))
        load = await status_of(server.channel.unary_unary(GET_LOAD)(data))
        assert one.code is load.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_over_the_limit_is_resource_exhausted(serve):
    async with serve(server={"max_receive_bytes": 4096}) as server:
        received = await server.say(start("a", prompt="x" * 5000))
        assert received.status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await server.say(start("b"))).end("b").HasField("finished")


async def test_an_unknown_method_is_unimplemented(serve):
    async with serve() as server:
        nothing = server.channel.unary_unary("/chairlift.v1.GenerationService/Nothing")
        assert (await status_of(nothing(b""))).code is grpc.StatusCode.UNIMPLEMENTED


async def listen_raw(call):
    """The status of a stream of bytes."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return Status.of(error)
    return Status()
