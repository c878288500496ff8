"""Requests that ask for more of their draws, on an emulated GPU with two steps in flight."""

import re

import pytest
import torch
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import (
    Constraint,
    FinishReason,
    Output,
    Request,
    Sampling,
    Stopping,
    Tokens,
)

from tests.cuda.gpu_device import needs_emulation
from tests.cuda.small_models import GAPS, assert_likely, make, prompts, requests
from tests.engine.drive import assert_empty, drain, end, greedy, run, text, token_ids

pytestmark = pytest.mark.timeout(600)
NUM_TOKENS = 12
PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 0.9, "frequency_penalty": 0.8}
REPEATED = {30: 9.0, 31: 8.0}
EVERYTHING = Sampling(
    temperature=0.9,
    seed=3,
    top_k=80,
    top_p=0.95,
    min_p=0.01,
    typical_p=0.95,
    top_n_sigma=2.5,
    xtc_probability=0.5,
    xtc_threshold=0.1,
    dry_multiplier=0.8,
    banned_token_ids=[7, 8],
    logit_bias={9: 2.0, 10: 2.0},
    **PENALTIES,
)


def asked(prompt, sampling, **fields):
    stopping = Stopping(max_tokens=NUM_TOKENS, ignore_eos=True)
    return Request(prompt, sampling, stopping, **fields)


def greedy_with(**options):
    return Sampling(temperature=0, seed=0, **options)


def gaps(reference, prompt, answer, change):
    """How far each token is behind the best of the changed logits, in standard deviations."""
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    found = []
    for i, row in enumerate(logits):
        changed = change(row.clone(), prompt, answer[:i])
        found.append(float((changed.max() - changed[answer[i]]) / row.std()))
    return found


def penalized(row, prompt, output):
    seen = torch.tensor(sorted({*prompt, *output}))
    factor = PENALTIES["repetition_penalty"]
    row[seen] = torch.where(row[seen] > 0, row[seen] / factor, row[seen] * factor)
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=len(row))
    return (
        row - PENALTIES["frequency_penalty"] * counts - PENALTIES["presence_penalty"] * (counts > 0)
    )


def test_penalties_see_the_tokens_of_the_step_in_flight(llama):
    folder, reference = llama
    engine = make(folder)
    texts = prompts(9, 30, 14)
    # One token is drawn again and again but for its penalties.
    biased = greedy_with(logit_bias={texts[0][0]: 14.0, 11: 14.0}, **PENALTIES)
    wanted = [asked(texts[0], biased), asked(texts[1], greedy_with(**PENALTIES))]
    mate = greedy(texts[2], NUM_TOKENS, ignore_eos=True)
    *answers, plain = run(engine, [*wanted, mate])
    assert engine.accelerator.num_replays >= NUM_TOKENS - 1, "the forward passes are replayed"

    def biased_too(row, prompt, output):
        row[[texts[0][0], 11]] += 14.0
        return penalized(row, prompt, output)

    for request, events, change in zip(wanted, answers, (biased_too, penalized), strict=True):
        found = gaps(reference, list(request.prompt), token_ids(events), change)
        assert max(found) < GAPS["bfloat16"], found
    assert_likely(reference, texts[2], token_ids(plain))
    assert_empty(engine)


def test_one_step_in_flight_gives_the_same_answers_as_two(llama):
    shared = prompts(20)[0]
    wanted = [
        asked(shared, EVERYTHING),
        *requests(prompts(9)),
        asked(shared[:7], Sampling(temperature=1.0, seed=5, typical_p=0.6)),
        asked(shared * 2, greedy_with(logit_bias=REPEATED, dry_multiplier=9.0)),
        asked(shared, greedy_with(logit_bias=REPEATED, dry_multiplier=9.0, bad_words=["lift"])),
    ]
    one, two = (run(make(llama[0], steps_in_flight=n), wanted) for n in (1, 2))
    assert [token_ids(events) for events in one] == [token_ids(events) for events in two]
    plain = [asked(r.prompt, greedy_with(logit_bias=REPEATED)) for r in wanted[3:]]
    for events, without in zip(one[3:], run(make(llama[0]), plain), strict=True):
        assert token_ids(events) != token_ids(without)


def test_bans_hold_and_answers_of_one_prompt_have_histories_of_their_own(llama):
    engine = make(llama[0])
    (prompt,) = prompts(11)
    allowed = list(range(20, 34))
    never_twice = Sampling(
        temperature=1.5, seed=1, n=3, allowed_token_ids=allowed, repetition_penalty=100.0,
        presence_penalty=2.0, logit_bias=dict.fromkeys(allowed, 40.0),
    )  # fmt: skip
    often = Sampling(temperature=1.5, seed=1, allowed_token_ids=allowed)
    events, free = run(engine, [asked(prompt, never_twice), asked(prompt, often)])
    assert set(token_ids(free)) <= set(allowed)
    answers = [token_ids([e for e in events if e.index == i]) for i in range(3)]
    assert all(set(answer) <= set(allowed) for answer in answers)
    assert all(len(set(answer)) == NUM_TOKENS for answer in answers), answers
    assert len({tuple(answer) for answer in answers}) == 3
    assert_empty(engine)


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_constraints_hold_beside_rows_that_have_none(llama, steps_in_flight):
    folder, reference = llama
    engine = make(folder, steps_in_flight=steps_in_flight, drafts="lookup")
    texts = prompts(9, 30, 14)
    rides = r"(lift|chair|snow)( (up|go|stop)){1,3}"
    wanted = [
        Request(texts[0], Sampling(seed=2), Stopping(40), constraint=Constraint(regex=rides)),
        Request(
            texts[1],
            greedy_with(repetition_penalty=1.3),
            Stopping(40),
            constraint=Constraint(choices=["up go", "one lift", "two"]),
        ),
        greedy(texts[2], NUM_TOKENS, ignore_eos=True),
    ]
    ride, choice, free = run(engine, wanted)
    assert re.fullmatch(rides, text(ride)), text(ride)
    assert text(choice) in ("up go", "one lift", "two")
    assert_likely(reference, texts[2], token_ids(free))
    assert_empty(engine)


