"""Several answers to one prompt: each is what a lone request of its index answers."""

from collections import defaultdict

import numpy as np
import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import (
    Change,
    Failed,
    Finished,
    FinishReason,
    Output,
    Request,
    Sampling,
    Stopping,
    Tokens,
)
from chairlift.core.plan import PlanView

from tests.engine import tiny_model
from tests.engine.drive import assert_empty, drain, greedy, run, token_ids
from tests.engine.test_faults import poison_draw
from tests.model import families

N = 4


class AsAnswer:
    """A scheduler whose requests, of one answer each, draw as the answer of an index."""

    def __init__(self, scheduler, index):
        self._scheduler, self._index = scheduler, index

    def __getattr__(self, name):
        return getattr(self._scheduler, name)

    def schedule(self, now, plan):
        step = self._scheduler.schedule(now, plan)
        if step is not None:
            PlanView.of(np.asarray(plan)).assigned[:, 2] = self._index
        return step


def asking(prompt, n=N, *, seed=3, **stopping):
    return Request(
        prompt,
        Sampling(temperature=1.0, seed=seed, n=n),
        Stopping(**{"max_tokens": 20, "ignore_eos": True} | stopping),
        Output(logprobs=True),
    )


def by_answer(events):
    """Tokens and log probabilities of each answer."""
    answers = defaultdict(list)
    for event in events:
        if isinstance(event, Tokens):
            pairs = zip(event.token_ids, event.logprobs.logprobs, strict=True)
            answers[event.index] += list(pairs)
    return [answers[index] for index in sorted(answers)]


def alone(make_engine, requests, n=N, **settings):
    """What lone requests of each index answer."""
    answers = []
    for index in range(n):
        engine = make_engine(**settings)
        engine.stepper.wrap_scheduler(lambda scheduler, index=index: AsAnswer(scheduler, index))
        single = [
            Request(r.prompt, Sampling(1.0, seed=r.sampling.seed), r.stopping, r.output)
            for r in requests
        ]
        answers.append([by_answer(events)[0] for events in run(engine, single)])
    return [list(request) for request in zip(*answers, strict=True)]


LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 70]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefix_cache": False},
        {"max_num_batched_tokens": 9},
        {"dtype": "bfloat16"},
        {"batching": "static"},
    ],
    ids=str,
)
def test_answer_i_is_what_a_lone_request_of_that_index_gives(make_engine, settings):
    requests = [asking(list(range(1, 1 + length)), seed=length) for length in LENGTHS]
    expected = alone(make_engine, requests, **settings)
    engine = make_engine(**settings)
    answers = [by_answer(events) for events in run(engine, requests)]
    assert answers == expected
    assert all(len({tuple(answer) for answer in request}) == N for request in answers)
    assert_empty(engine)


@pytest.mark.parametrize(
    "family", ["mistral, window", "qwen3, alternating window, wide heads, biases"]
)
def test_answers_of_models_with_windows(make_engine, tmp_path, family):
    families.build(family).save_pretrained(tmp_path)
    tiny_model.write_tokenizer(tmp_path, families.SIZES["vocab_size"] - 5)
    requests = [asking(list(range(1, 1 + length))) for length in (16, 19, 20, 37)]
    expected = alone(make_engine, requests, folder=tmp_path)
    answers = run(make_engine(tmp_path), requests)
    assert [by_answer(events) for events in answers] == expected


def test_answers_that_give_way_come_back_the_same(make_engine, kv_blocks):
    requests = [asking(list(range(1, 1 + length)), max_tokens=40) for length in (20, 30, 40)]
    expected = alone(make_engine, requests)
    engine = make_engine(kv_cache_memory=kv_blocks(13))
    assert [by_answer(events) for events in run(engine, requests)] == expected
    assert engine.load().num_preemptions > 0
    assert_empty(engine)


def test_the_prompt_is_computed_once(engine):
    prompt = list(range(1, 40))
    computed = []
    engine.watch_steps(lambda record: computed.append(int(record.num_tokens.sum())))
    run(engine, [asking(prompt, max_tokens=1)])
    # The last token of the prompt is computed by each answer.
    assert sum(computed) == len(prompt) + (N - 1)


def test_each_answer_ends_once_and_the_prompt_is_counted_once(engine):
    request_id = engine.add(asking([1, 2, 3], max_tokens=5)).request_id
    ends = [e for e in drain(engine)[request_id] if isinstance(e, Finished)]
    assert sorted(end.index for end in ends) == list(range(N))
    assert [end.last for end in ends] == [False] * (N - 1) + [True]
    assert sum(end.usage.prompt_tokens for end in ends) == 3
    assert [end.usage.output_tokens for end in ends] == [5] * N


