"""A draft model proposes tokens: no answer changes, steps are saved, and nothing is left behind."""

import dataclasses

import pytest
import torch
from chairlift import Engine
from chairlift.api.types import (
    Change,
    Constraint,
    Failed,
    Finished,
    Output,
    Request,
    Sampling,
    Schedule,
    Stopping,
    Tokens,
)

from tests.engine import tiny_model
from tests.engine.drive import (
    Panic,
    assert_empty,
    cancel_at_random,
    drain,
    end,
    greedy,
    run,
    token_ids,
)
from tests.engine.test_drafts import watch_steps
from tests.engine.test_faults import poison_draw
from tests.engine.tiny_model import prompts

NUM_TOKENS = 40

KINDS = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 0.5, "n": 3},
    {"temperature": 0.8, "logit_bias": {65: 4.0, 66: 4.0}, "banned_token_ids": [67, 68]},
    {"temperature": 1.0, "top_k": 20, "min_p": 0.05},
    {"temperature": 1.0, "dry_multiplier": 0.8},
    {"temperature": 1.0},
)
"""Each of the eight prompts is sampled in one of these ways; the last answer has a constraint."""


def requests():
    return [
        Request(
            prompt,
            Sampling(seed=1000 + i, **kind),
            Stopping(max_tokens=NUM_TOKENS),
            Output(logprobs=True),
            constraint=Constraint(regex="[a-z]{30,60}") if i == len(KINDS) - 1 else None,
        )
        for i, (prompt, kind) in enumerate(zip(prompts(), KINDS, strict=True))
    ]


def drawn(seed=7, num_tokens=60, temperature=1.0):
    return Request(
        prompts()[4],
        Sampling(temperature=temperature, seed=seed),
        Stopping(max_tokens=num_tokens, ignore_eos=True),
    )


def by_answer(events):
    """Tokens and log probabilities of each answer of a request, and why it ended."""
    answers = {}
    for event in events:
        if isinstance(event, Tokens):
            pairs = zip(event.token_ids, event.logprobs.logprobs, strict=True)
            answers.setdefault(event.index, []).extend(pairs)
        elif isinstance(event, Finished):
            answers.setdefault(event.index, []).append(event.reason)
    return answers


