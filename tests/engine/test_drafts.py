"""Drafts make steps fewer and change no token: what a request draws is the same with them."""

from types import SimpleNamespace

import pytest
import torch
from chairlift.api.config import Dtype
from chairlift.api.types import Output, Request, Sampling, Stopping
from chairlift.engine.engine import Engine

from tests.engine.drive import assert_empty, end, run, token_ids, watch_sampler
from tests.engine.tiny_model import prompts

NUM_TOKENS = 60


def requests(temperature=0.0, n=1):
    """Requests whose prompts repeat themselves; a greedy answer of a small model does, too."""
    return [
        Request(
            prompt[:40] * 2,
            Sampling(temperature=temperature, seed=1000 + i, n=n),
            Stopping(max_tokens=NUM_TOKENS),
            Output(logprobs=True),
        )
        for i, prompt in enumerate(prompts())
    ]


def watch_steps(engine):
    """Record how many rows each step has, and how many tokens they draw."""
    steps = []
    engine.watch_steps(
        lambda record: steps.append((len(record.rows), int(record.num_tokens.sum())))
    )
    return steps


@pytest.fixture(scope="module")
def without(tiny):
    """Answers by temperature when no step has drafts."""
    engine = Engine(tiny.folder, max_num_seqs=8, max_num_batched_tokens=512, drafts="off")
    drawn = [token_ids(events) for events in run(engine, requests(temperature=1.0))]
    logits = watch_sampler(engine)
    answers = {0.0: [token_ids(events) for events in run(engine, requests())], 1.0: drawn}
    return SimpleNamespace(answers=answers, logits=logits)


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "drawn"])
@pytest.mark.parametrize("num_blocks", [None, 30], ids=["room", "tight"])
@pytest.mark.parametrize("budget", [12, 512], ids=["chunked", "whole"])
@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_answers_are_those_without_drafts(
    make_engine, kv_blocks, without, batching, budget, num_blocks, temperature
):
    engine = make_engine(
        drafts="lookup",
        batching=batching,
        max_num_batched_tokens=budget,
        kv_cache_memory=kv_blocks(num_blocks) if num_blocks else None,
    )
    # The second round reads what the first one left in the prefix cache.
    for _ in range(2):
        answers = run(engine, requests(temperature))
        assert [token_ids(events) for events in answers] == without.answers[temperature]
    assert_empty(engine)


def test_logits_are_those_without_drafts(make_engine, without):
    engine = make_engine(drafts="lookup", max_num_batched_tokens=512)
    logits = watch_sampler(engine)
    assert [token_ids(events) for events in run(engine, requests())] == without.answers[0.0]
    assert all(torch.equal(logits[key], expected) for key, expected in without.logits.items())


def test_accepted_drafts_save_steps(make_engine):
    engine = make_engine(drafts="lookup")
    sample = engine.runner.sampler.sample

    def write_circles(logits, *arguments, position, **others):
        logits[torch.arange(len(position)), 40 + position % 7] = 1e6
        return sample(logits, *arguments, position=position, **others)

    engine.runner.sampler.sample = write_circles
    steps = watch_steps(engine)
    (events,) = run(engine, requests()[:1])
    answer = token_ids(events)
    assert answer[1:] == [40 + (answer[0] - 40 + i) % 7 for i in range(1, NUM_TOKENS)]
    assert len(steps) < NUM_TOKENS / 2


@pytest.mark.parametrize(
    ("quantize", "kv"), [("none", "auto"), ("int8", "auto"), ("int4", "auto"), ("none", "int8")]
)
def test_bits_are_those_without_drafts_in_every_format(make_engine, kv_blocks, quantize, kv):
    kind = {"dtype": "bfloat16", "quantize": quantize, "kv_cache_dtype": kv}
    expected = [token_ids(events) for events in run(make_engine(**kind), requests())]
    engine = make_engine(
        **kind,
        drafts="lookup",
        kv_cache_memory=kv_blocks(30, dtype=Dtype.BFLOAT16, kv=kv),
    )
    assert [token_ids(events) for events in run(engine, requests())] == expected
    assert engine.load().num_preemptions > 0


def test_log_probabilities_and_stops_are_those_without_drafts(make_engine):
    def answers(drafts):
        engine = make_engine(drafts=drafts)
        stopping = Stopping(max_tokens=NUM_TOKENS, stop=["e", "a", "1"])
        texts = [
            Request(request.prompt, request.sampling, stopping, request.output)
            for request in requests()
        ]
        return engine.generate([text.prompt for text in texts], Sampling(temperature=0), stopping)

    def values(answer):
        return (answer.text, answer.token_ids, answer.reason, answer.logprobs)

    assert [values(a) for a in answers("off")] == [values(a) for a in answers("lookup")]


def test_each_of_several_answers_has_its_own_drafts(make_engine):
    def tokens(drafts):
        engine = make_engine(drafts=drafts)
        answers = engine.generate(
            requests()[7].prompt,
            Sampling(temperature=0.3, seed=5, n=4),
            Stopping(max_tokens=NUM_TOKENS),
        )
        return [answer.token_ids for answer in answers]

    assert tokens("off") == tokens("lookup")


def test_penalties_see_the_drafts_before_them(make_engine):
    def tokens(drafts):
        sampling = Sampling(temperature=0.5, seed=9, repetition_penalty=1.3, frequency_penalty=0.2)
        engine = make_engine(drafts=drafts)
        prompts_of_all = [request.prompt for request in requests()]
        answers = engine.generate(prompts_of_all, sampling, Stopping(max_tokens=NUM_TOKENS))
        return [answer.token_ids for answer in answers]

    assert tokens("off") == tokens("lookup")


def test_a_cancelled_request_with_drafts_leaves_nothing(make_engine):
    engine = make_engine(drafts="lookup")
    ids = [engine.add(request).request_id for request in requests()]
    for _ in range(12):
        engine.step()
    for request_id in ids[::2]:
        engine.abort(request_id)
    while engine.has_work:
        engine.step()
    assert_empty(engine)


def test_a_failed_step_with_drafts_is_computed_again(make_engine, without):
    engine = make_engine(drafts="lookup")
    run_step, calls = engine.runner.run, iter(range(10_000))

    def failing(inputs):
        if next(calls) in (9, 15, 16):
            raise ArithmeticError
        return run_step(inputs)

    engine.runner.run = failing
    answers = run(engine, requests())
    assert [token_ids(events) for events in answers] == without.answers[0.0]
    assert all(end(events).usage.output_tokens == len(token_ids(events)) for events in answers)
