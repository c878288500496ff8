import pytest
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Chat, ChatMessage, FinishReason, Output, Sampling, Stopping

from tests.engine.drive import assert_empty, drain, greedy, run, text, token_ids
from tests.engine.tiny_model import prompts

GREEDY = Sampling(temperature=0)


@pytest.mark.parametrize("batching", ["static", "dynamic", "continuous"])
def test_generate_answers_in_order_under_every_policy(make_engine, batching):
    engine = make_engine(batching=batching, batch_size=3, max_queued_requests=4)
    many = prompts(19)
    answers = engine.generate(many, GREEDY, Stopping(max_tokens=9), Output(logprobs=True))
    single = make_engine()
    for prompt, answer in zip(many, answers, strict=True):
        events = run(single, [greedy(prompt, 9)])[0]
        assert (answer.text, answer.token_ids) == (text(events), token_ids(events))
        assert len(answer.logprobs) == answer.usage.output_tokens
    assert_empty(engine)


def test_generate_takes_one_prompt_of_any_kind(engine):
    short = Stopping(max_tokens=3, ignore_eos=True)
    for prompt in ("one two", [1, 2, 3], Chat([ChatMessage("user", "one")])):
        (answer,) = engine.generate(prompt, GREEDY, short)
        assert answer.reason is FinishReason.LENGTH
        assert answer.logprobs is None
    assert len(engine.generate(["one", [1, 2]], GREEDY, short)) == 2
    assert engine.generate([], GREEDY, short) == []


def test_generate_waits_however_long_it_takes(make_engine, clock):
    engine = make_engine(max_num_seqs=1)
    engine.watch_steps(lambda record: clock.advance(1000))
    answers = engine.generate(prompts(5), GREEDY, Stopping(max_tokens=4, ignore_eos=True))
    assert [answer.reason for answer in answers] == [FinishReason.LENGTH] * 5


def test_a_refused_prompt_cancels_the_others(engine):
    with pytest.raises(RequestError) as refused:
        engine.generate(["one two", ""], GREEDY)
    assert (refused.value.reason, refused.value.field) == (Reason.BAD_PARAMETER, "prompt")
    assert not engine.has_work
    assert_empty(engine)


def test_generate_does_not_swallow_the_events_of_others(engine):
    engine.add(greedy([1, 2, 3], 4))
    with pytest.raises(RuntimeError, match="has_work"):
        engine.generate("one")
    drain(engine)
