"""KV blocks from another engine: the same tokens, whatever arrives, and nothing is left behind."""

import os
import subprocess
import sys

import pytest
from chairlift.api.config import Dtype
from chairlift.api.types import Failed
from chairlift.engine.prepare.block_export import BlockExport, ExportedBlock, HeldBytes
from chairlift.engine.roles import export_blocks, import_blocks
from chairlift.engine.transfer import block_import, imports

from tests.engine import prefill_engine
from tests.engine.drive import assert_empty, drain, end, greedy, run, take_time, token_ids
from tests.engine.prefill_engine import NoServer, PrefillEngine, assert_transferred
from tests.engine.tiny_model import prompts

LONG = [(7 * place) % 380 + 1 for place in range(170)]
NUM_BLOCKS = (len(LONG) - 1) // 16
"""Blocks of `LONG` that can be transferred."""


@pytest.fixture(autouse=True)
def long_is_worth_it(monkeypatch):
    """The tiny model has short prompts, and computes each in less time than a call takes."""
    monkeypatch.setattr(imports, "MIN_TOKENS", 112)
    monkeypatch.setattr(imports, "MIN_SAVED_NS", 0)


@pytest.fixture
def decode(make_engine):
    """Build a decode engine; return it with its imports and its prefill engine."""

    def make(fetcher=None, *, is_strict=False, **settings):
        source = fetcher or PrefillEngine(make_engine(**settings))
        engine = make_engine(**settings)
        stats = import_blocks(engine, lambda _layout, _size: source, is_strict=is_strict)
        return engine, stats, source

    return make


def answer(engine, prompt=LONG, **fields):
    return prefill_engine.answer(engine, prompt, **fields)


@pytest.mark.parametrize(
    "numbers",
    [{"dtype": Dtype.FLOAT32}, {"dtype": Dtype.BFLOAT16}, {"kv_cache_dtype": "int8"}],
    ids=["float32", "bfloat16", "int8"],
)
def test_a_prompt_that_another_engine_computed_gives_the_same_tokens(make_engine, decode, numbers):
    expected = token_ids(answer(make_engine(**numbers)))
    engine, stats, source = decode(**numbers)
    events = answer(engine)
    assert token_ids(events) == expected
    assert_transferred(engine, stats, source, events, NUM_BLOCKS * 16)


def test_short_prompts_are_computed_here(decode):
    engine, stats, source = decode()
    short = [prompt for prompt in prompts() if len(prompt) < 112]
    assert len(short) > 3
    for events in run(engine, [greedy(prompt, 4) for prompt in short]):
        assert end(events).usage.transferred_tokens == 0
    assert source.asked == []
    assert stats.stats().num_local == 0


def test_a_prompt_that_is_predicted_to_take_less_time_than_a_call_is_computed_here(
    decode, clock, monkeypatch
):
    monkeypatch.setattr(imports, "MIN_SAVED_NS", 10**9)
    engine, _, source = decode()
    take_time(engine, clock)
    answer(engine)
    asked = len(source.asked)
    answer(engine, [9, *LONG])
    assert len(source.asked) == asked


def test_only_blocks_behind_those_that_are_cached_are_asked_for(decode):
    engine, _, source = decode()
    answer(engine, LONG[:49])
    usage = end(answer(engine)).usage
    assert [(asked.first, asked.numbers) for asked in source.asked] == [(3, range(3, NUM_BLOCKS))]
    assert (usage.cached_tokens, usage.transferred_tokens) == (
        NUM_BLOCKS * 16,
        (NUM_BLOCKS - 3) * 16,
    )


def test_a_prefill_engine_sends_blocks_that_it_has_cached(decode):
    engine, _, source = decode()
    first = answer(engine)
    assert token_ids(answer(engine, [*LONG[:160], 5, 6, 7])) != []
    again = answer(engine, tenant="another")
    assert token_ids(again) == token_ids(first)
    assert end(again).usage.transferred_tokens == NUM_BLOCKS * 16
    assert source.engine.load().num_prefix_hits == 0, "tenants share no block there either"


@pytest.mark.parametrize("num_kept", [0, 1, 7])
def test_what_does_not_come_is_computed(make_engine, decode, num_kept):
    expected = token_ids(answer(make_engine()))
    engine, stats, source = decode()
    source.deliver = lambda wanted, blocks: [
        wanted.put(b.number, b.data) for b in blocks[:num_kept]
    ]
    events = answer(engine)
    assert token_ids(events) == expected
    assert end(events).usage.transferred_tokens == num_kept * 16
    assert stats.stats().num_partial == 1
    assert_empty(engine)


def test_blocks_in_another_order_and_blocks_that_are_not_wanted_change_nothing(make_engine, decode):
    expected = token_ids(answer(make_engine()))
    engine, _, source = decode()

    def deliver(wanted, blocks):
        size = len(blocks[0].data)
        for index in (NUM_BLOCKS, 10**9):
            wanted.put(index, bytes(size))
        for block in [*reversed(blocks), *(ExportedBlock(b.number, bytes(size)) for b in blocks)]:
            wanted.put(block.number, block.data)

    source.deliver = deliver
    events = answer(engine)
    assert token_ids(events) == expected
    assert end(events).usage.transferred_tokens == NUM_BLOCKS * 16


