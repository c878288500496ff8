"""A fault ends the failing requests alone, or takes the engine down and fails every request."""

import logging
import math

import pytest
from chairlift.api.errors import EngineDownError, Reason, RequestError
from chairlift.api.types import Failed, Output, Request, Tokens

from tests.engine.drive import Panic, assert_empty, drain, end, greedy, run, token_ids
from tests.engine.tiny_model import prompts

POISON = 377
"""A token that no prompt holds and no answer; it is in no text either."""


def break_forward(engine, fails):
    """Raise in the forward pass of those calls (counted from 1) for which `fails` says so."""
    forward = engine.runner.model.forward
    calls = iter(range(1, 1_000_000))

    def broken(*args):
        if fails(next(calls)):
            raise Panic
        return forward(*args)

    engine.runner.model.forward = broken


def test_a_step_that_fails_once_is_computed_again(make_engine, engine):
    wanted = [greedy(p, 20) for p in prompts()]
    clean = [token_ids(events) for events in run(make_engine(), wanted)]
    break_forward(engine, lambda call: call == 6)
    answers = run(engine, wanted)
    assert [token_ids(events) for events in answers] == clean
    assert_empty(engine)


def poison_prompt(engine, token):
    """The forward pass raises for every chunk of a prompt that holds a token."""
    forward = engine.runner.model.forward

    def poisoned(input_ids, *args):
        if token in input_ids.tolist():
            raise Panic
        return forward(input_ids, *args)

    engine.runner.model.forward = poisoned


def poison_draw(engine, seed, position):
    """Sampling raises for a request from a position on."""
    sampler = engine.runner.sampler
    sample = sampler.sample

    def poisoned(logits, slots, **places):
        seeds = sampler.seed.index_select(0, slots)
        if bool(((seeds == seed) & (places["position"] >= position)).any()):
            raise MemoryError
        return sample(logits, slots, **places)

    sampler.sample = poisoned


def alone(engine, requests):
    return [token_ids(run(engine, [request])[0]) for request in requests]


@pytest.mark.parametrize("failing", [{0}, {7}, {2, 3}, {1, 4, 6}, set(range(8))])
def test_prompts_the_model_fails_for_fail_alone(make_engine, failing):
    clean = [[token for token in prompt if token != POISON] for prompt in prompts()]
    requests = [greedy(p, 12, ignore_eos=True) for p in clean]
    expected = alone(make_engine(), requests)
    assert not any(POISON in tokens for tokens in expected)

    engine = make_engine()
    poison_prompt(engine, POISON)
    for i in failing:
        requests[i] = greedy([*clean[i], POISON], 12, ignore_eos=True)
    answers = run(engine, requests)
    for i, events in enumerate(answers):
        if i in failing:
            assert end(events).reason is Reason.STEP_FAILED
            assert token_ids(events) == []
        else:
            assert token_ids(events) == expected[i]
    assert_empty(engine)


def test_a_request_that_fails_amid_its_answer_keeps_what_it_got(make_engine):
    requests = [greedy(p, 12, seed=i, ignore_eos=True) for i, p in enumerate(prompts())]
    expected = alone(make_engine(), requests)
    engine = make_engine()
    poison_draw(engine, seed=5, position=len(prompts()[5]) + 7)
    answers = run(engine, requests)
    assert end(answers[5]).reason is Reason.STEP_FAILED
    assert token_ids(answers[5]) == expected[5][:7]
    del answers[5], expected[5]
    assert [token_ids(events) for events in answers] == expected
    assert_empty(engine)


def test_a_guilty_row_costs_few_passes(make_engine):
    engine = make_engine(max_num_seqs=32)
    requests = [greedy([i + 1], 3, ignore_eos=True) for i in range(32)]
    requests[13] = greedy([POISON], 3, ignore_eos=True)
    poison_prompt(engine, POISON)
    forward, num_rows = engine.runner.model.forward, []

    def counted(input_ids, metadata, *args):
        num_rows.append(len(metadata.rows))
        return forward(input_ids, metadata, *args)

    engine.runner.model.forward = counted
    run(engine, requests)
    # The step, ten parts with the probe amid them; then the others again, and two decodes.
    assert num_rows == [32, 16, 8, 8, 4, 4, 2, 1, 1, 1, 2, 16, 31, 31, 31]


