"""Two steps in flight: the next one is launched before the tokens of the one before are known."""

import asyncio
from dataclasses import replace

import pytest
from chairlift.api.errors import EngineDownError, Reason
from chairlift.api.types import FinishReason, Output, Tokens
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.runner.sampler import Sampled

from tests.engine.drive import (
    Panic,
    assert_empty,
    cancel_at_random,
    drain,
    end,
    greedy,
    run,
    text,
    token_ids,
)
from tests.engine.test_faults import POISON, break_forward, poison_draw, poison_prompt
from tests.engine.tiny_model import prompts

NUM_TOKENS = 40


@pytest.fixture
def make_pipelined(make_engine):
    def make(**settings):
        return make_engine(steps_in_flight=2, **settings)

    return make


@pytest.fixture(scope="module")
def alone(tiny):
    """The tokens of each prompt with one step in flight."""
    from chairlift.engine.engine import Engine

    engine = Engine(tiny.folder, max_num_seqs=1, max_num_batched_tokens=64, prefix_cache=False)
    return [token_ids(run(engine, [greedy(prompt, NUM_TOKENS)])[0]) for prompt in prompts()]


def requests():
    return [greedy(prompt, NUM_TOKENS) for prompt in prompts()]


@pytest.mark.parametrize(("depth", "left"), [(1, 0), (2, 1)])
def test_a_step_is_in_the_air_while_the_one_before_is_taken(make_engine, depth, left):
    engine = make_engine(steps_in_flight=depth)
    engine.add(greedy([1, 2, 3], 8, ignore_eos=True))
    assert len(token_ids(engine.step())) == 1
    assert engine.num_in_flight == left
    drain(engine)
    assert engine.num_in_flight == 0
    assert_empty(engine)


@pytest.mark.parametrize("num_blocks", [None, 26], ids=["room", "tight"])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cache", "no-cache"])
@pytest.mark.parametrize("batching", ["static", "dynamic", "continuous"])
def test_tokens_are_those_of_one_step_at_a_time(
    make_pipelined, kv_blocks, alone, batching, prefix_cache, num_blocks
):
    engine = make_pipelined(
        batching=batching,
        max_num_batched_tokens=24,
        prefix_cache=prefix_cache,
        kv_cache_memory=kv_blocks(num_blocks) if num_blocks else None,
    )
    for _ in range(2):
        assert [token_ids(events) for events in run(engine, requests())] == alone
    load = engine.load()
    assert (load.num_preemptions > 0) == (num_blocks is not None)
    assert (load.num_prefix_hits > 0) == prefix_cache
    assert_empty(engine)


def test_nothing_that_was_drawn_after_a_stop_is_told(make_engine, make_pipelined, alone):
    stopped = [
        greedy(prompt, NUM_TOKENS, stop_token_ids=answer[5:6])
        for prompt, answer in zip(prompts(), alone, strict=True)
    ]
    expected, got = run(make_engine(), stopped), run(engine := make_pipelined(), stopped)
    assert [token_ids(events) for events in got] == [token_ids(events) for events in expected]
    lengths = [[end(events).usage.output_tokens for events in each] for each in (got, expected)]
    assert lengths[0] == lengths[1]
    assert {end(events).reason for events in got} == {FinishReason.STOP}
    assert_empty(engine)


def test_stop_strings_cut_the_same_text(make_engine, make_pipelined):
    texts = [text(events) for events in run(make_engine(), requests())]
    stopped = [
        greedy(prompt, NUM_TOKENS, stop=(whole[6:8],))
        for prompt, whole in zip(prompts(), texts, strict=True)
    ]
    expected, got = run(make_engine(), stopped), run(engine := make_pipelined(), stopped)
    assert [text(events) for events in got] == [text(events) for events in expected]
    assert FinishReason.STOP in {end(events).reason for events in got}
    assert_empty(engine)


def test_log_probabilities_stay_with_their_tokens(make_engine, make_pipelined):
    wanted = [greedy(prompt, 6, output=Output(logprobs=True)) for prompt in prompts()]

    def logprobs(engine):
        answers = run(engine, wanted)
        return [[e.logprobs for e in events if isinstance(e, Tokens)] for events in answers]

    assert logprobs(make_pipelined()) == logprobs(make_engine())


def test_random_cancels_leave_the_pool_full(make_pipelined, kv_blocks, clock, alone):
    engine = make_pipelined(kv_cache_memory=kv_blocks(30), max_num_batched_tokens=24)
    cancel_at_random(engine, clock, prompts(), alone, NUM_TOKENS)


def test_steps_that_fail_now_and_then_are_computed_again(make_pipelined, alone):
    engine = make_pipelined()
    break_forward(engine, lambda call: call % 7 == 3)
    assert [token_ids(events) for events in run(engine, requests())] == alone
    assert_empty(engine)


def fail_on_the_device(engine, fails):
    """Let the wait for those launches (counted from 1) raise for which `fails` says so."""
    launch = engine.runner.run
    calls = iter(range(1, 1_000_000))

    class Lost(Sampled):
        def wait(self):
            raise Panic

    def launched(inputs):
        sampled = launch(inputs)
        if not fails(next(calls)):
            return sampled
        return Lost(sampled.tokens, sampled.logprobs, sampled.ranks)

    engine.runner.run = launched