def test_with_strict_roles_a_prompt_that_does_not_come_fails(decode):
    engine, _, source = decode(is_strict=True)
    assert end(answer(engine)).usage.transferred_tokens == NUM_BLOCKS * 16
    source.deliver = lambda wanted, blocks: [wanted.put(b.number, b.data) for b in blocks[:3]]
    failed = end(answer(engine, [5, *LONG]))
    assert isinstance(failed, Failed)
    assert failed.reason == "PREFILL_UNAVAILABLE"
    assert_empty(engine)


@pytest.mark.parametrize("is_strict", [False, True])
def test_without_a_server_a_prompt_is_computed_or_fails(make_engine, decode, is_strict):
    expected = token_ids(answer(make_engine()))
    engine, stats, _ = decode(NoServer(), is_strict=is_strict)
    events = answer(engine)
    assert token_ids(events) == ([] if is_strict else expected)
    assert isinstance(end(events), Failed) == is_strict
    assert stats.stats().num_local == 1
    assert_empty(engine)


class Late:
    """Keeps what is asked for; the test delivers."""

    def __init__(self):
        self.wanted = []
        self.cancelled = []

    def fetch(self, wanted):
        self.wanted.append(wanted)
        wanted.on_cancel(lambda: self.cancelled.append(wanted))
        return True

    def close(self):
        pass


def test_a_cancel_ends_the_transfer_at_once(decode):
    late = Late()
    engine, _, _ = decode(late)
    request_id = engine.add(greedy(LONG, 8)).request_id
    engine.step()
    assert late.cancelled == []
    engine.abort(request_id)
    drain(engine)
    engine.step()
    assert late.cancelled == late.wanted
    assert not engine.is_loading
    assert_empty(engine)


def test_others_run_while_a_prompt_is_transferred_and_a_late_one_is_computed(
    make_engine, decode, clock
):
    """It is computed in time: a request may wait for 30 s until it starts."""
    expected = token_ids(answer(make_engine()))
    late = Late()
    engine, stats, _ = decode(late)
    request_id = engine.add(greedy(LONG, 8)).request_id
    other = engine.add(greedy([1, 2, 3], 8)).request_id
    ended = []
    while other not in ended:
        ended += [event.request_id for event in engine.step() if hasattr(event, "usage")]
    assert request_id not in ended
    clock.advance(late.wanted[0].limit_s)
    events = drain(engine)[request_id]
    assert token_ids(events) == expected
    assert stats.stats().num_partial == 1
    assert late.cancelled == late.wanted


def test_a_restart_ends_all_transfers(decode):
    late = Late()
    engine, _, _ = decode(late)
    engine.add(greedy(LONG, 8))
    engine.restart()
    assert late.cancelled == late.wanted
    assert not engine.is_loading
    assert_empty(engine)


def test_blocks_that_come_far_too_early_hold_up_none_before_them(monkeypatch):
    monkeypatch.setattr(block_import, "_MAX_WAITING_BYTES", 100)
    wanted = block_import.BlockImport([1], first=3, numbers=range(3, 43), scope="", limit_s=1e6)
    for index in (*range(5, 43), 3):
        assert wanted.put(index, bytes(60))
    assert len(wanted.next_run(99)) == 1
    wanted.drop(1)
    assert wanted.put(4, bytes(60))
    assert len(wanted.next_run(99)) == 3, "two that came early had room"
    wanted.drop(3)
    assert not wanted.has_next
    assert wanted.put(7, bytes(60))
    assert wanted.has_next


def test_an_export_that_is_not_read_holds_no_more_than_all_may():
    held = HeldBytes(100)
    woken = []
    first, second = (BlockExport(0, held, lambda: woken.append(1)) for _ in range(2))
    first.put(ExportedBlock(0, bytes(60)))
    second.put(ExportedBlock(0, bytes(60)))
    assert (first.has_overflowed, second.has_overflowed) == (False, True)
    assert held.num_bytes == 60
    assert len(woken) == 2
    first.close()
    assert held.num_bytes == 0
    first.put(ExportedBlock(1, bytes(10)))
    assert held.num_bytes == 0, "nothing is held for a call that is over"


def test_an_engine_of_other_weights_has_another_layout(make_engine, tmp_path, tiny):
    layouts = {export_blocks(make_engine())[1] for _ in range(2)}
    assert len(layouts) == 1
    for settings in ({"dtype": Dtype.BFLOAT16}, {"kv_cache_dtype": "int8"}, {"quantize": "int8"}):
        layouts.add(export_blocks(make_engine(**settings))[1])
    assert len(layouts) == 4


def test_the_layout_is_the_same_in_another_process(make_engine, tiny):
    """No set or address is in it: a new process, not a fork, whose hashes have another seed."""
    program = (
        "import sys\n"
        "from chairlift.engine.engine import Engine\n"
        "from chairlift.engine.roles import export_blocks\n"
        "engine = Engine(sys.argv[1], max_num_seqs=8, max_num_batched_tokens=64, drafts='off')\n"
        "print(export_blocks(engine)[1].hex())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, tiny.folder],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == export_blocks(make_engine())[1].hex()
