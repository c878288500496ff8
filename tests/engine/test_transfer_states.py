"""Blocks and recurrent states of hybrids from another engine: the same tokens, whatever arrives."""

import pytest
from chairlift.api.errors import ConfigError
from chairlift.api.types import Failed
from chairlift.engine.prepare.block_export import MAX_HELD_BYTES, HeldBytes
from chairlift.engine.roles import export_blocks, import_blocks
from chairlift.engine.transfer import imports

from tests.engine import prefill_engine, tiny_model
from tests.engine.drive import assert_empty, end, token_ids
from tests.engine.prefill_engine import NoServer, assert_transferred
from tests.model import families
from tests.model.hybrid_table import HYBRIDS

MODEL = "falcon h1, multipliers, tied"
LONG = [(7 * place) % 120 + 3 for place in range(170)]
NUM_BLOCKS = (len(LONG) - 1) // 16


pytestmark = pytest.mark.usefixtures("transfers_anything")


@pytest.fixture
def decode(make_engine, family_folder):
    """Connect a decode engine of a model, strict if not told otherwise, to a prefill engine."""

    def make(model=MODEL, **fields):
        return prefill_engine.connect(make_engine, family_folder(model), **fields)

    return make


def answer(engine, prompt=LONG, **fields):
    return prefill_engine.answer(engine, prompt, **fields)


@pytest.mark.parametrize("model", HYBRIDS)
def test_a_prompt_that_another_engine_computed_gives_the_same_tokens(
    make_engine, family_folder, decode, model
):
    expected = token_ids(answer(make_engine(family_folder(model))))
    engine, stats, source = decode(model)
    events = answer(engine)
    assert token_ids(events) == expected
    assert_transferred(engine, stats, source, events, NUM_BLOCKS * 16)


def test_a_prompt_that_begins_as_one_before_gives_the_same_tokens(
    make_engine, family_folder, decode
):
    """Both engines know blocks of its beginning without the state behind them."""
    engine, _, source = decode()
    answer(engine)
    for num_tokens in (40, 97, 160, 170):
        prompt = [*LONG[:num_tokens], *range(5, 60)]
        expected = token_ids(answer(make_engine(family_folder(MODEL)), prompt))
        events = answer(engine, prompt)
        assert token_ids(events) == expected
        usage = end(events).usage
        assert 0 < usage.transferred_tokens <= usage.cached_tokens == (len(prompt) - 1) // 16 * 16
    assert_empty(engine)
    assert_empty(source.engine)


def test_a_prefill_engine_sends_the_state_that_it_has_cached(decode):
    engine, _, source = decode()
    first = answer(engine)
    another, _, _ = decode()
    import_blocks(another, lambda _layout, _size: source, is_strict=True)
    # The scope of a tenant differs from server to server: the prompt is the same one by its own.
    salts = [asked.scope for asked in source.asked]
    fetch = source.fetch

    def fetch_again(wanted):
        wanted.scope = salts[0]
        return fetch(wanted)

    source.fetch = fetch_again
    events = answer(another)
    assert token_ids(events) == token_ids(first)
    assert end(events).usage.transferred_tokens == NUM_BLOCKS * 16
    assert source.engine.load().num_prefix_hits == NUM_BLOCKS


@pytest.mark.parametrize("num_lost", [1, 2, 100])
def test_without_the_whole_state_a_prompt_is_computed_or_fails(
    make_engine, family_folder, decode, num_lost
):
    expected = token_ids(answer(make_engine(family_folder(MODEL))))
    engine, stats, source = decode(is_strict=False)
    strict, _, other = decode()
    for receiver in (source, other):
        receiver.deliver = lambda wanted, blocks: [
            wanted.put(block.number, block.data) for block in blocks[:-num_lost]
        ]
    events = answer(engine)
    assert token_ids(events) == expected
    assert end(events).usage.transferred_tokens == 0
    assert stats.stats().num_partial == 1
    assert isinstance(end(answer(strict)), Failed)
    for idle in (engine, strict, source.engine, other.engine):
        assert_empty(idle)


