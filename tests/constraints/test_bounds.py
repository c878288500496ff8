"""Bounds of numbers as grammars, judged by exact decimals."""

import itertools
from decimal import Decimal

import pytest
from chairlift.api.errors import RequestError

from tests.constraints.acceptance import Judge

BOUNDS = ("0", "1", "-1", "2", "9", "10", "1.5", "0.5", "-0.5", "0.05", "9.5", "-1.5", "1.001")
STEPS = ("0", "0.1", "0.001", "-0.1", "-0.001", "1", "-1")
HOLDS = {
    "minimum": Decimal.__ge__,
    "exclusiveMinimum": Decimal.__gt__,
    "maximum": Decimal.__le__,
    "exclusiveMaximum": Decimal.__lt__,
}


@pytest.fixture(scope="module")
def judge():
    return Judge()


def texts(low, high):
    """Numbers at and beside two bounds without zeros at their end."""
    for bound, step in itertools.product((low, high), STEPS):
        number = Decimal(bound) + Decimal(step)
        yield f"{number.normalize():f}" if number else "0"


@pytest.mark.parametrize("upper", ["maximum", "exclusiveMaximum"])
@pytest.mark.parametrize("lower", ["minimum", "exclusiveMinimum"])
def test_a_number_is_accepted_if_it_is_within_its_bounds(judge, lower, upper):
    num_compiled = 0
    for low, high in itertools.product(BOUNDS, BOUNDS):
        try:
            grammar = judge.compile(f'{{"type":"number","{lower}":{low},"{upper}":{high}}}')
        except RequestError:
            assert Decimal(low) >= Decimal(high)
            continue
        num_compiled += 1
        for text in texts(low, high):
            number = Decimal(text)
            is_within = HOLDS[lower](number, Decimal(low)) and HOLDS[upper](number, Decimal(high))
            place = (lower, low, upper, high, text)
            assert judge.accepts(grammar, text) == is_within, place
            # A grammar may lack other forms of the same number; it has none of a number beyond.
            longer = text + ("0" if "." in text else ".0")
            assert is_within or not judge.accepts(grammar, longer), place
    assert num_compiled >= 70


def test_bounds_that_are_closer_to_zero_than_any_usual_number_can_be_met(judge):
    grammar = judge.compile('{"type":"number","exclusiveMinimum":0,"maximum":1e-40}')
    assert judge.accepts(grammar, f"{1e-40:.40f}")
    assert not any(judge.accepts(grammar, text) for text in ("0", "0.0", "0.1"))
