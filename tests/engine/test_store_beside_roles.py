"""A prefix store beside a role: blocks on disk first, the rest from the other server."""

import dataclasses

import pytest
from chairlift.api.types import Failed
from chairlift.engine.roles import import_blocks

from tests.engine.drive import assert_empty, end, greedy, token_ids
from tests.engine.prefill_engine import NoServer, PrefillEngine, answer
from tests.engine.test_prefix_store_models import ALTERNATING, DELTA, LONG, SECOND, full_blocks

MODELS = {"plain": None, "window": ALTERNATING, "hybrid": DELTA}

pytestmark = pytest.mark.usefixtures("transfers_anything")


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def start(request, make_engine, family_folder):
    """Start an engine of a model."""

    def make(**settings):
        model = () if request.param is None else (family_folder(request.param),)
        return make_engine(*model, **settings)

    return make


def decode(start, source, **settings):
    engine = start(**settings)
    return engine, import_blocks(engine, lambda _layout, _size: source, is_strict=True)


def test_a_decode_server_asks_for_what_is_not_on_disk(start, store_settings):
    source = PrefillEngine(start())
    engine, stats = decode(start, source, **store_settings)
    first = answer(engine, LONG)
    assert token_ids(first) == token_ids(answer(start(), LONG))
    assert end(first).usage.transferred_tokens == full_blocks(LONG)
    engine.close()
    engine, stats = decode(start, source, **store_settings)
    longer = [*LONG, *SECOND]
    events = answer(engine, longer)
    assert token_ids(events) == token_ids(answer(start(), longer))
    usage = end(events).usage
    assert usage.cached_tokens == full_blocks(longer)
    assert usage.transferred_tokens == full_blocks(longer) - full_blocks(LONG) > 0
    assert [asked.first for asked in source.asked] == [0, full_blocks(LONG) // 16]
    assert engine.prefix_store_stats().loaded > 0
    assert stats.stats().num_whole == 1
    for idle in (engine, source.engine):
        assert_empty(idle)


def test_a_decode_server_that_has_all_on_disk_asks_for_nothing(start, store_settings):
    engine, _ = decode(start, PrefillEngine(start()), **store_settings)
    expected = token_ids(answer(engine, LONG))
    engine.close()
    engine, _ = decode(start, NoServer(), **store_settings)
    events = answer(engine, LONG)
    assert token_ids(events) == expected
    assert end(events).usage.cached_tokens == full_blocks(LONG)
    assert isinstance(end(answer(engine, LONG, tenant="another")), Failed)


def test_a_prefill_server_loads_what_it_computed_before_a_restart(start, store_settings):
    def prefill():
        source = PrefillEngine(start(**store_settings))
        fetch = source.fetch

        def fetch_of_one_tenant(wanted):
            # A decode server names tenants by a secret of its process.
            wanted.scope = "tenant"
            return fetch(wanted)

        source.fetch = fetch_of_one_tenant
        return source

    expected = token_ids(answer(start(), LONG))
    source = prefill()
    engine, _ = decode(start, source)
    assert token_ids(answer(engine, LONG)) == expected
    assert source.engine.prefix_store_stats().loaded == 0
    source.engine.close()
    source = prefill()
    engine, stats = decode(start, source)
    events = answer(engine, LONG)
    assert token_ids(events) == expected
    assert end(events).usage.transferred_tokens == full_blocks(LONG)
    assert stats.stats().num_whole == 1
    assert source.engine.prefix_store_stats().loaded > 0
    assert source.engine.load().num_prefix_hits == full_blocks(LONG) // 16
    for idle in (engine, source.engine):
        assert_empty(idle)
    assert source.exports.held.num_bytes == 0


@pytest.mark.parametrize("num_turns", range(4))
def test_a_cancel_while_the_store_or_the_other_server_has_a_request_frees_all(
    start, store_settings, num_turns
):
    engine, _ = decode(start, PrefillEngine(start()), **store_settings)
    answer(engine, LONG)
    engine.close()
    source = PrefillEngine(start())
    source.fetch = lambda wanted: source.asked.append(wanted) or True
    engine, _ = decode(start, source, **store_settings)
    request = greedy([*LONG, *SECOND], 8)
    request_id = engine.add(dataclasses.replace(request)).request_id
    assert engine.is_loading
    for _ in range(num_turns):
        engine.step()
    engine.abort(request_id)
    while engine.has_work or engine.is_loading:
        engine.step()
    assert all(asked.is_over for asked in source.asked)
    assert_empty(engine)


def test_a_restart_in_place_forgets_what_both_had_begun(start, store_settings):
    source = PrefillEngine(start())
    engine, _ = decode(start, source, **store_settings)
    expected = token_ids(answer(engine, LONG))
    engine.close()
    engine, _ = decode(start, source, **store_settings)
    engine.add(greedy(LONG, 8))
    engine.restart()
    assert not engine.is_loading
    assert token_ids(answer(engine, LONG)) == expected
    assert engine.prefix_store_stats().loaded > 0
