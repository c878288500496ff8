import pytest
import torch
from chairlift.api.errors import Reason
from chairlift.api.types import Finished, Output, Request, Sampling, Stopping

from tests.engine.drive import assert_empty, bend_logits, drain, end, greedy, run, token_ids
from tests.engine.tiny_model import prompts


def seeded(prompt, seed, **sampling):
    return Request(
        prompt,
        Sampling(temperature=1.0, seed=seed, **sampling),
        Stopping(max_tokens=24, ignore_eos=True),
    )


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 40, "top_p": 0.9}]
)
def test_seeded_draws_do_not_depend_on_the_batch(make_engine, sampling):
    engine = make_engine()
    wanted = [seeded(p, 7 + i, **sampling) for i, p in enumerate(prompts())]
    alone = [token_ids(run(engine, [request])[0]) for request in wanted]
    together = [token_ids(events) for events in run(engine, wanted)]
    mates = [greedy([5, 6, 7], 30), seeded([9] * 20, 99)]
    among_others = [token_ids(events) for events in run(engine, [*mates, *reversed(wanted)])]
    assert together == alone
    assert among_others[2:] == alone[::-1]


def test_a_seed_decides_the_answer(engine):
    first, same, other = run(engine, [seeded([1, 2, 3], seed) for seed in (1, 1, 2**64 - 1)])
    assert token_ids(first) == token_ids(same) != token_ids(other)


def test_an_unset_seed_is_drawn_and_told(engine):
    request = Request([1, 2, 3], Sampling(temperature=1.0), Stopping(max_tokens=12))
    accepted = [engine.add(request) for _ in range(2)]
    events = drain(engine)
    first, second = (token_ids(events[a.request_id]) for a in accepted)
    assert accepted[0].seed != accepted[1].seed
    assert first != second
    again = Request(
        [1, 2, 3], Sampling(temperature=1.0, seed=accepted[0].seed), Stopping(max_tokens=12)
    )
    assert token_ids(run(engine, [again])[0]) == first


def test_logprobs_are_the_log_softmax_of_the_reference(engine, tiny):
    wanted = [greedy(p, 12, output=Output(logprobs=True)) for p in prompts()]
    for prompt, events in zip(prompts(), run(engine, wanted), strict=True):
        answer = token_ids(events)
        logits = tiny.reference(torch.tensor([prompt + answer])).logits[0]
        expected = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        got = [value for event in events[:-1] for value in event.logprobs.logprobs]
        ranks = [rank for event in events[:-1] for rank in event.logprobs.ranks]
        torch.testing.assert_close(
            torch.tensor(got), expected[range(len(answer)), answer], atol=1e-4, rtol=0
        )
        assert ranks == [1] * len(answer)


def test_no_logprobs_unless_asked(engine):
    events = run(engine, [greedy([1, 2, 3], 4)])[0]
    assert all(event.logprobs is None for event in events[:-1])


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_fails_alone(engine, poison):
    wanted = [greedy(p, 20, seed=i) for i, p in enumerate(prompts())]
    clean = [token_ids(events) for events in run(engine, wanted)]

    def bend(logits, seeds):
        for row, seed in enumerate(seeds):
            if seed == 3:
                logits[row, 100] = poison

    bend_logits(engine, bend)
    answers = run(engine, wanted)
    failed = end(answers[3])
    assert failed.reason is Reason.NUMERIC_FAULT
    assert failed.usage.output_tokens == 0
    for i, events in enumerate(answers):
        if i != 3:
            assert isinstance(end(events), Finished)
            assert token_ids(events) == clean[i]
    assert_empty(engine)


def test_candidates_are_the_likeliest_of_the_reference_whatever_is_drawn(engine, tiny):
    """Each request has as many as it asks for; before penalties, bias and temperature."""
    wanted = [
        Request(
            prompt,
            Sampling(temperature=1.5, seed=3, logit_bias={7: 9.0}, frequency_penalty=1.0),
            Stopping(max_tokens=9, ignore_eos=True),
            Output(logprobs=True, candidates=count),
        )
        for prompt, count in zip(prompts(), (0, 1, 2, 5, 20, 3, 0, 7), strict=True)
    ]
    for request, events in zip(wanted, run(engine, wanted), strict=True):
        answer, count = token_ids(events), request.output.candidates
        tokens = torch.tensor([[*request.prompt, *answer]])
        logprobs = tiny.reference(tokens).logits[0].log_softmax(-1)[len(request.prompt) - 1 : -1]
        found = [line for event in events[:-1] for line in event.logprobs.candidates]
        assert len(found) == (len(answer) if count else 0)
        for line, expected in zip(found, logprobs, strict=False):
            best = expected.topk(count)
            assert [token for token, _ in line] == best.indices.tolist()
            values = torch.tensor([value for _, value in line])
            torch.testing.assert_close(values, best.values, atol=1e-4, rtol=0)


def test_candidates_survive_a_step_that_runs_in_parts(engine):
    plain = Output(logprobs=True, candidates=2)
    wanted = [greedy(p, 6, seed=i, output=plain) for i, p in enumerate(prompts())]
    clean = run(engine, wanted)
    forward, is_broken = engine.runner.model.forward, [True]

    def breaks_once(*args, **kwargs):
        if is_broken and len(args[0]) > 3:
            is_broken.clear()
            raise MemoryError
        return forward(*args, **kwargs)

    engine.runner.model.forward = breaks_once
    again = run(engine, wanted)
    assert not is_broken
    lines = [
        [[e.logprobs.candidates for e in events[:-1]] for events in answers]
        for answers in (clean, again)
    ]
    assert lines[0] == lines[1]
