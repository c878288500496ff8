"""A fault fails the guilty alone, or takes the engine down with everybody told."""

import logging

import pytest
from chairlift.errors import EngineDownError, Reason, RequestError
from chairlift.types import Failed, Finished, Request

from tests.engine.drive import Panic, assert_empty, drain, end, greedy, run, token_ids
from tests.engine.tiny_model import prompts


def break_forward(engine, fails):
    """Raises in the forward pass of those calls (counted from 1) for which `fails` says so."""
    forward = engine.runner.model.forward
    calls = iter(range(1, 1_000_000))

    def broken(*args):
        if fails(next(calls)):
            raise Panic
        return forward(*args)

    engine.runner.model.forward = broken


def test_a_step_that_fails_once_is_computed_again(engine):
    wanted = [greedy(p, 20) for p in prompts()]
    clean = [token_ids(events) for events in run(engine, wanted)]
    break_forward(engine, lambda call: call == 6)
    answers = run(engine, wanted)
    assert [token_ids(events) for events in answers] == clean
    assert_empty(engine)


def test_a_step_that_fails_twice_fails_its_requests_and_the_engine_goes_on(engine):
    break_forward(engine, lambda call: call in (3, 4))
    answers = run(engine, [greedy(p, 20) for p in prompts()[:3]])
    assert [end(events).reason for events in answers] == [Reason.STEP_FAILED] * 3
    assert_empty(engine)
    assert isinstance(end(run(engine, [greedy([1, 2], 5)])[0]), Finished)


def test_a_step_that_always_fails_ends_everybody(make_engine):
    engine = make_engine(max_num_seqs=2)
    break_forward(engine, lambda call: True)
    answers = run(engine, [greedy(p, 20) for p in prompts()])
    assert [end(events).reason for events in answers] == [Reason.STEP_FAILED] * 8
    assert_empty(engine)


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
    engine.scheduler = Broken()
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
    break_forward(engine, lambda call: True)
    events = run(engine, [greedy([345, 346, 347], 20)])[0]
    assert isinstance(end(events), Failed)
    assert "345" not in caplog.text
    assert caplog.records