def answers(engine, wanted):
    return [by_answer(events) for events in run(engine, wanted)]


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another model of the same tokenizer."""
    folder = tmp_path_factory.mktemp("draft")
    tiny_model.write(folder, seed=9)
    return folder


@pytest.fixture(scope="module")
def without(tiny):
    """What the requests answer without drafts."""
    with Engine(tiny.folder, max_num_seqs=8, max_num_batched_tokens=64, drafts="off") as engine:
        return answers(engine, requests())


@pytest.fixture
def make_drafting(make_engine, tiny):
    """Build engines with a draft model: itself, or another."""

    def make(draft=tiny.folder, **settings):
        return make_engine(draft=str(draft), drafts="lookup", **settings)

    return make


def watch_passes(engine):
    """Record how many tokens each pass of the draft model has."""
    passes = []
    draft_model = engine.stepper.draft_model
    forward = draft_model.model.forward

    def watched(input_ids, *inputs):
        passes.append(len(input_ids))
        return forward(input_ids, *inputs)

    draft_model.model.forward = watched
    return passes


def assert_nothing_held(engine):
    draft_model = engine.stepper.draft_model
    assert (draft_model.num_answers, draft_model.num_used_blocks) == (0, 0)
    assert_empty(engine)


CHUNKED = {"max_num_batched_tokens": 24}


@pytest.mark.parametrize(
    ("is_other", "settings", "num_blocks", "num_host_blocks"),
    [
        (False, {}, None, 0),
        (True, CHUNKED, None, 0),
        (True, {}, 26, 0),
        (False, {"batching": "static"}, None, 0),
        (False, CHUNKED, 26, 20),
    ],
    ids=["itself", "other-chunked", "other-preempted", "static", "chunked-swapped"],
)
def test_answers_are_those_without(
    make_drafting, kv_blocks, tiny, other, without, is_other, settings, num_blocks, num_host_blocks
):
    engine = make_drafting(
        other if is_other else tiny.folder,
        **settings,
        kv_cache_memory=kv_blocks(num_blocks) if num_blocks else None,
        swap_memory=kv_blocks(num_host_blocks) if num_host_blocks else None,
    )
    passes = watch_passes(engine)
    assert answers(engine, requests()) == without
    assert_nothing_held(engine)
    assert len(passes) > NUM_TOKENS // 2
    assert (engine.load().num_preemptions > 0) == (num_blocks is not None)
    assert engine.stepper.draft_model.is_on
    if num_blocks is None:
        # This reads what the first round left in the prefix cache.
        assert answers(engine, requests()) == without


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "drawn"])
def test_all_drafts_of_a_model_for_itself_are_right(make_drafting, temperature):
    engine = make_drafting()
    steps = watch_steps(engine)
    (events,) = run(engine, [drawn(temperature=temperature)])
    assert len(token_ids(events)) == 60
    # The prompt's step draws one token, every other step nine at least, and the last one fewer.
    assert len(steps) <= 1 + -(-59 // 9)


def test_drafts_of_another_model_are_mostly_wrong(make_drafting, other):
    engine = make_drafting(other)
    steps, passes = watch_steps(engine), watch_passes(engine)
    (events,) = run(engine, [drawn()])
    assert len(token_ids(events)) == 60
    assert len(passes) > 100
    assert len(steps) > 40


def test_stops_and_updates_hold_amid_drafts(make_engine, make_drafting):
    def tokens(engine):
        engine.add(drawn())
        request_id = engine.add(drawn(seed=8)).request_id
        seen = []
        while len(seen) < 10:
            events = [e for e in engine.step() if e.request_id == request_id]
            seen += token_ids(events)
        engine.change(request_id, Change(stopping=Stopping(max_tokens=25)))
        events = drain(engine)[request_id]
        return seen + token_ids(events), end(events).reason

    engine = make_drafting()
    assert tokens(engine) == tokens(make_engine())
    assert_nothing_held(engine)


def test_a_paused_answer_has_no_drafts_and_goes_on_as_it_was(make_engine, make_drafting):
    (expected,) = run(make_engine(), [drawn()])
    engine = make_drafting()
    request_id = engine.add(drawn()).request_id
    seen = engine.step() + engine.step()
    engine.change(request_id, Change(paused=True))
    passes = watch_passes(engine)
    for _ in range(5):
        seen += engine.step()
    assert not passes
    engine.change(request_id, Change(paused=False))
    assert token_ids(seen + drain(engine)[request_id]) == token_ids(expected)
    assert_nothing_held(engine)


def test_cancels_leave_nothing_behind(make_drafting, make_engine, clock):
    wanted = prompts()
    expected = [token_ids(e) for e in run(make_engine(), [greedy(p, 12) for p in wanted])]
    engine = make_drafting(max_num_seqs=4)
    cancel_at_random(engine, clock, wanted, expected, 12)
    assert_nothing_held(engine)


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 5])
def test_a_cancel_after_some_steps_frees_what_the_draft_model_holds(
    make_drafting, kv_blocks, num_steps
):
    engine = make_drafting(max_num_seqs=4, kv_cache_memory=kv_blocks(20))
    ids = [engine.add(request).request_id for request in requests()]
    for _ in range(num_steps):
        engine.step()
    assert engine.stepper.draft_model.num_answers == 0 or num_steps > 1
    engine.change(ids[1], Change(paused=True))
    for request_id in ids:
        engine.abort(request_id)
    drain(engine)
    assert_nothing_held(engine)


def test_a_time_limit_frees_what_the_draft_model_holds(make_drafting, clock):
    engine = make_drafting()
    engine.add(dataclasses.replace(drawn(num_tokens=200), schedule=Schedule(time_limit_s=1)))
    for _ in range(3):
        engine.step()
    assert engine.stepper.draft_model.num_used_blocks > 0
    clock.advance(2)
    drain(engine)
    assert_nothing_held(engine)


def test_a_small_cache_is_shared_by_the_answers_that_decode(
    make_drafting, kv_blocks, without, monkeypatch
):
    monkeypatch.setattr("chairlift.engine.loading.draft.KV_CACHE_BYTES", kv_blocks(8))
    engine = make_drafting()
    draft_model, passes = engine.stepper.draft_model, watch_passes(engine)
    assert draft_model.kv_cache.nbytes == kv_blocks(8)
    assert answers(engine, requests()) == without
    assert len(passes) > NUM_TOKENS
    assert draft_model.is_on
    assert_nothing_held(engine)


def test_no_answer_reads_keys_that_another_one_wrote(make_drafting):
    engine = make_drafting()
    # Where keys are not finite, logits are not, and there is no draft.
    engine.stepper.draft_model.kv_cache.fill_(torch.nan)
    steps = watch_steps(engine)
    for seed in range(4):
        run(engine, [drawn(seed)])
    assert len(steps) <= 4 * 8
    assert_nothing_held(engine)


@pytest.mark.parametrize("call", [0, 9])
def test_a_draft_model_that_fails_drafts_no_more_and_no_request_fails(make_drafting, without, call):
    engine = make_drafting()
    draft_model = engine.stepper.draft_model
    forward, calls = draft_model.model.forward, iter(range(100_000))

    def broken(*inputs):
        if next(calls) == call:
            raise Panic
        return forward(*inputs)

    draft_model.model.forward = broken
    assert answers(engine, requests()) == without
    assert not draft_model.is_on
    assert next(calls) == call + 1
    assert_nothing_held(engine)
    engine.add(drawn())
    engine.restart()
    assert engine.stepper.draft_model.is_on
    assert_nothing_held(engine)


def test_logits_that_are_not_finite_are_no_drafts(make_drafting, without):
    engine = make_drafting()
    draft_model = engine.stepper.draft_model
    logits, calls = draft_model.model.logits, iter(range(100_000))

    def broken(hidden):
        values = logits(hidden)
        if next(calls) % 3 == 0:
            values[0] = torch.nan
        return values

    draft_model.model.logits = broken
    assert answers(engine, requests()) == without
    assert draft_model.is_on
    assert next(calls) > NUM_TOKENS
    assert_nothing_held(engine)


def test_tokens_that_the_draft_model_has_not_are_not_read(
    make_drafting, without, tmp_path, monkeypatch
):
    monkeypatch.setattr(tiny_model, "VOCAB_SIZE", 350)
    tiny_model.write(tmp_path)
    engine = make_drafting(tmp_path)
    passes = watch_passes(engine)
    assert answers(engine, requests()) == without
    assert engine.stepper.draft_model.is_on
    assert passes
    assert_nothing_held(engine)


def test_a_request_that_fails_is_forgotten(make_drafting):
    engine = make_drafting()
    ids = [engine.add(drawn(seed)).request_id for seed in range(4)]
    poison_draw(engine, seed=2, position=len(prompts()[4]) + 20)
    ends = {request_id: end(events) for request_id, events in drain(engine).items()}
    assert [isinstance(ends[request_id], Failed) for request_id in ids] == [
        False,
        False,
        True,
        False,
    ]
    assert_nothing_held(engine)


@pytest.mark.parametrize(("seconds", "is_used"), [(0.001, True), (0.1, False)])
def test_a_draft_model_drafts_where_its_time_pays(make_drafting, clock, seconds, is_used):
    engine = make_drafting()
    draft_model, passes = engine.stepper.draft_model, []
    run_step = engine.runner.run

    def timed_step(inputs):
        clock.advance(0.05 + 0.001 * len(inputs.input_ids))
        return run_step(inputs)

    engine.runner.run = timed_step
    forward = draft_model.model.forward

    def timed(*inputs):
        passes.append(seconds)
        clock.advance(seconds)
        return forward(*inputs)

    draft_model.model.forward = timed
    steps = watch_steps(engine)
    run(engine, [drawn(num_tokens=100)])
    if is_used:
        assert len(steps) < 20
    else:
        assert len(passes) < 10


def test_a_short_answer_to_a_long_prompt_is_not_worth_reading_the_prompt(make_drafting):
    engine = make_drafting()
    passes = watch_passes(engine)
    prompt = [5 + i % 300 for i in range(200)]
    run(engine, [greedy(prompt, 3, ignore_eos=True)])
    assert passes == []
    run(engine, [greedy(prompt, 20, ignore_eos=True)])
    assert sum(passes) > 200
