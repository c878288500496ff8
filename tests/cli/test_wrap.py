"""Streamed text is broken between words, however it is cut into pieces."""

import pytest
from chairlift.cli.wrap import WordWrap
from rich.cells import cell_len

STORY = "Once upon a time, a small fox\nlived by the river.\n\n  - it swam\t- it ran every day."
WIDE = "雪山缆车从不停止,人们 walk on 滑雪道 and off."


def wrapped(text, width, size=1):
    wrap = WordWrap(lambda: width)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    return "".join(map(wrap.feed, pieces)) + wrap.end()


@pytest.mark.parametrize("width", [9, 10, 12, 20, 80])
@pytest.mark.parametrize("text", [STORY, WIDE])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(text, width):
    shown = wrapped(text, width)
    assert all(cell_len(line) <= width for line in shown.split("\n"))
    if text is STORY:
        assert shown.split() == text.split()
    assert "".join(shown.split()) == "".join(text.split())


def test_the_pieces_of_a_stream_do_not_matter():
    for size in (2, 3, 7, 100):
        assert wrapped(STORY, 20, size) == wrapped(STORY, 20)


def test_lines_that_fit_are_kept_as_they_are():
    text = "one  two\n    three\n\nfour"
    assert wrapped(text, 80) == text


def test_a_word_is_written_when_it_is_complete():
    wrap = WordWrap(lambda: 20)
    assert [wrap.feed(piece) for piece in ("wo", "rd", " ", "next")] == ["", "", "word", ""]
    assert wrap.end() == " next"


def test_only_a_word_wider_than_the_terminal_is_broken():
    assert wrapped("to abcdefghijkl go", 5) == "to\nabcde\nfghij\nkl go"


def test_the_width_may_change():
    width = 20
    wrap = WordWrap(lambda: width)
    shown = wrap.feed("one two ")
    width = 5
    assert shown + wrap.feed("three four") + wrap.end() == "one two\nthree\nfour"


def test_control_characters_do_not_reach_the_terminal():
    assert wrapped("red \x1b[31malert\x07\x9b2J\r\n", 80) == "red [31malert2J\n"
