"""Patterns that end an answer, against Python's `re` over the whole text."""

import re

import pytest
from chairlift import _core
from hypothesis import given, settings
from hypothesis import strategies as st

ALPHABET = ["a", "b", "1", " ", "é", "\n"]
PATTERNS = ["a+b", "b[^a]", "a.{2,4}1", r"\d ?\d", "(?:ab)+1|bb", "é", "[aé]{3}", r"\n\n?b", "a|ab"]
TABLE = _core.TokenTable([text.encode() for text in ALPHABET], [])


def expected(text, patterns, stop):
    """What is left of a text: the earliest end of a match, of these the longest."""
    compiled = [re.compile(pattern) for pattern in patterns]
    for end in range(1, len(text) + 1):
        for start in range(end):
            part = text[start:end]
            if part in stop or any(pattern.fullmatch(part) for pattern in compiled):
                return text[:start], True
    return text, False


@settings(max_examples=400, deadline=None)
@given(
    tokens=st.lists(st.integers(0, len(ALPHABET) - 1), max_size=24),
    patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4),
    stop=st.lists(st.sampled_from(["ab", "1 a", "bé"]), max_size=2),
)
def test_an_answer_ends_as_a_search_of_the_whole_text_says(tokens, patterns, stop):
    regex = _core.StopRegex(patterns)
    stream = _core.TextStream(TABLE, stop=stop, stop_regex=regex)
    text = "".join(stream.push(token) for token in tokens) + stream.finish()
    left, stops = expected("".join(ALPHABET[token] for token in tokens), patterns, stop)
    assert (text, stream.stopped is not None) == (left, stops)


def test_what_waits_is_bounded_and_no_more_than_can_match():
    stream = _core.TextStream(TABLE, stop_regex=_core.StopRegex(["a[ab]*1"]))
    assert stream.push(1) == "b"
    sent = sum(len(stream.push(0)) for _ in range(1000))
    assert sent == 1000 - 256 + 1
    # The last 256 bytes of the text match too.
    assert stream.push(2) == ""
    assert stream.stopped is not None
    plain = _core.TextStream(TABLE, stop_regex=_core.StopRegex(["11"]))
    assert [plain.push(token) for token in (0, 2, 0)] == ["a", "", "1a"]


def test_a_match_is_the_longest_that_the_bound_allows():
    tokens = [0] * 300 + [1] * 3
    for pattern, left in [("a[ab]*bbb", 303 - 256), ("a{3}b", 297), ("[ab]{200}bb", 100)]:
        stream = _core.TextStream(TABLE, stop_regex=_core.StopRegex([pattern]))
        text = "".join(stream.push(token) for token in tokens)
        assert len(text) == left
        assert stream.stopped is not None


@pytest.mark.parametrize("pattern", ["(", "a{1000000}", r"\bx", "x$", "x*", "(?-u:\\xff)"])
def test_a_pattern_that_cannot_be_is_refused_with_its_position(pattern):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the arguments are what counts
        _core.StopRegex(["a", pattern])
    position, why = caught.value.args
    assert position == 1
    assert why
