"""Blocks of models with sliding windows from another engine: those that a later token sees."""

import pytest
from chairlift.api.types import Failed

from tests.engine import prefill_engine
from tests.engine.drive import assert_empty, drain, end, greedy, token_ids
from tests.engine.prefill_engine import assert_transferred

ALTERNATING = "qwen3, alternating window, wide heads, biases"
ALL = "mistral, window"
LAST_LAYER = "qwen2, window in the last layer"
MODELS = {
    "alternating": ALTERNATING,
    "all": ALL,
    "last": LAST_LAYER,
    "sinks": "gpt-oss, sinks, windows, clamped gates",
    "gemma3": "gemma3, windows, two ropes",
    "mixed-sizes": "gemma4, keys as values, fewer heads where all tokens are seen",
}
LONG = [(7 * place) % 120 + 3 for place in range(170)]
NUM_BLOCKS = (len(LONG) - 1) // 16


pytestmark = pytest.mark.usefixtures("transfers_anything")


@pytest.fixture
def decode(make_engine, family_folder):
    """Connect a decode engine of a model, strict if not told otherwise, to a prefill engine."""

    def make(model, **fields):
        return prefill_engine.connect(make_engine, family_folder(model), **fields)

    return make


def answer(engine, prompt=LONG, **fields):
    return prefill_engine.answer(engine, prompt, **fields)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_prompt_that_another_engine_computed_gives_the_same_tokens(
    make_engine, family_folder, decode, model
):
    expected = token_ids(answer(make_engine(family_folder(model))))
    engine, stats, source = decode(model)
    events = answer(engine)
    assert token_ids(events) == expected
    assert_transferred(engine, stats, source, events, NUM_BLOCKS * 16)


def test_of_a_window_only_the_blocks_that_the_last_token_sees_are_moved(decode):
    for model, count in ((ALL, 2), (ALTERNATING, NUM_BLOCKS + 1)):
        engine, stats, source = decode(model)
        answer(engine)
        assert [len(asked.numbers) for asked in source.asked] == [count]
        assert stats.stats().num_transferred_blocks == count


@pytest.mark.parametrize("num_tokens", [17, 19, 20, 21, 32, 33, 36, 37, 49])
@pytest.mark.parametrize("model", [ALTERNATING, ALL], ids=["alternating", "all"])
def test_a_prompt_that_ends_within_at_and_after_the_window_gives_the_same_tokens(
    make_engine, family_folder, decode, model, num_tokens
):
    prompt = LONG[:num_tokens]
    expected = token_ids(answer(make_engine(family_folder(model)), prompt))
    engine, _, _ = decode(model)
    events = answer(engine, prompt)
    assert token_ids(events) == expected
    assert end(events).usage.transferred_tokens == (num_tokens - 1) // 16 * 16 > 0


@pytest.mark.parametrize("model", [ALTERNATING, ALL], ids=["alternating", "all"])
def test_a_prompt_that_begins_as_one_before_gives_the_same_tokens(
    make_engine, family_folder, decode, model
):
    """The prefill engine knows the beginning without the window behind it, or with it."""
    engine, _, source = decode(model)
    answer(engine)
    for num_tokens in (40, 97, 160, 170):
        prompt = [*LONG[:num_tokens], *range(5, 60)]
        expected = token_ids(answer(make_engine(family_folder(model)), prompt))
        events = answer(engine, prompt)
        assert token_ids(events) == expected
        usage = end(events).usage
        assert 0 < usage.transferred_tokens <= usage.cached_tokens == (len(prompt) - 1) // 16 * 16
    assert_empty(engine)
    assert_empty(source.engine)


@pytest.mark.parametrize("model", [ALTERNATING, ALL], ids=["alternating", "all"])
def test_what_does_not_come_is_computed_or_fails(make_engine, family_folder, decode, model):
    expected = token_ids(answer(make_engine(family_folder(model))))
    engine, stats, source = decode(model, is_strict=False)
    strict, _, other = decode(model)
    for receiver in (source, other):
        receiver.deliver = lambda wanted, blocks: [
            wanted.put(block.number, block.data) for block in blocks[:-1]
        ]
    events = answer(engine)
    assert token_ids(events) == expected
    assert end(events).usage.transferred_tokens == 0, "the last window is not whole"
    assert stats.stats().num_partial == 1
    assert isinstance(end(answer(strict)), Failed)
    for idle in (engine, strict, source.engine, other.engine):
        assert_empty(idle)


@pytest.mark.parametrize("num_kept", range(NUM_BLOCKS + 2))
def test_a_cancel_after_any_number_of_blocks_frees_all(decode, num_kept):
    engine, _, source = decode(ALTERNATING)
    cancelled = []
    source.fetch = lambda wanted: source.asked.append(wanted) or True
    request_id = engine.add(greedy(LONG, 8)).request_id
    (wanted,) = source.asked
    wanted.on_cancel(lambda: cancelled.append(wanted))
    size = len(_one_block(engine))
    for number in list(wanted.numbers)[:num_kept]:
        assert wanted.put(number, bytes(size))
    engine.step()
    assert cancelled == ([wanted] if num_kept == len(wanted.numbers) else [])
    engine.abort(request_id)
    drain(engine)
    engine.step()
    assert cancelled
    assert not engine.is_loading
    assert_empty(engine)


def _one_block(engine):
    pool = engine.stepper.loaded.kv_cache
    return bytes(pool[:, 0].nbytes)


def test_a_block_of_a_small_group_leaves_with_zeros_behind_its_layers(decode):
    """What another request has left there does not leave the process."""
    engine, _, source = decode(LAST_LAYER)
    pool = source.engine.stepper.loaded.kv_cache
    pool.fill_(1)
    received = []
    source.deliver = lambda wanted, blocks: received.extend(blocks)
    assert isinstance(end(answer(engine)), Failed)
    num_planes = pool.shape[0]
    assert num_planes == 2
    width = len(received[0].data) // num_planes
    rests = [block.data[width:] for block in received]
    assert sum(rest == bytes(width) for rest in rests) == 2, "those of the window"
