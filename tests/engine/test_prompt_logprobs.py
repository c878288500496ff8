"""Prompts that come back: log probabilities as `transformers` has them, each position once."""

import pytest
import torch
from chairlift.api.errors import RequestError
from chairlift.api.types import (
    Output,
    PrefixCache,
    PromptPiece,
    Request,
    Sampling,
    Stopping,
    Tokens,
)
from chairlift.engine.runner import model_runner

from tests.engine.drive import assert_empty, drain, run
from tests.engine.test_faults import break_forward
from tests.engine.tiny_model import prompts

ALL = Output(prompt_logprobs=True, prompt_candidates=20, echo=True)


def request(prompt, output=ALL, n=1, **others):
    stopping = Stopping(max_tokens=4, ignore_eos=True)
    return Request(list(prompt), Sampling(temperature=0, n=n), stopping, output, **others)


def pieces(events):
    """The pieces of a prompt, which follow one another and precede all output."""
    found = [event for event in events if isinstance(event, PromptPiece)]
    first_token = next((i for i, e in enumerate(events) if isinstance(e, Tokens)), len(events))
    assert all(event in found for event in events[: len(found)])
    assert first_token >= len(found)
    at = 0
    for piece in found:
        assert piece.offset == at
        at += len(piece.token_ids)
    return found


def logprobs(events):
    return [value for piece in pieces(events) for value in piece.logprobs.logprobs]


def values(events):
    """All that was said of a prompt."""
    found = pieces(events)
    return (
        "".join(piece.text for piece in found),
        [token for piece in found for token in piece.token_ids],
        logprobs(events),
        [rank for piece in found for rank in piece.logprobs.ranks],
        [entry for piece in found for entry in piece.logprobs.candidates],
    )


def test_they_equal_those_of_transformers(engine, tiny):
    for prompt in prompts():
        (events,) = run(engine, [request(prompt)])
        text, tokens, found, ranks, candidates = values(events)
        with torch.no_grad():
            logits = tiny.reference(torch.tensor([prompt])).logits[0, :-1].double()
        expected = torch.log_softmax(logits, dim=-1)
        chosen = expected.gather(1, torch.tensor(prompt[1:]).view(-1, 1)).flatten()
        torch.testing.assert_close(torch.tensor(found).double(), chosen, atol=2e-4, rtol=1e-4)
        assert tokens == list(prompt)
        assert text == engine.tokenizer.decode(prompt)
        for position, entries in enumerate(candidates):
            wanted = expected[position].topk(20).values
            got = torch.tensor([value for _, value in entries]).double()
            torch.testing.assert_close(got, wanted, atol=2e-4, rtol=1e-4)
            assert dict(entries).get(prompt[position + 1], found[position]) == found[position]
            is_listed = prompt[position + 1] in dict(entries)
            assert is_listed == (ranks[position] <= 20)


@pytest.fixture
def expected(make_engine):
    """All that is said of each prompt, alone and in one chunk."""
    engine = make_engine(max_num_batched_tokens=256)
    return [values(run(engine, [request(prompt)])[0]) for prompt in prompts()]


@pytest.mark.parametrize("budget", [9, 256])
@pytest.mark.parametrize("drafts", ["off", "lookup"])
def test_the_bits_do_not_depend_on_chunks_or_neighbours(make_engine, expected, budget, drafts):
    engine = make_engine(max_num_batched_tokens=budget, drafts=drafts)
    plain = [request(prompt[::-1], Output()) for prompt in prompts()]
    mixed = [item for pair in zip(map(request, prompts()), plain, strict=True) for item in pair]
    assert [values(events) for events in run(engine, mixed)[::2]] == expected
    assert_empty(engine)


@pytest.mark.parametrize("swap", [None, 2**24])
def test_each_position_is_sent_once_whatever_is_computed_again(
    make_engine, kv_blocks, expected, swap
):
    engine = make_engine(kv_cache_memory=kv_blocks(14), swap_memory=swap, max_num_seqs=8)
    long = Stopping(max_tokens=60, ignore_eos=True)
    wanted = [Request(list(p), Sampling(temperature=0), long, ALL) for p in prompts()]
    answers = run(engine, wanted)
    assert engine.load().num_preemptions > 0
    assert [values(events) for events in answers] == expected
    assert_empty(engine)