def test_a_step_that_fails_late_takes_the_one_that_read_it_with_it(make_pipelined, alone):
    engine = make_pipelined()
    fail_on_the_device(engine, lambda call: call in (5, 12))
    answers = run(engine, requests())
    assert [token_ids(events) for events in answers] == alone
    timelines = [end(events).timeline for events in answers]
    assert all(timeline.num_preemptions == 0 for timeline in timelines)
    assert any(timeline.num_recomputed_tokens > 0 for timeline in timelines)
    assert_empty(engine)


@pytest.mark.parametrize("failing", [{0}, {2, 3}, set(range(8))])
def test_the_guilty_fail_alone(make_pipelined, alone, failing):
    wanted = requests()
    for i in failing:
        wanted[i] = replace(wanted[i], prompt=[*wanted[i].prompt, POISON])
    engine = make_pipelined()
    poison_prompt(engine, POISON)
    for i, events in enumerate(run(engine, wanted)):
        if i in failing:
            assert end(events).reason is Reason.STEP_FAILED
        elif POISON not in alone[i]:
            assert token_ids(events) == alone[i]
    assert_empty(engine)


def test_a_request_that_fails_amid_its_answer_keeps_what_it_got(make_pipelined, alone):
    wanted = [greedy(p, NUM_TOKENS, seed=i) for i, p in enumerate(prompts())]
    engine = make_pipelined()
    poison_draw(engine, seed=5, position=len(prompts()[5]) + 3)
    answers = run(engine, wanted)
    assert end(answers[5]).reason is Reason.STEP_FAILED
    assert token_ids(answers[5]) == alone[5][:3]
    others = [i for i in range(8) if i != 5]
    assert [token_ids(answers[i]) for i in others] == [alone[i] for i in others]
    assert_empty(engine)


def test_a_model_that_fails_for_everybody_takes_the_engine_down(make_pipelined):
    engine = make_pipelined()
    break_forward(engine, lambda call: call > 3)
    engine.add(greedy([1], 20, ignore_eos=True))
    with pytest.raises(EngineDownError):
        drain(engine)
    assert engine.num_in_flight == 0
    engine.restart()
    assert_empty(engine)


def test_an_interrupt_rolls_both_steps_back(make_pipelined, make_engine):
    engine = make_pipelined()
    wanted = greedy([1, 2, 3], 10, ignore_eos=True)
    expected = token_ids(run(make_engine(), [wanted])[0])
    request_id = engine.add(wanted).request_id
    tokens = token_ids(engine.step())
    forward = engine.runner.model.forward

    def interrupted(*args):
        engine.runner.model.forward = forward
        raise KeyboardInterrupt

    engine.runner.model.forward = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.num_in_flight == 0
    assert tokens + token_ids(drain(engine)[request_id]) == expected


def test_an_interrupt_while_steps_are_dropped_is_not_lost(make_pipelined, make_engine):
    engine = make_pipelined()
    wanted = greedy([1, 2, 3], 10, ignore_eos=True)
    expected = token_ids(run(make_engine(), [wanted])[0])
    request_id = engine.add(wanted).request_id
    launch, num_launched = engine.runner.run, 0

    class Failed(Sampled):
        def wait(self):
            raise Panic

    class Dropped(Sampled):
        def wait(self):
            raise KeyboardInterrupt

    # The second step fails on the device, its request fails alone, and the third step is dropped.
    kinds = {2: Failed, 3: Dropped}

    def run_once(inputs):
        nonlocal num_launched
        num_launched += 1
        if num_launched > 3:
            engine.runner.run = launch
            raise Panic
        sampled, kind = launch(inputs), kinds.get(num_launched, Sampled)
        return kind(sampled.tokens, sampled.logprobs, sampled.ranks)

    engine.runner.run = run_once
    tokens = token_ids(engine.step())
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.num_in_flight == 0
    # The engine goes on, and nothing is lost.
    assert tokens + token_ids(drain(engine)[request_id]) == expected
    assert_empty(engine)


def test_the_times_of_overlapping_steps_add_up_to_the_time_that_passed(make_pipelined, clock):
    engine, records = make_pipelined(), []
    engine.watch_steps(records.append)
    launch, began = engine.runner.run, clock.now

    def slow(inputs):
        sampled = launch(inputs)

        class Late(Sampled):
            def wait(self):
                clock.advance(2.0)
                return sampled

        clock.advance(0.5)
        return Late(sampled.tokens, sampled.logprobs, sampled.ranks)

    engine.runner.run = slow
    engine.add(greedy([1, 2, 3], 4, ignore_eos=True))
    drain(engine)
    assert len(records) == 4
    assert [sum(r.times) for r in records] == [r.duration_s for r in records]
    assert sum(r.duration_s for r in records) == (clock.now - began) / 1e9 == 4 * 2.5


async def test_an_async_engine_stops_with_nothing_in_the_air(tiny):
    engine = AsyncEngine(tiny.folder, steps_in_flight=2, max_num_seqs=4, max_num_batched_tokens=32)
    await engine.start()
    wanted = [greedy(prompt, 200, ignore_eos=True) for prompt in prompts()]

    async def first_tokens(request):
        async for event in engine.generate(request):
            if isinstance(event, Tokens):
                return event

    await asyncio.gather(*map(first_tokens, wanted))
    await engine.stop()
    assert not engine.has_leaked
    assert engine.engine.num_in_flight == 0
