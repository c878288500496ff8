"""Servers with a role and a prefix store: loaded from disk, and the rest transferred."""

import pytest
from chairlift.engine import prefix_store
from chairlift.engine.transfer import imports

from tests.engine import tiny_model
from tests.engine.test_prefix_store_models import ALTERNATING, DELTA
from tests.server.connection import start

MODELS = {"plain": None, "window": ALTERNATING, "hybrid": DELTA}
FIRST = [(7 * place) % 120 + 3 for place in range(113)]
SECOND = [(5 * place) % 120 + 3 for place in range(119)]
"""What the second turn of a conversation adds."""
OTHER = [(11 * place) % 120 + 3 for place in range(113)]
NUM_FIRST = 112
"""Tokens of the full blocks of a first turn: as few as may be transferred."""

pytestmark = pytest.mark.usefixtures("long_is_worth_it")


@pytest.fixture(autouse=True)
def loads_are_never_late(monkeypatch):
    """A busy machine may take longer to load blocks than to compute those of a small model."""
    monkeypatch.setattr(prefix_store, "_MIN_LOAD_NS", 60 * 10**9)
    monkeypatch.setattr(imports, "_limit_ns", lambda *_: 60 * 10**9)


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request, tiny_folder, tmp_path):
    if request.param is None:
        return tiny_folder
    tiny_model.write_family(tmp_path / "model", request.param)
    return tmp_path / "model"


@pytest.fixture
def prefill(serve, tmp_path):
    """Serve with the role prefill, on a socket of its own."""
    listen = f"unix:{tmp_path}/prefill.sock"
    return lambda **settings: serve(server={"role": "prefill"}, listen=listen, **settings)


@pytest.fixture
def decode(serve, tmp_path):
    """Serve with the role decode, before the server of `prefill`."""
    server = {"role": "decode", "prefill_peers": f"unix:{tmp_path}/prefill.sock"}
    return lambda **settings: serve(server={**server, "strict_roles": True}, **settings)


async def answer(serving, prompt):
    """Return the tokens of an answer and the usage of its request."""
    received = await serving.say(start(prompt=prompt))
    return received.tokens("a"), received.end("a").finished.usage


def num_loaded(serving):
    sample = serving.server.metrics.registry.get_sample_value
    return sample("chairlift_prefix_store_loaded_blocks_total")


async def test_the_second_turn_after_a_restart_is_on_disk_and_the_rest_is_transferred(
    serve, prefill, decode, model, store_settings
):
    async with serve(model=model) as alone:
        first, _ = await answer(alone, FIRST)
        turn = [*FIRST, *first, *SECOND]
        second, _ = await answer(alone, turn)
    async with prefill(model=model) as source:
        async with decode(model=model, **store_settings) as serving:
            tokens, usage = await answer(serving, FIRST)
            assert tokens == first
            assert usage.transferred_tokens == usage.cached_tokens == NUM_FIRST
            assert num_loaded(serving) == 0
            await serving.until_idle()
        async with decode(model=model, **store_settings) as serving:
            tokens, usage = await answer(serving, turn)
            assert tokens == second
            assert usage.cached_tokens == (len(turn) - 1) // 16 * 16
            assert usage.transferred_tokens == usage.cached_tokens - NUM_FIRST
            assert num_loaded(serving) > 0
            await serving.until_idle()
        await source.until_idle()


async def test_a_prefill_server_loads_after_a_restart_and_transfers_what_it_loaded(
    serve, prefill, decode, kv_blocks, store_settings
):
    async with serve() as alone:
        expected, _ = await answer(alone, FIRST)
    # The answer to another prompt takes all blocks of the decode server.
    async with decode(kv_cache_memory=kv_blocks(NUM_FIRST // 16 + 1)) as serving:
        for prompts, num_from_disk in (((FIRST, OTHER), 0), ((FIRST,), NUM_FIRST // 16)):
            async with prefill(**store_settings) as source:
                for prompt in prompts:
                    tokens, usage = await answer(serving, prompt)
                    assert tokens == expected or prompt is OTHER
                    assert usage.transferred_tokens == usage.cached_tokens == NUM_FIRST
                assert num_loaded(source) == num_from_disk
                assert (await source.load()).num_prefix_hits == num_from_disk
                await source.until_idle()
        await serving.until_idle()
