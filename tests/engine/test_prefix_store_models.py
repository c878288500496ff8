"""Blocks of sliding windows and recurrent states on disk: loaded ones give the same tokens."""

import dataclasses
from pathlib import Path

import pytest
from chairlift.api.errors import ConfigError
from chairlift.api.types import PrefixCache
from chairlift.engine import prefix_store
from chairlift.engine.prepare.block_export import HeldBytes
from chairlift.engine.transfer.layout import block_bytes
from chairlift.engine.transfer.states import StatePieces

from tests.engine import adapters, tiny_model
from tests.engine.drive import assert_empty, end, greedy, run, take_time, token_ids
from tests.engine.test_transfer_windows import MODELS as WINDOWS
from tests.model import families
from tests.model.hybrid_table import HYBRIDS

DELTA = "qwen3.5, heads that share keys"
MAMBA = "falcon h1, multipliers, tied"
ALTERNATING = WINDOWS["alternating"]
SOME = {
    "window": ALTERNATING,
    "windows-only": WINDOWS["all"],
    "sinks": WINDOWS["sinks"],
    "delta": DELTA,
    "mamba": MAMBA,
}
STATES = [DELTA, MAMBA]
SIZE = 16
LONG = [(7 * place) % 120 + 3 for place in range(170)]
SECOND = [(5 * place) % 120 + 3 for place in range(40)]
"""What the second turn of a conversation adds."""


class Server:
    """An engine that answers prompts one after another, and what each of them had cached."""

    def __init__(self, engine):
        self.engine = engine

    def answer(self, prompt=LONG, num_tokens=8, **fields):
        request = greedy(prompt, num_tokens, ignore_eos=True)
        (events,) = run(self.engine, [dataclasses.replace(request, **fields)])
        self.num_cached = end(events).usage.cached_tokens
        self.assert_empty()
        return token_ids(events)

    def assert_empty(self):
        assert_empty(self.engine)
        store = self.engine.prefix_store
        assert store is None or store.held.num_bytes == 0

    @property
    def stats(self):
        return self.engine.prefix_store_stats()

    def close(self):
        self.engine.close()
        assert not self.engine.is_loading


@pytest.fixture
def serve(make_engine, family_folder, store_settings):
    """Start a server of a model, with the store if not told otherwise."""

    def start(model, *, has_store=True, **settings):
        stored = store_settings if has_store else {}
        return Server(make_engine(family_folder(model), **{**stored, **settings}))

    return start


@pytest.fixture
def expected(serve):
    """Return what a server without a store answers to a prompt that it has not seen."""

    def answer(model, *args, adapters=None, **fields):
        settings = {} if adapters is None else {"adapters": adapters}
        return serve(model, has_store=False, **settings).answer(*args, **fields)

    return answer


def segments(settings):
    return sorted(Path(settings["prefix_store"]).glob("*.segment"))


def full_blocks(prompt):
    return (len(prompt) - 1) // SIZE * SIZE


def record_bytes(server):
    return 64 + block_bytes(server.engine.stepper.loaded.kv_cache)


def num_pieces(server):
    loaded = server.engine.stepper.loaded
    states = StatePieces.of(loaded, block_bytes(loaded.kv_cache))
    return 0 if states is None else states.num_pieces


@pytest.mark.parametrize("model", [*WINDOWS.values(), *HYBRIDS])
def test_a_prompt_is_loaded_after_a_restart_and_gives_the_same_tokens(serve, expected, model):
    first = serve(model)
    assert first.answer() == expected(model)
    first.close()
    server = serve(model)
    assert server.answer() == expected(model)
    assert server.num_cached == full_blocks(LONG)
    assert server.stats.loaded > 0
    assert server.stats.corrupt == 0


@pytest.mark.parametrize("num_tokens", [3, 8, 40])
@pytest.mark.parametrize("model", SOME.values(), ids=SOME)
def test_the_second_turn_of_a_conversation_begins_behind_the_first(
    serve, expected, model, num_tokens
):
    first = serve(model)
    prompt = [*LONG, *first.answer(num_tokens=num_tokens), *SECOND]
    first.close()
    server = serve(model)
    assert server.answer(prompt) == expected(model, prompt)
    # The last token of an answer is not computed.
    assert server.num_cached == (len(LONG) + num_tokens - 1) // SIZE * SIZE


