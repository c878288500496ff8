"""Prefill apart from decode, with windows and with states: two servers give the tokens of one."""

import asyncio

import pytest
from chairlift.server.transfer import shared_memory, wire
from chairlift.v1 import transfer_pb2 as pb
from chairlift.v1 import transfer_pb2_grpc

from tests.engine import tiny_model
from tests.server.connection import start, until

pytestmark = pytest.mark.usefixtures("long_is_worth_it")
LONG = [(7 * place) % 120 + 3 for place in range(170)]
NUM_TOKENS = (len(LONG) - 1) // 16 * 16


MODELS = {
    "gemma3": "gemma3, windows, two ropes",
    "mistral": "mistral, window",
    "falcon-h1": "falcon h1, multipliers, tied",
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def folder(request, tmp_path):
    """Return the folder of a model: windows in some of its layers, or in all, or states."""
    tiny_model.write_family(tmp_path / "model", request.param)
    return tmp_path / "model"


@pytest.fixture
def prefill(serve, folder, tmp_path):
    """Serve the model with the role prefill, on a socket of its own."""
    listen = f"unix:{tmp_path}/prefill.sock"
    return lambda: serve(server={"role": "prefill"}, listen=listen, model=folder)


@pytest.fixture
def decode_of(serve, folder):
    """Serve the model with the role decode, before the prefill server at this address."""

    def run(address, **server):
        server = {"role": "decode", "prefill_peers": (address,), **server}
        return serve(server=server, model=folder)

    return run


async def answer(serving, prompt=LONG):
    received = await serving.say(start(prompt=prompt))
    return received.tokens("a"), received.end("a")


async def test_prompts_are_computed_by_the_prefill_server_alone(serve, folder, prefill, decode_of):
    prompts = [LONG, *([*LONG[:90], *range(number, 75 + number)] for number in range(3, 8))]
    async with serve(model=folder) as alone:
        expected = [(await answer(alone, prompt))[0] for prompt in prompts]
    async with prefill() as source, decode_of(source.address, strict_roles=True) as serving:
        answers = await asyncio.gather(*(answer(serving, prompt) for prompt in prompts))
        assert [tokens for tokens, _ in answers] == expected
        usages = [end.finished.usage for _, end in answers]
        assert {usage.cached_tokens for usage in usages} == {NUM_TOKENS}
        assert all(usage.transferred_tokens > 0 for usage in usages), usages
        _, end = await answer(serving, [9, *LONG[1:]])
        assert end.finished.usage.transferred_tokens == NUM_TOKENS
        sample = source.server.metrics.registry.get_sample_value
        num_sent = sample("chairlift_transfer_sent_blocks_total")
        assert sample("chairlift_transfer_shared_blocks_total") == num_sent > 0
        await serving.until_idle()
        await source.until_idle()


@pytest.mark.parametrize(("kind", "max_bytes"), [("shared_checksum", 2**20), ("checksum", 0)])
async def test_damaged_blocks_are_not_used(
    serve, folder, prefill, decode_of, monkeypatch, kind, max_bytes
):
    async with serve(model=folder) as alone:
        expected, _ = await answer(alone)
    monkeypatch.setattr(shared_memory, "MAX_SLOT_BYTES", max_bytes)
    async with prefill() as source, decode_of(source.address) as serving:
        monkeypatch.setattr(wire, kind, lambda data: len(data) + id(data) % 7919)
        tokens, end = await answer(serving)
        assert tokens == expected
        assert end.finished.usage.transferred_tokens == 0
        await serving.until_idle()


async def test_cancelled_calls_leave_nothing(prefill):
    async with prefill() as source:
        stub = transfer_pb2_grpc.TransferServiceStub(source.channel)
        exporting = source.server._transfers.exporting
        for num_read in range(5):
            prompt = [3 + num_read, *LONG]
            call = stub.Prefill(pb.PrefillRequest(layout=exporting.layout, token_ids=prompt))
            for _ in range(num_read):
                await call.read()
            call.cancel()
        await source.until_idle()
        await until(lambda: exporting.num_held_bytes == 0)
