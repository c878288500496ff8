"""The judge of the histories: what a correct server sends passes, each lie is found."""

from dataclasses import replace

import pytest

from tests.chaos.figures import slope
from tests.chaos.history import Record, troubles

ANSWERS = [[11, 12, 13, 14]]
WHOLE = Record(
    label="a",
    prompt=0,
    max_tokens=3,
    numbers=[1, 2, 4, 5],
    kinds=["accepted", "tokens", "tokens", "finished"],
    tokens=[11, 12, 13],
    lasts=[3],
    end="LENGTH",
    output_tokens=3,
    status="OK",
)
CANCELLED = replace(
    WHOLE, max_tokens=9, tokens=[11, 12], output_tokens=2, end="CANCELLED", was_cancelled=True
)
REFUSED = Record("a", 0, 3, False, [1], ["rejected"], [], [0], "QUEUE_FULL", None, "OK")


@pytest.mark.parametrize("record", [WHOLE, CANCELLED, REFUSED])
def test_what_a_correct_server_sends_passes(record):
    assert not list(troubles(record, ANSWERS, may_fail={"QUEUE_FULL"}))


@pytest.mark.parametrize(
    ("record", "trouble"),
    [
        (replace(WHOLE, numbers=[1, 2, 2, 3]), "do not rise"),
        (replace(WHOLE, tokens=[11, 12, 14]), "not those of the prompt alone"),
        (replace(WHOLE, max_tokens=2), "too many tokens"),
        (replace(WHOLE, kinds=["tokens", "tokens", "tokens", "finished"]), "neither accepted"),
        (replace(WHOLE, lasts=[2, 3]), "more than one end"),
        (replace(WHOLE, lasts=[2]), "something follows"),
        (replace(WHOLE, lasts=[]), "has no end"),
        (replace(WHOLE, output_tokens=4), "no end for this request"),
        (replace(WHOLE, max_tokens=4), "no end for this request"),
        (replace(WHOLE, end="ENGINE_DOWN"), "no end for this request"),
        (replace(CANCELLED, was_cancelled=False), "no end for this request"),
        (replace(WHOLE, status="UNKNOWN"), "not in the table"),
        (replace(WHOLE, status="UNAVAILABLE", reason="DRAINING"), "the call ended with"),
    ],
)
def test_each_lie_is_found(record, trouble):
    assert any(trouble in found for found in troubles(record, ANSWERS))


def test_a_slope_is_that_of_the_second_half():
    assert slope([(0, 500), (1, 0), (2, 10), (3, 12), (4, 14), (5, 16)]) == pytest.approx(2)
