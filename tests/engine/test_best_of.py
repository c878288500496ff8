"""Best-of: of the answers that are drawn the best come back, and what is drawn does not change."""

import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import (
    Constraint,
    Failed,
    Finished,
    FinishReason,
    Output,
    Request,
    Sampling,
    Stopping,
)

from tests.engine.drive import assert_empty, drain, run, token_ids
from tests.engine.test_faults import poison_draw
from tests.engine.tiny_model import prompts

ALL = Output(logprobs=True, candidates=3)
STOPPING = Stopping(max_tokens=9, ignore_eos=True)


def total(answer):
    return sum(answer.logprobs)


def values(answer):
    return (answer.text, answer.token_ids, answer.logprobs, answer.candidates, answer.reason)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("drafts", ["off", "lookup"])
def test_the_best_by_total_log_probability_come_back_in_order(make_engine, n, drafts):
    engine = make_engine(drafts=drafts)
    drawn = Sampling(seed=5, n=4)
    several = engine.generate(list(prompts()), drawn, STOPPING, ALL)
    best_of = Sampling(seed=5, n=n, best_of=4)
    found = engine.generate(list(prompts()), best_of, STOPPING, ALL)
    for place in range(len(prompts())):
        ordered = sorted(several[4 * place : 4 * place + 4], key=total, reverse=True)
        own = found[n * place : n * place + n]
        assert list(map(values, own)) == list(map(values, ordered[:n]))
        assert [answer.index for answer in own] == list(range(n))
        usage = own[0].usage
        assert usage.prompt_tokens == len(prompts()[place])
        assert usage.unsent_tokens == sum(len(a.token_ids) for a in ordered[n:])
        assert all(a.usage.unsent_tokens == a.usage.prompt_tokens == 0 for a in own[1:])
    assert_empty(engine)


def test_they_come_at_the_end_even_if_preempted(make_engine, kv_blocks):
    wanted = [
        Request(list(prompt), Sampling(seed=i, best_of=2), Stopping(max_tokens=60, ignore_eos=True))
        for i, prompt in enumerate(prompts())
    ]
    expected = [token_ids(events) for events in run(make_engine(), wanted)]
    engine = make_engine(kv_cache_memory=kv_blocks(16))
    answers = run(engine, wanted)
    assert engine.load().num_preemptions > 0
    assert [token_ids(events) for events in answers] == expected
    assert all(len(events) == 2 for events in answers)
    assert_empty(engine)


def cancelled_after_three_steps(engine, sampling):
    request_id = engine.add(Request([5, 6], sampling, STOPPING)).request_id
    before = [event for _ in range(3) for event in engine.step()]
    engine.cancel(request_id)
    return before, drain(engine)[request_id]


def test_a_cancel_ends_with_the_best_so_far(engine):
    before, events = cancelled_after_three_steps(engine, Sampling(seed=1, n=2, best_of=3))
    assert before == []
    sent, _ = cancelled_after_three_steps(engine, Sampling(seed=1, n=3))
    ends = [event for event in events if isinstance(event, Finished)]
    assert [(end.index, end.reason, end.last) for end in ends] == [
        (0, FinishReason.CANCELLED, False),
        (1, FinishReason.CANCELLED, True),
    ]
    assert len(token_ids(events)) + ends[0].usage.unsent_tokens == len(token_ids(sent)) > 0
    assert_empty(engine)


def test_credit_is_that_of_all_that_are_drawn(engine):
    request = Request([5, 6], Sampling(seed=1, best_of=3), STOPPING, credit=6)
    engine.add(request)
    for _ in range(20):
        assert engine.step() == []
    assert engine.load().num_running_suspended == 3


def test_a_fault_ends_all_with_one_event(engine):
    poison_draw(engine, seed=1, position=5)
    (events,) = run(engine, [Request([5, 6], Sampling(seed=1, best_of=3), STOPPING)])
    (failed,) = events
    assert isinstance(failed, Failed)
    assert failed.reason is Reason.STEP_FAILED
    assert_empty(engine)


@pytest.mark.parametrize("best_of", [0, 1, 9, True, "2"])
def test_wrong_numbers_are_refused_by_name(engine, best_of):
    with pytest.raises(RequestError) as refused:
        engine.add(Request([1], Sampling(n=2, best_of=best_of)))
    assert refused.value.field == "sampling.best_of"


def test_it_is_refused_with_a_constraint(engine):
    request = Request(
        [5, 6], Sampling(best_of=3), STOPPING, constraint=Constraint(choices=["a", "b"])
    )
    with pytest.raises(RequestError) as caught:
        engine.add(request)
    assert (caught.value.reason, caught.value.field) == (Reason.UNSUPPORTED, "sampling.best_of")
