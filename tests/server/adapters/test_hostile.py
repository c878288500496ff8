"""What no client of these protocols sends: a status for each, and a server as before."""

import random

import grpc
import pytest
from chairlift.server.protocols.stubs import open_inference_pb2 as oip
from chairlift.server.protocols.stubs import vllm_engine_pb2 as vllm

from tests.server.connection import Status, start

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
ABORT = "/vllm.grpc.engine.VllmEngine/Abort"
BAD = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


def infer(*, shape=(1,), **fields):
    message = oip.ModelInferRequest(**fields)
    text = message.inputs.add(name="text_input", datatype="BYTES", shape=shape)
    text.contents.bytes_contents.append(b"one two")
    return message


async def code_of(server, method, data):
    """Send bytes as the messages of a call; return its status, after all responses."""
    call = server.channel.stream_stream(method)(iter([data]))
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return Status.of(error).code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", [GENERATE, INFER, STREAM, ABORT])
async def test_bytes_that_are_no_message_have_a_status(others, method):
    draw = random.Random(20_261_124)
    async with others() as server:
        for _ in range(30):
            data = draw.randbytes(draw.randrange(1, 200))
            # Bytes may happen to be a message of unknown fields, which lacks its input.
            assert await code_of(server, method, data) in BAD | {grpc.StatusCode.OK}
        assert (await server.say(start("a"))).end("a").HasField("finished")
        await server.until_idle()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (GENERATE, vllm.GenerateRequest()),
        (GENERATE, vllm.GenerateRequest(text="")),
        (GENERATE, vllm.GenerateRequest(text="one " * 200_000)),
        (
            GENERATE,
            vllm.GenerateRequest(tokenized=vllm.TokenizedInput(input_ids=[1] * 900_000)),
        ),
        (ABORT, vllm.AbortRequest(request_ids=[""] * 100_000)),
        (INFER, oip.ModelInferRequest()),
        (INFER, oip.ModelInferRequest(raw_input_contents=[b""] * 100_000)),
        (INFER, infer(outputs=[{"name": "text_output"}] * 65)),
        (INFER, infer(shape=[1] * 500_000)),
    ],
)
async def test_the_empty_and_the_largest_messages_are_refused(others, method, message):
    async with others() as server:
        assert await code_of(server, method, message.SerializeToString()) in BAD
        assert (await server.say(start("a"))).end("a").HasField("finished")
        await server.until_idle()
