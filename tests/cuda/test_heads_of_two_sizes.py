"""Gemma 4 on an emulated GPU: heads of 64 and 512 in one pool, layers that see the keys of others.

In float16: in bfloat16 this small model is as far from `transformers` on a CPU as on a GPU.
"""

import pytest
import torch

from tests.cuda.small_models import (
    MODELS,
    NUM_TOKENS,
    assert_likely,
    make,
    prompts,
    requests,
    write,
)
from tests.cuda.test_engine import round_keys_and_values
from tests.engine.drive import Clock, assert_empty, greedy, run, take_time, token_ids

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma")
    return folder, write(folder, MODELS["gemma 4"])


@pytest.mark.parametrize("num_host_blocks", [0, 32], ids=["recomputed", "swapped"])
def test_preemption_and_the_prefix_cache_change_no_answer(gemma, num_host_blocks):
    folder, reference = gemma
    block = make(folder).runner.kv_cache[:, :, 0].nbytes
    clock = Clock()
    engine = make(
        folder,
        clock=clock,
        dtype="float16",
        kv_cache_memory=13 * block,
        swap_memory=num_host_blocks * block or None,
        max_num_batched_tokens=24,
    )
    take_time(engine, clock)
    shared = prompts(32)[0]
    asked = [[*shared, *prompt] for prompt in prompts(3, 6, 1, 9)]
    for _ in range(2):
        answers = run(engine, [greedy(prompt, 20, ignore_eos=True) for prompt in asked])
        for prompt, events in zip(asked, answers, strict=True):
            assert_likely(reference, prompt, token_ids(events), "float16")
    load = engine.load()
    assert load.num_prefix_hits > 0
    assert load.num_preemptions > 0
    assert (load.num_swapped_tokens > 0) == (num_host_blocks > 0)
    assert_empty(engine)


def test_keys_and_values_in_float8_take_half(gemma, monkeypatch):
    folder, reference = gemma
    round_keys_and_values(reference, monkeypatch)
    num_blocks = make(folder).load().num_blocks
    engine = make(folder, dtype="float16", kv_cache_dtype="fp8")
    assert engine.runner.kv_cache.dtype == torch.float8_e4m3fn
    assert engine.load().num_blocks == 2 * num_blocks + 1
    asked = prompts(1, 17, 150, 40, 5, 90)
    for prompt, events in zip(asked, run(engine, requests(asked)), strict=True):
        assert_likely(reference, prompt, token_ids(events), "float8, six layers")
    assert_empty(engine)


def test_every_step_is_replayed(gemma):
    engine = make(gemma[0])
    run(engine, requests(prompts(9, 12, 4)))
    assert engine.accelerator.num_replays == 2 * NUM_TOKENS


def test_memory_of_the_pool_is_that_of_the_largest_group(gemma):
    folder, _ = gemma
    cache = make(folder).runner.kv_cache
    # Two layers of 64 see a window, one of 512 sees all; the other three have no keys. Two KV heads
    # of keys and of values, blocks of 16 tokens, two bytes a number.
    assert cache[:, :, 0].nbytes == max(2 * 64, 1 * 512) * 2 * 2 * 16 * 2