@pytest.mark.parametrize("model", SOME.values(), ids=SOME)
def test_prompts_that_share_a_beginning_load_what_they_share(serve, expected, model):
    first = serve(model)
    for start in (40, 90, 170):
        first.answer([*LONG[:start], *SECOND])
    first.close()
    # A hybrid has states where two prompts branch off, and behind each of them.
    junctions = {40: 64, 90: 80, 170: 80}
    for start, junction in junctions.items():
        server = serve(model)
        prompt = [*LONG[:start], *SECOND[:30], 5, 6, 7]
        assert server.answer(prompt) == expected(model, prompt)
        assert server.num_cached == (junction if model in STATES else (start + 30) // SIZE * SIZE)
        server.close()


@pytest.mark.parametrize("model", SOME.values(), ids=SOME)
def test_by_default_what_a_second_request_uses_is_written(serve, expected, model):
    second = serve(model, prefix_store_uses=2)
    second.answer()
    assert second.stats.written == 0
    second.answer()
    second.close()
    server = serve(model)
    assert server.answer() == expected(model)
    assert server.num_cached == full_blocks(LONG)


@pytest.mark.parametrize("model", SOME.values(), ids=SOME)
def test_what_was_evicted_from_memory_is_loaded(serve, expected, model, kv_blocks, family_folder):
    first = serve(model)
    first.answer()
    first.close()
    server = serve(model, kv_cache_memory=kv_blocks(32, family_folder(model)))
    num_loaded = 0
    for _ in range(2):
        assert server.answer() == expected(model)
        assert server.num_cached == full_blocks(LONG)
        assert server.stats.loaded > num_loaded
        num_loaded = server.stats.loaded
        for token in range(5, 9):
            server.answer([token] * 200)


@pytest.mark.parametrize("fields", [{"tenant": "another"}, {"prefix_cache": PrefixCache(salt="s")}])
@pytest.mark.parametrize("model", SOME.values(), ids=SOME)
def test_another_tenant_or_salt_finds_nothing(serve, expected, model, fields):
    first = serve(model)
    first.answer()
    first.close()
    server = serve(model)
    assert server.answer(**fields) == expected(model)
    assert (server.num_cached, server.stats.loaded) == (0, 0)
    server.answer()
    assert server.num_cached == full_blocks(LONG)


@pytest.mark.parametrize("model", [ALTERNATING, WINDOWS["all"]], ids=["window", "windows-only"])
def test_a_request_with_an_adapter_finds_nothing_and_leaves_nothing(
    serve, expected, tmp_path, model
):
    reference = families.build(model, vocab_size=tiny_model.VOCAB_SIZE)
    adapter = adapters.write(tmp_path / "adapter", reference, targets=("q_proj", "v_proj"))
    with_adapters = {"adapters": {"a": str(adapter)}}
    adapted = expected(model, adapter="a", **with_adapters)
    assert adapted != expected(model)
    first = serve(model, **with_adapters)
    first.answer(adapter="a")
    first.close()
    first = serve(model, **with_adapters)
    assert first.stats.num_blocks == 0
    first.answer()
    first.close()
    server = serve(model, **with_adapters)
    assert server.answer(adapter="a") == adapted
    assert (server.num_cached, server.stats.loaded) == (0, 0)
    assert server.answer() == expected(model)
    assert server.num_cached == full_blocks(LONG)


@pytest.mark.parametrize("model", SOME.values(), ids=SOME)
def test_a_changed_byte_is_a_miss_wherever_it_is(serve, expected, store_settings, model):
    first = serve(model)
    first.answer(num_tokens=1)
    size, pieces = record_bytes(first), num_pieces(first)
    first.close()
    (path,) = segments(store_settings)
    written = path.read_bytes()
    num_records = (len(written) - 64) // size
    assert num_records >= full_blocks(LONG) // SIZE + pieces
    num_misses = 0
    for record in range(num_records):
        damaged = bytearray(written)
        damaged[64 + record * size + 64 + record] ^= 1
        path.write_bytes(damaged)
        server = serve(model)
        assert server.answer(num_tokens=1) == expected(model, num_tokens=1)
        is_miss = server.num_cached < full_blocks(LONG)
        assert server.stats.corrupt == is_miss
        num_misses += is_miss
        if model in STATES:
            assert server.num_cached == 0
        server.close()
        for other in segments(store_settings):
            other.unlink()
    # What lies before a window is not read.
    num_read = {ALTERNATING: 11, WINDOWS["all"]: 2, WINDOWS["sinks"]: 12}
    assert num_misses == num_read.get(model, num_records)


@pytest.mark.parametrize("model", SOME.values(), ids=SOME)
def test_a_file_that_is_cut_is_a_miss(serve, expected, store_settings, model):
    first = serve(model)
    first.answer(num_tokens=1)
    first.close()
    (path,) = segments(store_settings)
    written = path.read_bytes()
    for count in (len(written) - 1, len(written) // 2, 70, 0):
        path.write_bytes(written[:count])
        server = serve(model)
        assert server.answer(num_tokens=1) == expected(model, num_tokens=1)
        assert server.num_cached < full_blocks(LONG)
        server.close()
        for other in segments(store_settings):
            other.unlink()


@pytest.mark.parametrize("model", SOME.values(), ids=SOME)
def test_without_a_segment_the_last_whole_beginning_is_loaded(
    serve, expected, store_settings, model
):
    for count in (50, 100, 170):
        first = serve(model)
        first.answer(LONG[:count], num_tokens=1)
        first.close()
    paths = segments(store_settings)
    contents = [path.read_bytes() for path in paths]
    found = []
    for lost in paths:
        for path in segments(store_settings):
            path.unlink()
        for path, content in zip(paths, contents, strict=True):
            if path != lost:
                path.write_bytes(content)
        server = serve(model)
        assert server.answer(num_tokens=1) == expected(model, num_tokens=1)
        found.append(server.num_cached)
        server.close()
    # Where each layer has a window, its blocks are enough.
    assert found == ([160, 160, 96] if model == WINDOWS["all"] else [0, 48, 96])


@pytest.mark.parametrize("model", SOME.values(), ids=SOME)
def test_a_store_that_is_full_keeps_what_was_written_last(serve, expected, model):
    probe = serve(model)
    size, pieces = record_bytes(probe), num_pieces(probe)
    probe.close()
    # Blocks of two groups of a prompt and of its answer, and the states behind both.
    max_bytes = 2 * (2 * 7 + 2 * pieces) * size + 1024
    prompts = [[(step * place) % 120 + 3 for place in range(100)] for step in range(3, 30, 2)]
    server = serve(model, prefix_store_bytes=max_bytes)
    for prompt in prompts:
        assert server.answer(prompt) == expected(model, prompt)
    server.close()
    server = serve(model, prefix_store_bytes=max_bytes)
    assert 0 < server.stats.num_bytes <= max_bytes
    assert server.answer(prompts[-1]) == expected(model, prompts[-1])
    assert server.num_cached == full_blocks(prompts[-1])
    assert server.answer(prompts[0]) == expected(model, prompts[0])
    assert server.num_cached == 0


def test_a_load_that_would_be_slower_than_computing_is_declined(serve, expected, clock):
    for model in SOME.values():
        first = serve(model)
        first.answer()
        first.close()
        server = serve(model)
        take_time(server.engine, clock, seconds_per_token=1e-9)
        server.answer([9] * 50, num_tokens=1)
        assert server.answer() == expected(model)
        assert server.num_cached == 0
        assert (server.stats.loaded, server.stats.declined) == (0, 1)
        server.close()


def test_states_on_their_way_hold_no_more_than_all_may(serve, expected, monkeypatch):
    first = serve(DELTA)
    first.answer()
    first.close()
    monkeypatch.setattr(prefix_store, "HeldBytes", lambda: HeldBytes(max_bytes=1))
    server = serve(DELTA)
    for _ in range(2):
        assert server.answer() == expected(DELTA)
        assert server.num_cached == 0
        server.engine.restart()


@pytest.mark.parametrize("model", STATES)
def test_a_cancel_at_any_turn_of_a_load_leaves_nothing(serve, expected, model):
    first = serve(model)
    first.answer()
    first.close()
    server = serve(model)
    engine = server.engine
    for num_turns in range(6):
        accepted = engine.add(greedy(LONG, 8))
        assert engine.is_loading
        for _ in range(num_turns):
            engine.step()
        engine.abort(accepted.request_id)
        while engine.has_work or engine.is_loading:
            engine.step()
        server.assert_empty()
        engine.restart()
    assert server.answer() == expected(model)


@pytest.mark.parametrize("model", STATES)
def test_a_restart_in_place_keeps_the_store(serve, expected, model):
    first = serve(model)
    first.answer()
    first.close()
    server = serve(model)
    server.engine.add(greedy(LONG, 8))
    server.engine.restart()
    assert not server.engine.is_loading
    assert server.answer() == expected(model)
    assert server.num_cached == full_blocks(LONG)


def test_a_hybrid_without_memory_for_states_is_refused(serve):
    reason = "a model with recurrent states and no state_snapshots"
    with pytest.raises(ConfigError, match=f"prefix_store: expected none for {reason}"):
        serve(DELTA, state_snapshots=0)


def test_a_store_has_room_for_more_than_one_state(serve):
    with pytest.raises(ConfigError, match=r"prefix_store_bytes: expected at least \d+ bytes"):
        serve(DELTA, prefix_store_bytes=20_000)


def test_a_block_of_a_small_group_is_written_with_zeros_behind_its_layers(serve, store_settings):
    """What another request has left there is not written to the disk."""
    server = serve(WINDOWS["last"])
    pool = server.engine.stepper.loaded.kv_cache
    pool.fill_(1)
    size = record_bytes(server)
    server.answer(num_tokens=1)
    server.close()
    (path,) = segments(store_settings)
    written = path.read_bytes()[64:]
    records = [written[start + 64 : start + size] for start in range(0, len(written), size)]
    width = (size - 64) // pool.shape[0]
    rests = [record[width:] for record in records]
    assert len(rests) == 2 * full_blocks(LONG) // SIZE
    assert sum(rest == bytes(width) for rest in rests) == len(rests) // 2