def test_candidates_are_those_of_the_reference(llama):
    folder, reference = llama
    first, second = prompts(20, 6)
    wanted = [
        asked(first, greedy_with(banned_token_ids=[5]), output=Output(logprobs=True, candidates=5)),
        *requests([second]),
    ]
    events, mate = run(make(folder, dtype="float16"), wanted)
    answer = token_ids(events)
    logits = reference(torch.tensor([first + answer])).logits[0, len(first) - 1 : -1]
    expected = logits.log_softmax(-1)
    found = [c for e in events if isinstance(e, Tokens) for c in e.logprobs.candidates]
    assert len(found) == NUM_TOKENS
    for row, candidates in zip(expected, found, strict=True):
        ids = [token for token, _ in candidates]
        got = torch.tensor([logprob for _, logprob in candidates])
        torch.testing.assert_close(got, row[ids], atol=0.2, rtol=0)
        assert got.tolist() == sorted(got, reverse=True)
        assert row[ids].min() > row.topk(5).values[-1] - 0.2
    assert all(e.logprobs is None for e in mate if isinstance(e, Tokens))


@needs_emulation
def test_the_guilty_fail_alone_and_the_others_keep_their_histories(llama):
    folder, reference = llama
    texts = prompts(9, 30, 14)
    poison = next(token for token in texts[1] if token not in texts[0] + texts[2])
    ban = greedy_with(**PENALTIES, banned_token_ids=[poison])
    engine = make(folder)
    forward = engine.runner.model.forward
    num_passes = 0

    def poisoned(input_ids, *args):
        nonlocal num_passes
        num_passes += 1
        # Once amid the answers, and always for one prompt.
        if poison in input_ids.tolist() or num_passes == 12:
            raise MemoryError
        return forward(input_ids, *args)

    engine.runner.model.forward = poisoned
    answers = run(engine, [asked(prompt, ban) for prompt in texts])
    assert num_passes > 12
    assert end(answers[1]).reason is Reason.STEP_FAILED

    def change(row, prompt, output):
        row[poison] = -torch.inf
        return penalized(row, prompt, output)

    for i in (0, 2):
        assert len(token_ids(answers[i])) == NUM_TOKENS
        assert max(gaps(reference, texts[i], token_ids(answers[i]), change)) < GAPS["bfloat16"]
    assert_empty(engine)


def test_histories_outlive_a_preemption_and_end_with_their_requests(llama):
    folder, reference = llama
    block = make(folder).runner.kv_cache[:, :, 0].nbytes
    engine = make(folder, kv_cache_memory=8 * block, max_num_batched_tokens=24)
    texts = prompts(30, 25, 27, 9)
    wanted = [asked(prompt, greedy_with(**PENALTIES)) for prompt in texts]
    for _ in range(2):
        # The second time slots and rows have had other sequences, one of which was cut off.
        for prompt, events in zip(texts, run(engine, wanted), strict=True):
            found = gaps(reference, prompt, token_ids(events), penalized)
            assert max(found) < GAPS["bfloat16"], found
        cut = engine.add(asked(texts[0], EVERYTHING)).request_id
        for _ in range(4):
            engine.step()
        engine.abort(cut)
        assert end(drain(engine)[cut]).reason is FinishReason.CANCELLED
    assert engine.load().num_preemptions > 0
    assert_empty(engine)


def test_a_request_without_a_token_left_fails_alone(llama):
    folder, reference = llama
    first, second, third = prompts(9, 12, 5)
    hopeless = Request(
        first,
        Sampling(allowed_token_ids=[3, 4]),
        Stopping(8),
        constraint=Constraint(choices=["up", "go"]),
    )
    engine = make(folder)
    failed, penalties, plain = run(
        engine, [hopeless, asked(second, greedy_with(**PENALTIES)), *requests([third])]
    )
    assert end(failed).reason is Reason.NO_TOKEN_LEFT
    assert max(gaps(reference, second, token_ids(penalties), penalized)) < GAPS["bfloat16"]
    assert_likely(reference, third, token_ids(plain))
    assert_empty(engine)


def test_an_end_does_not_come_before_min_tokens(llama):
    (prompt,) = prompts(9)
    sampling = greedy_with(logit_bias={0: 100.0})
    early = Request(prompt, sampling, Stopping(NUM_TOKENS))
    late = Request(prompt, sampling, Stopping(NUM_TOKENS, min_tokens=5))
    first, second = run(make(llama[0]), [early, late])
    assert token_ids(first) == [0]
    answer = token_ids(second)
    assert len(answer) == 6
    assert answer.index(0) == 5


def test_scores_of_a_prompt_are_refused_by_name(llama):
    with pytest.raises(RequestError, match=r"^output.prompt_logprobs: not supported on a GPU"):
        make(llama[0]).add(asked([1, 2, 3], Sampling(), output=Output(prompt_logprobs=True)))
