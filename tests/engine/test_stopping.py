"""When an answer ends, with the real tokenizer and an answer that the test writes."""

import pytest
from chairlift.api.errors import RequestError
from chairlift.api.types import Change, Finished, FinishReason, Output, Stopping, Tokens

from tests.engine import tiny_model
from tests.engine.drive import end, greedy, run, script, text, token_ids


def write(engine, answer, **request):
    """Let the model answer with a text; return the events."""
    ids = engine.tokenizer.encode(answer, add_special_tokens=False)
    script(engine, {1: [*ids, tiny_model.EOS]})
    return run(engine, [greedy([5, 6, 7], 200, seed=1, **request)])[0]


def test_an_answer_ends_at_the_models_end_token(engine):
    events = write(engine, "one two three")
    assert text(events) == "one two three"
    assert (end(events).reason, end(events).stop_token_id) == (FinishReason.STOP, tiny_model.EOS)


def test_ignore_eos_goes_on(engine):
    script(engine, {1: [9, tiny_model.EOS, 9, tiny_model.EOS, 9]})
    events = run(engine, [greedy([5], 5, seed=1, ignore_eos=True)])[0]
    assert end(events).reason is FinishReason.LENGTH
    assert len(token_ids(events)) == 5


@pytest.mark.parametrize("stop", ["two", "wo th", "ne two thr", "e", "three"])
@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_string_across_tokens_cuts_exactly(engine, stop, include_stop):
    answer = "one two three"
    events = write(engine, answer, stop=[stop], include_stop=include_stop)
    at = answer.index(stop)
    assert text(events) == answer[: at + len(stop) if include_stop else at]
    assert (end(events).reason, end(events).stop) == (FinishReason.STOP, stop)


def test_a_stop_string_given_as_text_is_one_stop(engine):
    events = write(engine, "one two three", stop="two")
    assert text(events) == "one "
    assert end(events).stop == "two"


def test_a_stop_string_that_does_not_come_is_given_back(engine):
    events = write(engine, "one two three", stop=["two thirteen", "threee"])
    assert text(events) == "one two three"
    assert end(events).stop is None


def test_a_stop_string_works_without_text(engine):
    events = write(engine, "one two three", stop=["two"], output=Output(text=False))
    assert end(events).stop == "two"
    assert text(events) == ""


def test_stop_token_ids_end_an_answer(engine):
    script(engine, {1: [9, 10, 11, 12]})
    events = run(engine, [greedy([5], 20, seed=1, stop_token_ids=[11])])[0]
    assert (end(events).reason, end(events).stop_token_id) == (FinishReason.STOP, 11)
    assert token_ids(events)[:2] == [9, 10]


def test_max_tokens_ends_an_answer(engine):
    events = run(engine, [greedy([5], 7, ignore_eos=True)])[0]
    assert end(events).reason is FinishReason.LENGTH
    assert len(token_ids(events)) == end(events).usage.output_tokens == 7


def test_the_context_ends_an_answer(engine):
    events = run(engine, [greedy([5] * 250, 1000, ignore_eos=True)])[0]
    assert end(events).reason is FinishReason.LENGTH
    assert len(token_ids(events)) == tiny_model.MAX_MODEL_LEN - 250


def test_no_end_token_is_drawn_before_min_tokens(engine):
    script(engine, {1: [tiny_model.EOS, tiny_model.EOS, tiny_model.EOS, tiny_model.EOS]})
    events = run(engine, [greedy([5], 20, seed=1, min_tokens=3)])[0]
    assert token_ids(events).index(tiny_model.EOS) == 3
    assert end(events).reason is FinishReason.STOP


def test_a_stop_string_ends_no_answer_before_min_tokens(engine):
    events = run(engine, [greedy([5], 12, ignore_eos=True)])[0]
    ids = token_ids(events)
    early = engine.tokenizer.decode(ids[:2])
    stopped = run(engine, [greedy([5], 12, ignore_eos=True, stop=early, min_tokens=6)])[0]
    assert len(token_ids(stopped)) >= 6


def test_deltas_never_cut_a_character(engine):
    answer = "größe 서울 日本 🎿 ❄️ né"
    events = write(engine, answer)
    deltas = [event.text for event in events if isinstance(event, Tokens)]
    assert text(events) == answer
    assert all("\ufffd" not in delta for delta in deltas)
    assert len([delta for delta in deltas if delta]) > 5


def test_deltas_of_any_tokens_join_to_the_whole_decode(engine):
    for events in run(engine, [greedy(p, 60) for p in tiny_model.prompts()]):
        assert isinstance(end(events), Finished)
        assert text(events) == engine.tokenizer.decode(token_ids(events))


@pytest.mark.parametrize(
    ("pattern", "start", "end"),
    [
        (r"t\w", 4, 6),
        ("o (two|one)", 6, None),
        (r"(?i)TWO", 4, 7),
        (r"e+ ?t", 2, 5),
        ("E", None, None),
    ],
)
@pytest.mark.parametrize("include_stop", [False, True])
def test_a_pattern_cuts_where_its_first_match_ends(engine, pattern, start, end, include_stop):
    answer = "one two three"
    events = write(engine, answer, stop_regex=pattern, include_stop=include_stop)
    if end is None:
        assert text(events) == answer
        return
    assert text(events) == answer[: end if include_stop else start]
    last = next(event for event in events if isinstance(event, Finished))
    assert (last.reason, last.stop) == (FinishReason.STOP, pattern)


def test_a_pattern_and_a_text_that_end_together_match_as_the_longest(engine):
    events = write(engine, "one two three", stop=["wo"], stop_regex=[r"t.o", "zzz"])
    assert (text(events), end(events).stop) == ("one ", "t.o")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "unclosed group"),
        ("^a", "no anchor"),
        (r"a\b", "no anchor"),
        ("a*", "empty text"),
        ("a{300}", "256 bytes"),
        (r"(\w{50}x){4}", "smaller automaton"),
        ("", "1 to 512 bytes"),
        ("a" * 513, "1 to 512 bytes"),
        (3, "strings"),
    ],
)
def test_a_wrong_pattern_is_refused_by_its_field(engine, pattern, why):
    with pytest.raises(RequestError, match=why) as caught:
        write(engine, "one", stop_regex=[pattern] if isinstance(pattern, str) else pattern)
    assert caught.value.field == "stopping.stop_regex"


def test_a_change_replaces_patterns(engine):
    ids = engine.tokenizer.encode("one two three", add_special_tokens=False)
    script(engine, {1: [*ids, tiny_model.EOS]})
    accepted = engine.add(greedy([5, 6, 7], 200, seed=1, stop_regex="one"))
    change = Change(stopping=Stopping(max_tokens=200, stop_regex=r"w\S"))
    assert engine.change(accepted.request_id, change)
    events = []
    while engine.has_work:
        events += engine.step()
    assert (text(events), end(events).stop) == ("one t", r"w\S")
    with pytest.raises(RequestError) as caught:
        engine.change(accepted.request_id, Change(stopping=Stopping(stop_regex="(")))
    assert caught.value.field == "update.stopping.stop_regex"