def test_a_failed_step_sends_nothing_twice(make_engine, expected):
    engine = make_engine(max_num_batched_tokens=16)
    break_forward(engine, lambda call: call in (2, 5))
    assert [values(events) for events in run(engine, map(request, prompts()))] == expected
    assert_empty(engine)


def test_the_prefix_cache_is_written_and_not_read(engine):
    prompt = [7, *range(20, 80)]
    first, again = (run(engine, [request(prompt)])[0] for _ in range(2))
    assert values(first) == values(again)
    assert again[-1].usage.cached_tokens == 0
    (plain,) = run(engine, [request(prompt, Output(echo=True))])
    assert plain[-1].usage.cached_tokens > 0
    assert "".join(p.text for p in pieces(plain)) == engine.tokenizer.decode(prompt)
    assert all(piece.logprobs is None for piece in pieces(plain))
    assert PrefixCache().read


def test_several_answers_have_the_prompt_once(engine, expected):
    (events,) = run(engine, [request(prompts()[0], n=3)])
    assert values(events) == expected[0]
    answers = engine.generate([prompts()[0]], Sampling(temperature=0, n=2), output=ALL)
    for answer in answers:
        assert answer.prompt.text == expected[0][0]
        assert answer.prompt.logprobs == [None, *expected[0][2]]
        assert answer.prompt.candidates == [(), *expected[0][4]]


def test_a_prompt_of_one_token_has_none(engine):
    (events,) = run(engine, [request([9])])
    assert values(events) == (engine.tokenizer.decode([9]), [9], [], [], [])


def test_few_rows_of_logits_exist_at_a_time(make_engine, monkeypatch, expected):
    monkeypatch.setattr(model_runner, "SCORED_ROWS", 3)
    engine = make_engine(max_num_batched_tokens=256)
    logits, most = engine.runner.model.logits, []

    def watched(hidden, out=None):
        most.append(len(hidden))
        return logits(hidden, out)

    engine.runner.model.logits = watched
    assert [values(events) for events in run(engine, map(request, prompts()))] == expected
    assert max(most) <= len(prompts())


def test_a_request_that_is_cancelled_in_its_prompt_leaves_nothing(make_engine):
    engine = make_engine(max_num_batched_tokens=8)
    ids = [engine.add(request(prompt)).request_id for prompt in prompts()]
    for request_id in ids:
        engine.step()
        engine.abort(request_id)
    drain(engine)
    assert_empty(engine)


def test_logits_that_are_not_finite_fail_their_request_alone(make_engine, expected):
    engine = make_engine(max_num_batched_tokens=256)
    forward = engine.runner.model.forward
    spoilt = [3, *range(300, 340)]  # 336 is in no other prompt

    def spoil(input_ids, metadata, kv_cache, selected=None, *rest):
        hidden = forward(input_ids, metadata, kv_cache, selected, *rest)
        if selected is not None:
            hidden[input_ids[selected.long()] == 336] = float("nan")
        return hidden

    engine.runner.model.forward = spoil
    *others, failed = run(engine, [*map(request, prompts()), request(spoilt)])
    assert failed[-1].reason == "STEP_FAILED"
    assert [values(events) for events in others] == expected
    assert_empty(engine)


@pytest.mark.parametrize(
    ("output", "field"),
    [
        (Output(prompt_logprobs=True, prompt_candidates=21), "output.prompt_logprobs"),
        (Output(prompt_candidates=2), "output.prompt_logprobs"),
        (Output(prompt_logprobs=1), "output.prompt_logprobs"),
        (Output(echo="yes"), "output.echo"),
    ],
)
def test_wrong_values_are_refused_by_name(engine, output, field):
    with pytest.raises(RequestError) as refused:
        engine.add(request([1, 2], output))
    assert refused.value.field == field
