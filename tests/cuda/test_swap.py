"""Blocks of preempted requests on an emulated GPU: they go and come beside the steps."""

import pytest
import torch

from tests.cuda.gpu_device import needs_emulation
from tests.cuda.small_models import assert_likely, make, prompts
from tests.engine.drive import Clock, assert_empty, greedy, run, swap_plan, take_time, token_ids

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""


def test_swapped_blocks_come_back_bit_equal(llama):
    block = make(llama[0]).runner.kv_cache[:, :, 0].nbytes
    runner = make(llama[0], kv_cache_memory=9 * block, swap_memory=4 * block).runner
    cache = runner.kv_cache.view(torch.uint8)
    # Every pattern of bits, those of no number included.
    draw = torch.Generator().manual_seed(0)
    cache.copy_(torch.randint(0, 256, cache.shape, dtype=torch.uint8, generator=draw))
    before = cache.clone()
    runner.move_blocks(runner.apply(swap_plan(swap_out=[(5, 0), (2, 3)])))
    assert torch.equal(cache, before)
    cache[:, :, [2, 5]] = 0
    runner.move_blocks(runner.apply(swap_plan(swap_in=[(3, 7), (0, 1)])))
    before[:, :, [7, 1]] = before[:, :, [2, 5]]
    before[:, :, [2, 5]] = 0
    assert torch.equal(cache, before)


@pytest.mark.parametrize(
    ("prefix_cache", "steps_in_flight"),
    [
        (True, 2),
        (False, 1),
        pytest.param(True, 1, marks=pytest.mark.slow),
        pytest.param(False, 2, marks=pytest.mark.slow),
    ],
)
def test_swapping_changes_no_answer_and_computes_nothing_again(
    model, prefix_cache, steps_in_flight
):
    folder, reference = model
    asked = prompts(35, 38, 33, 41)
    block = make(folder).runner.kv_cache[:, :, 0].nbytes

    def answers(num_blocks, num_host_blocks):
        clock = Clock()
        engine = make(
            folder,
            clock=clock,
            dtype="float16",
            kv_cache_memory=num_blocks * block,
            swap_memory=num_host_blocks * block or None,
            prefix_cache=prefix_cache,
            steps_in_flight=steps_in_flight,
            max_num_batched_tokens=24,
        )
        take_time(engine, clock)
        found = run(engine, [greedy(prompt, 20, ignore_eos=True) for prompt in asked])
        assert_empty(engine)
        return engine.load(), [token_ids(events) for events in found]

    num_blocks = 1 + 7 * len(reference.windows)
    recomputed, _ = answers(num_blocks, 0)
    swapped, found = answers(num_blocks, 32)
    for prompt, answer in zip(asked, found, strict=True):
        assert_likely(reference, prompt, answer, "float16")
    assert recomputed.num_recomputed_tokens > 0
    assert (recomputed.num_swapped_tokens, recomputed.num_host_blocks) == (0, 0)
    assert swapped.num_preemptions > 0
    assert swapped.num_swapped_tokens > 0
    assert swapped.num_recomputed_tokens == 0


def test_blocks_move_beside_a_step_that_has_nothing_to_do_with_them(model):
    folder, reference = model
    block = make(folder).runner.kv_cache[:, :, 0].nbytes
    num_blocks, clock = 1 + 7 * len(reference.windows), Clock()
    engine = make(
        folder,
        clock=clock,
        kv_cache_memory=num_blocks * block,
        swap_memory=32 * block,
        max_num_batched_tokens=24,
    )
    take_time(engine, clock)
    runner = engine.runner
    run_step, move_blocks = runner.run, runner.move_blocks
    written, read, num_beside = set(), set(), 0

    def note(inputs):
        written.clear(), read.clear()
        slots = inputs.metadata.slot_mapping
        written.update((slots[slots >= 0] // 16).tolist())
        for row, length in zip(inputs.metadata.rows, inputs.metadata.seq_lens, strict=True):
            columns = inputs.metadata.block_tables[:, row, : -(-int(length) // 16)]
            read.update(columns[columns > 0].tolist())
        return run_step(inputs)

    def check(inputs):
        nonlocal num_beside
        goes, comes = set(inputs.swap_out[:, 0].tolist()), set(inputs.swap_in[:, 1].tolist())
        if engine.num_in_flight > 0:
            num_beside += len(goes) + len(comes)
            assert not goes & written
            assert not comes & (written | read)
        move_blocks(inputs)

    runner.run, runner.move_blocks = note, check
    shared = prompts(32)[0]
    asked = [[*shared, *prompt] for prompt in prompts(3, 6, 1, 9)] + prompts(35, 38)
    run(engine, [greedy(prompt, 20, ignore_eos=True) for prompt in asked])
    assert num_beside > 0
    assert_empty(engine)


@needs_emulation
def test_a_block_comes_only_after_earlier_copies_have_read_where_it_lies(llama):
    block = make(llama[0]).runner.kv_cache[:, :, 0].nbytes
    engine = make(llama[0], kv_cache_memory=9 * block, swap_memory=4 * block)
    runner, device = engine.runner, engine.accelerator
    runner.move_blocks(runner.apply(swap_plan(copies=[(3, 5)])))
    num_launches = device.num_launches
    engine.add(greedy([1, 2, 3], 4))
    engine.step()
    assert device.num_launches > num_launches
    runner.move_blocks(runner.apply(swap_plan(swap_in=[(0, 3)])))
    assert device.side_stream_after >= num_launches


@needs_emulation
def test_nothing_moves_beside_what_was_launched_in_part(llama):
    block = make(llama[0]).runner.kv_cache[:, :, 0].nbytes
    engine = make(llama[0], kv_cache_memory=9 * block, swap_memory=4 * block)
    runner, device = engine.runner, engine.accelerator

    def broken(*_):
        raise MemoryError

    runner.model.forward = broken
    with pytest.raises(MemoryError):
        runner.probe()
    runner.move_blocks(runner.apply(swap_plan(swap_in=[(0, 3)])))
    assert device.side_stream_after == device.num_launches > 0