def test_a_state_that_comes_before_the_blocks_waits_for_them(make_engine, family_folder, decode):
    expected = token_ids(answer(make_engine(family_folder(MODEL))))
    engine, stats, source = decode()
    source.deliver = lambda wanted, blocks: [
        wanted.put(block.number, block.data) for block in reversed(blocks)
    ]
    events = answer(engine)
    assert token_ids(events) == expected
    assert_transferred(engine, stats, source, events, NUM_BLOCKS * 16)


def test_a_state_follows_all_blocks_so_that_it_waits_for_none(decode):
    engine, _, source = decode()
    numbers = []
    deliver = source.deliver

    def note(wanted, blocks):
        numbers.append([block.number for block in blocks])
        deliver(wanted, blocks)

    source.deliver = note
    for prompt in (LONG, [*LONG[:90], *range(5, 60)], LONG):
        answer(engine, prompt)
        answer(engine, prompt, tenant="another")
    assert len(numbers) == 4
    assert all(found == list(range(len(found))) for found in numbers)


def test_states_on_their_way_hold_no_more_than_all_may(
    make_engine, family_folder, decode, monkeypatch
):
    """There is room for none: the prompt is computed."""
    held = HeldBytes()
    assert held.take(MAX_HELD_BYTES)
    monkeypatch.setattr(imports, "HeldBytes", lambda: held)
    expected = token_ids(answer(make_engine(family_folder(MODEL))))
    engine, stats, source = decode(is_strict=False)
    events = answer(engine)
    assert token_ids(events) == expected
    assert stats.stats().num_partial == len(source.asked) == 1
    assert held.num_bytes == MAX_HELD_BYTES
    assert_empty(engine)


def test_where_no_state_may_be_on_its_way_no_server_is_asked(
    make_engine, family_folder, decode, monkeypatch, caplog
):
    monkeypatch.setattr(imports, "HeldBytes", lambda: HeldBytes(max_bytes=1))
    expected = token_ids(answer(make_engine(family_folder(MODEL))))
    engine, stats, source = decode(is_strict=False)
    strict, _, other = decode()
    assert token_ids(answer(engine)) == expected
    assert end(answer(engine, tenant="another")).usage.transferred_tokens == 0
    assert isinstance(end(answer(strict)), Failed)
    assert source.asked == other.asked == []
    assert stats.stats().num_local == 2
    said = [record.message for record in caplog.records if record.name == imports.__name__]
    assert len(said) == 2, "each decode server says it once"
    assert all(text.startswith("prompts are computed here: the recurrent") for text in said)
    for idle in (engine, strict):
        assert_empty(idle)


def test_a_state_of_another_tenant_is_not_found(decode):
    engine, _, source = decode()
    first = answer(engine)
    again = answer(engine, tenant="another")
    assert token_ids(again) == token_ids(first)
    assert end(again).usage.transferred_tokens == NUM_BLOCKS * 16
    assert len(source.asked) == 2
    assert source.engine.load().num_prefix_hits == 0


def test_a_model_with_another_recurrence_has_another_layout(make_engine, tmp_path):
    layouts = []
    for gain in (1.0, 1.5):
        model = families.build(MODEL, vocab_size=tiny_model.VOCAB_SIZE)
        # Behind the last layer with keys: no key and no value depends on it.
        mixers = [layer.mamba for layer in model.model.layers if hasattr(layer, "mamba")]
        mixers[-1].dt_bias.data *= gain
        folder = tmp_path / str(gain)
        model.save_pretrained(folder)
        tiny_model.write_tokenizer(folder, tiny_model.VOCAB_SIZE - 10)
        layouts.append(export_blocks(make_engine(folder))[1])
    assert layouts[0] != layouts[1]


def test_a_role_without_memory_for_states_is_refused(make_engine, family_folder):
    engine = make_engine(family_folder(MODEL), state_snapshots=0)
    reason = "a model with recurrent states and no state_snapshots"
    with pytest.raises(ConfigError, match=f"role: expected none for {reason}"):
        import_blocks(engine, lambda _layout, _size: NoServer(), is_strict=False)
