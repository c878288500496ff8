"""Texts as long as a message may be, and longer: to be tokenized, or refused."""

import asyncio

from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import tokenizer_pb2, tokenizer_pb2_grpc

from tests.chaos.figures import Figures, Scale
from tests.chaos.good_client import PACED, beside_one
from tests.chaos.malformed import GENERATE_ONE, TOO_LARGE, end_of
from tests.server.connection import start, status_of

ROUNDS = {Scale.QUICK: 1, Scale.MEDIUM: 10, Scale.LONG: 200}
AT_ONCE = 16
LONG = "one lift up, two chairs down " * 36_000
"""Almost the largest message."""
TOO_LONG = "a" * (4 * 2**20)

FULL = ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
"""The texts of a tenant that wait are bounded."""
LATE = ("DEADLINE_EXCEEDED", "QUEUE_TIMEOUT")
"""They wait no longer than any other request: a busy machine does not come to all of them."""
REFUSED = ("INVALID_ARGUMENT", "PROMPT_TOO_LONG")


async def run(scale, lab):
    # A step that waited for the interpreter so long would end the process.
    server = await lab.server(server={"step_timeout_s": 5.0}, **PACED)

    async def flood():
        async with server.channel(max_receive_message_length=-1) as channel:
            for i in range(ROUNDS[scale]):
                await asyncio.gather(
                    *(tokenize(channel) for _ in range(AT_ONCE)),
                    *(refused(channel, truncated=i % 2 == 0) for i in range(4)),
                    too_large(channel),
                )
                lab.progress(f"tokenize flood: {i} rounds")

    good = await beside_one(lab, server, flood())
    await server.until_idle()
    return Figures(
        "tokenize flood",
        f"{ROUNDS[scale]} x {AT_ONCE} texts of 1 MB at once, 4 refused ones and one of 4 MiB",
        [good],
    )


async def tokenize(channel):
    stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
    status = await status_of(stub.Tokenize(tokenizer_pb2.TokenizeRequest(text=LONG)))
    assert (status.code.name, status.reason) in {("OK", ""), FULL, LATE}, status


async def refused(channel, *, truncated):
    """A prompt far beyond the context; where it is to be cut, it is tokenized first."""
    fields = {"truncate_prompt": 300} if truncated else {}
    command = start("long", prompt=LONG, **fields)
    message = pb.GenerateOneRequest(start=command.start).SerializeToString()
    status = await end_of(channel.unary_stream(GENERATE_ONE)(message))
    assert status == REFUSED or (truncated and status in {FULL, LATE}), status


async def too_large(channel):
    stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
    status = await status_of(stub.Tokenize(tokenizer_pb2.TokenizeRequest(text=TOO_LONG)))
    assert (status.code.name, status.reason) in TOO_LARGE, status
