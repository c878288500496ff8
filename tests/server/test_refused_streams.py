"""A client that is still writing when its call is refused learns why (grpc/grpc#36066)."""

import asyncio

import grpc
import pytest

from tests.server.connection import Status, start

Code = grpc.StatusCode


async def two_at_once(server, **call):
    """The status of a call whose client writes two messages and never half-closes."""
    stream = server.generation.Generate(**call)
    try:
        await stream.write(start("a"))
        await stream.write(start("b"))
        assert await stream.read() is grpc.aio.EOF
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        # Whichever of the three meets the end of the call.
        pass
    code, details = await stream.code(), await stream.details()
    return Status.of(
        grpc.aio.AioRpcError(
            code, await stream.initial_metadata(), await stream.trailing_metadata(), details
        )
    )


async def refusals(server, **call):
    """Forty calls, four at a time, so that writes and statuses meet in many ways."""
    statuses = []
    for _ in range(10):
        statuses += await asyncio.gather(*(two_at_once(server, **call) for _ in range(4)))
    return {(status.code, status.reason) for status in statuses}


async def test_while_the_model_loads(serve):
    seen = {}

    async def look(server):
        seen["while loading"] = await refusals(server)

    async with serve(before_load=look):
        assert seen["while loading"] == {(Code.UNAVAILABLE, "STARTING")}


async def test_while_the_server_drains(serve):
    async with serve() as server:
        server.server.gate.drain()
        assert await refusals(server) == {(Code.UNAVAILABLE, "DRAINING")}


async def test_without_a_token(serve, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("ann:ann-0123456789abcdef\n")
    async with serve(server={"auth_tokens": str(tokens)}) as server:
        assert await refusals(server) == {(Code.UNAUTHENTICATED, "UNAUTHENTICATED")}
        metadata = (("authorization", "Bearer wrong"),)
        assert await refusals(server, metadata=metadata) == {
            (Code.UNAUTHENTICATED, "UNAUTHENTICATED")
        }


@pytest.mark.parametrize("num_messages", [2, 200])
async def test_after_a_message_that_cannot_be_decoded(serve, num_messages):
    async with serve() as server:
        raw = server.channel.stream_stream("/chairlift.v1.GenerationService/Generate")
        for _ in range(10):
            stream = raw()
            try:
                for _ in range(num_messages):
                    await stream.write(b"\xff" * 20)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            assert await stream.code() is Code.INVALID_ARGUMENT
