"""Blocks of preempted requests go to host memory and come back as they were."""

import pytest
import torch
from chairlift.api.config import Dtype
from chairlift.api.errors import ConfigError, EngineDownError
from chairlift.api.types import Failed

from tests.engine.drive import (
    assert_empty,
    bend_logits,
    end,
    greedy,
    run,
    swap_plan,
    take_time,
    token_ids,
    watch_sampler,
)
from tests.engine.tiny_model import prompts

NUM_TOKENS = 40
TIGHT = 26
"""Blocks, of which the requests need more at once."""


def requests():
    return [greedy(p, NUM_TOKENS, seed=1000 + i) for i, p in enumerate(prompts())]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_swapped_blocks_come_back_bit_equal(make_engine, kv_blocks, dtype):
    engine = make_engine(
        dtype=dtype.value,
        kv_cache_memory=kv_blocks(8, dtype=dtype),
        swap_memory=kv_blocks(3, dtype=dtype),
    )
    runner = engine.runner
    cache = runner.kv_cache.view(torch.uint8)
    # Every pattern of bits, those of no number included.
    cache.random_(generator=torch.Generator().manual_seed(0))
    before = cache.clone()
    runner.move_blocks(runner.apply(swap_plan(swap_out=[(5, 0), (2, 3)])))
    assert torch.equal(cache, before)
    cache[:, [2, 5]] = 0
    runner.move_blocks(runner.apply(swap_plan(swap_in=[(3, 7), (0, 1)])))
    before[:, [7, 1]] = before[:, [2, 5]]
    before[:, [2, 5]] = 0
    assert torch.equal(cache, before)


def test_blocks_go_before_others_come_and_are_copied_last(make_engine, kv_blocks):
    runner = make_engine(kv_cache_memory=kv_blocks(4), swap_memory=kv_blocks(1)).runner
    cache, host = runner.kv_cache, runner.host_pool
    for block in range(5):
        cache[:, block] = block
    host[:, 1] = 7
    plan = swap_plan(copies=[(3, 4)], swap_in=[(1, 3)], swap_out=[(3, 0)])
    runner.move_blocks(runner.apply(plan))
    assert host[:, 0].unique().tolist() == [3]
    assert [cache[:, block].unique().tolist() for block in range(5)] == [[0], [1], [2], [7], [7]]


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_who_comes_back_goes_on_as_if_nothing_had_been(
    make_engine, kv_blocks, clock, dtype, prefix_cache
):
    def answers(**settings):
        engine = make_engine(dtype=dtype.value, prefix_cache=prefix_cache, **settings)
        take_time(engine, clock)
        logits = watch_sampler(engine)
        return engine, logits, [token_ids(events) for events in run(engine, requests())]

    tight = kv_blocks(TIGHT, dtype=dtype)
    _, expected_logits, expected = answers()
    without, _, _ = answers(kv_cache_memory=tight)
    engine, logits, found = answers(kv_cache_memory=tight, swap_memory=kv_blocks(64, dtype=dtype))
    assert found == expected
    assert logits.keys() == expected_logits.keys()
    assert all(torch.equal(logits[key], expected_logits[key]) for key in logits)
    assert without.load().num_swapped_tokens == 0
    assert without.load().num_recomputed_tokens > 0
    load = engine.load()
    assert load.num_preemptions > 0
    assert load.num_swapped_tokens > 0
    assert load.num_recomputed_tokens == 0
    assert_empty(engine)


def test_what_is_faster_computed_again_is_not_swapped(make_engine, kv_blocks):
    # The clock stands: steps take no time at all.
    engine = make_engine(kv_cache_memory=kv_blocks(TIGHT), swap_memory=kv_blocks(64))
    run(engine, requests())
    load = engine.load()
    assert (load.num_host_blocks, load.num_swapped_tokens) == (65, 0)
    assert load.num_recomputed_tokens > 0


def test_a_failed_step_forgets_what_was_swapped(make_engine, kv_blocks, clock):
    expected = [token_ids(events) for events in run(make_engine(), requests())]
    engine = make_engine(kv_cache_memory=kv_blocks(TIGHT - 8), swap_memory=kv_blocks(64))
    take_time(engine, clock)
    failing = requests()[3].sampling.seed
    held = []

    def poison(_, seeds):
        load = engine.load()
        if failing in seeds and (held or load.num_free_host_blocks < load.num_host_blocks):
            held.append(load.num_host_blocks - load.num_free_host_blocks)
            raise MemoryError

    bend_logits(engine, poison)
    answers = run(engine, 3 * requests())
    assert held
    for index, events in enumerate(answers):
        if index % len(expected) == 3:
            assert isinstance(end(events), Failed)
        else:
            assert token_ids(events) == expected[index % len(expected)]
    load = engine.load()
    assert load.num_recomputed_tokens > 0, "since the step that failed"
    assert load.num_swapped_tokens > 0, "by those that gave way after it"
    assert_empty(engine)


def test_blocks_that_cannot_be_moved_take_the_engine_down(make_engine, kv_blocks, clock):
    engine = make_engine(kv_cache_memory=kv_blocks(TIGHT), swap_memory=kv_blocks(64))
    take_time(engine, clock)

    def fail(*_):
        raise MemoryError

    engine.runner.model.backend.copy_blocks = fail
    with pytest.raises(EngineDownError):
        run(engine, requests())
    assert engine.is_down


@pytest.mark.parametrize("num_bytes", [0, 1, "block - 1"])
def test_memory_for_less_than_a_block_is_refused(make_engine, kv_blocks, num_bytes):
    swap_memory = kv_blocks(0) - 1 if isinstance(num_bytes, str) else num_bytes
    with pytest.raises(ConfigError, match=r"^swap_memory: ") as error:
        make_engine(swap_memory=swap_memory)
    assert "\n" not in str(error.value)


def test_memory_for_a_block_is_enough(make_engine, kv_blocks):
    load = make_engine(swap_memory=kv_blocks(0)).load()
    assert (load.num_host_blocks, load.num_free_host_blocks) == (1, 1)
    assert make_engine().load().num_host_blocks == 0