def test_a_step_that_is_too_large_runs_in_parts(make_engine):
    requests = [greedy(p, 12, ignore_eos=True) for p in prompts()]
    expected = alone(make_engine(), requests)
    engine = make_engine()
    forward = engine.runner.model.forward

    def small_only(input_ids, metadata, *args):
        if len(metadata.rows) > 2:
            raise MemoryError
        return forward(input_ids, metadata, *args)

    engine.runner.model.forward = small_only
    answers = run(engine, requests)
    assert [token_ids(events) for events in answers] == expected
    assert end(answers[0]).timeline.num_preemptions == 0
    assert_empty(engine)


def test_log_probabilities_follow_their_rows_through_the_parts(make_engine):
    requests = [greedy(p, 6, output=Output(logprobs=True)) for p in prompts()]
    logprobs = lambda answers: [  # noqa: E731
        [e.logprobs for e in events if isinstance(e, Tokens)] for events in answers
    ]
    expected = logprobs(run(make_engine(), requests))
    engine = make_engine()
    break_forward(engine, lambda call: call % 4 == 1)
    assert logprobs(run(engine, requests)) == expected


def test_a_model_that_fails_for_everybody_takes_the_engine_down(engine):
    break_forward(engine, lambda call: True)
    for p in prompts():
        engine.add(greedy(p, 20))
    with pytest.raises(EngineDownError):
        engine.step()
    with pytest.raises(RequestError) as refused:
        engine.add(greedy([1]))
    assert refused.value.reason is Reason.ENGINE_DOWN


def test_a_sampler_that_fails_for_everybody_takes_the_engine_down(engine):
    def broken(*args, **kwargs):
        raise Panic

    engine.runner.sampler.sample = broken
    engine.add(greedy([1], 20))
    with pytest.raises(EngineDownError):
        engine.step()


def test_a_model_whose_logits_are_never_finite_takes_the_engine_down(engine):
    # Each draw alone would fail one request after the other.
    break_forward(engine, lambda call: call < 3)
    logits = engine.runner.model.logits
    engine.runner.model.logits = lambda hidden: logits(hidden) * math.nan
    engine.add(greedy([1], 20))
    with pytest.raises(EngineDownError):
        engine.step()


def test_an_interrupt_rolls_the_step_back(engine):
    forward = engine.runner.model.forward

    def interrupted(*args):
        engine.runner.model.forward = forward
        raise KeyboardInterrupt

    wanted = greedy([1, 2, 3], 10)
    clean = token_ids(run(engine, [wanted])[0])
    engine.runner.model.forward = interrupted
    request_id = engine.add(wanted).request_id
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert token_ids(drain(engine)[request_id]) == clean


def test_a_fault_in_the_scheduler_takes_the_engine_down(engine):
    class Broken:
        def __getattr__(self, name):
            raise Panic

    engine.add(greedy([1, 2, 3]))
    engine.stepper.core.scheduler = Broken()
    with pytest.raises(EngineDownError):
        engine.step()
    with pytest.raises(EngineDownError):
        engine.step()
    with pytest.raises(RequestError) as refused:
        engine.add(greedy([1, 2, 3]))
    assert refused.value.reason is Reason.ENGINE_DOWN


def test_a_tokenizer_that_panics_fails_one_request(engine, monkeypatch):
    def panic(*args):
        raise Panic

    with monkeypatch.context() as patch:
        patch.setattr(type(engine.tokenizer), "encode", panic)
        with pytest.raises(RequestError) as refused:
            engine.prepare(Request("one two"))
    assert (refused.value.reason, refused.value.field) == (Reason.INTERNAL, "prompt")
    engine.prepare(Request("one two"))


def test_logs_hold_no_tokens(engine, caplog):
    caplog.set_level(logging.DEBUG)
    poison_prompt(engine, 346)
    events = run(engine, [greedy([345, 346, 347], 20)])[0]
    assert isinstance(end(events), Failed)
    assert "345" not in caplog.text
    assert caplog.records