def test_an_answer_goes_on_when_others_have_stopped(make_engine):
    whole = run(make_engine(), [asking([4, 5, 6])])[0]
    tokens = [[token for token, _ in answer] for answer in by_answer(whole)]
    stop = next(t for t in tokens[1] if sum(t in answer for answer in tokens) == 1)
    engine = make_engine()
    events = run(engine, [asking([4, 5, 6], stop_token_ids=[stop])])[0]
    reasons = {e.index: e.reason for e in events if isinstance(e, Finished)}
    expected = [FinishReason.LENGTH] * N
    expected[1] = FinishReason.STOP
    assert [reasons[index] for index in range(N)] == expected
    assert [len(answer) for answer in by_answer(events)].count(20) == N - 1
    assert_empty(engine)


@pytest.mark.parametrize("num_steps", range(5))
def test_a_cancel_ends_all_answers_in_any_state(make_engine, num_steps):
    engine = make_engine(max_num_batched_tokens=8)
    request_id = engine.add(asking(list(range(1, 18)))).request_id
    mate = engine.add(greedy([7, 8, 9], 12)).request_id
    events = [event for _ in range(num_steps) for event in engine.step()]
    assert engine.abort(request_id)
    events += drain(engine)[request_id]
    ends = [e for e in events if isinstance(e, Finished) and e.request_id == request_id]
    assert [end.reason for end in ends] == [FinishReason.CANCELLED] * N
    assert [end.last for end in ends] == [False] * (N - 1) + [True]
    assert mate not in {end.request_id for end in ends}
    assert_empty(engine)


def test_an_answer_that_fails_ends_its_request_alone(make_engine):
    mates = [greedy([5, 6, 7], 15), asking([8, 9, 10], n=2, seed=9)]
    clean = [token_ids(events) for events in run(make_engine(), mates)]
    engine = make_engine()
    poison_draw(engine, seed=3, position=9)
    ids = [engine.add(request).request_id for request in (asking([1, 2, 3]), *mates)]
    events = drain(engine)
    end = events[ids[0]][-1]
    assert isinstance(end, Failed)
    assert end.reason is Reason.STEP_FAILED
    assert end.usage.prompt_tokens == 3
    assert [token_ids(events[request_id]) for request_id in ids[1:]] == clean
    assert_empty(engine)


def test_a_pause_holds_all_answers_and_credit_is_theirs_together(make_engine):
    expected = by_answer(run(make_engine(), [asking([1, 2, 3], n=2)])[0])
    engine = make_engine()
    prompt = asking([1, 2, 3], n=2)
    request = Request(prompt.prompt, prompt.sampling, prompt.stopping, prompt.output, credit=5)
    request_id = engine.add(request).request_id
    events = [event for _ in range(9) for event in engine.step()]
    assert len(token_ids(events)) == 5
    engine.change(request_id, Change(credit=100, paused=True))
    assert not any(engine.step() for _ in range(3))
    engine.change(request_id, Change(paused=False))
    events += drain(engine)[request_id]
    assert by_answer(events) == expected


def test_generate_gives_the_answers_of_each_prompt_in_order(engine):
    sampling = Sampling(temperature=1.0, seed=3, n=3)
    stopping = Stopping(max_tokens=6, ignore_eos=True)
    answers = engine.generate([[1, 2, 3], [4, 5]], sampling, stopping)
    assert [answer.index for answer in answers] == [0, 1, 2] * 2
    assert [answer.usage.prompt_tokens for answer in answers] == [3, 0, 0, 2, 0, 0]
    assert all(len(answer.token_ids) == 6 for answer in answers)


def test_generate_waits_for_room_in_the_queue(make_engine):
    engine = make_engine(max_num_seqs=4, max_queued_requests=4)
    sampling = Sampling(temperature=1.0, n=3)
    answers = engine.generate([[1, 2, 3]] * 5, sampling, Stopping(max_tokens=3))
    assert len(answers) == 15


@pytest.mark.parametrize(("n", "most"), [(0, 8), (9, 8), (-1, 8)])
def test_the_number_of_answers_is_checked(engine, n, most):
    with pytest.raises(RequestError, match=rf"sampling\.n: .* {most}.*got {n}") as caught:
        engine.add(asking([1, 2, 3], n=n))
    assert caught.value.field == "sampling.n"
    assert caught.value.reason is Reason.BAD_PARAMETER


def test_no_request_asks_for_more_than_128_answers(make_engine):
    engine = make_engine(max_num_seqs=200, max_num_batched_tokens=200)
    with pytest.raises(RequestError, match="128"):
        engine.add(asking([1], n=129))
    engine.add(asking([1], n=128, max_tokens=2))
    drain(engine)
    assert_empty(engine)
