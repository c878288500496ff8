"""Prompts that are sent back over gRPC, through the clients, and to a reader that is slow."""

import grpc
import pytest
from chairlift.client import connect_async
from chairlift.v1 import generation_pb2 as pb
from chairlift.v1 import generation_pb2_grpc

from tests.server.connection import receive, start
from tests.server.test_slow_reader import SMALL_WINDOW

PROMPT = tuple(range(5, 105))
ALL = pb.Output(token_ids=True, prompt_logprobs=20, echo=True)


def joined(events):
    """The prompt that its pieces make, which come before all output."""
    kinds = [event.WhichOneof("event") for event in events]
    pieces = [event.prompt for event in events if event.HasField("prompt")]
    assert kinds[1 : 1 + len(pieces)] == ["prompt"] * len(pieces)
    numbers = [event.number for event in events]
    assert numbers == sorted(set(numbers))
    whole = pb.Prompt()
    for piece in pieces:
        assert piece.offset == len(whole.token_ids)
        whole.text += piece.text
        whole.token_ids.extend(piece.token_ids)
        whole.logprobs.MergeFrom(piece.logprobs)
    return whole


async def test_it_comes_before_the_output_once_for_all_answers(serve):
    async with serve(max_num_batched_tokens=16) as server:
        sampling = pb.Sampling(temperature=0, n=2)
        received = await server.say(start(prompt=PROMPT, output=ALL, sampling=sampling))
        whole = joined(received.of("a"))
        assert tuple(whole.token_ids) == PROMPT
        assert len(whole.logprobs.logprobs) == len(whole.logprobs.ranks) == len(PROMPT) - 1
        assert whole.logprobs.num_candidates == 20
        assert len(whole.logprobs.candidate_ids) == 20 * (len(PROMPT) - 1)
        assert max(whole.logprobs.logprobs) < 0


@pytest.mark.parametrize(
    ("output", "has"),
    [
        (pb.Output(echo=True), (True, False, False)),
        (pb.Output(echo=True, token_ids=True, text=False), (False, True, False)),
        (pb.Output(prompt_logprobs=0), (False, False, True)),
    ],
)
async def test_it_has_what_is_asked_for(serve, output, has):
    async with serve() as server:
        received = await server.say(start(prompt=PROMPT, output=output))
        piece = pb.Prompt()
        for event in received.of("a"):
            piece.MergeFrom(event.prompt)
        found = bool(piece.text), bool(piece.token_ids), bool(piece.logprobs.logprobs)
        assert found == has
        assert piece.logprobs.num_candidates == 0


async def test_the_client_collects_it(serve):
    async with (
        serve(max_num_batched_tokens=16) as server,
        connect_async(server.address) as client,
    ):
        options = {"echo": True, "prompt_logprobs": 3, "token_ids": True, "max_tokens": 4}
        generation = client.generate(list(PROMPT), **options)
        text = "".join([text async for text in generation])
        assert tuple(generation.prompt.token_ids) == PROMPT
        assert len(generation.prompt.logprobs.candidate_ids) == 3 * (len(PROMPT) - 1)
        assert generation.prompt.text
        assert text == generation.answers[0].text


async def test_a_reader_that_is_slow_holds_its_prompts_back(serve):
    async with serve(max_num_batched_tokens=64) as server:
        channel = grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW)
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate()
        prompt = tuple(5 + i % 300 for i in range(240))
        for i in range(32):
            await call.write(start(f"r{i}", prompt=prompt, output=ALL, max_tokens=2))
        await call.done_writing()
        # 32 prompts are some 1.5 MB: more than the outbox and the window hold.
        await server.until_load(
            lambda load: load.num_waiting_suspended + load.num_running_suspended
        )
        received = await receive(call)
        for i in range(32):
            assert tuple(joined(received.of(f"r{i}")).token_ids) == prompt
            assert received.end(f"r{i}").HasField("finished")
        await channel.close()
        await server.until_idle()
