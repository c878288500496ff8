"""Random schemas as grammars and by `jsonschema`; `make check-constraints` runs thousands."""

import random

import pytest

from tests.constraints.acceptance import DeadEndError, Judge
from tests.constraints.differential import judge_schemas


@pytest.fixture(scope="module")
def judge():
    return Judge()


def test_grammars_of_random_schemas_accept_exactly_the_valid_values(judge):
    verdict = judge_schemas(judge, range(40))
    assert verdict.num_compiled >= 15, verdict.refused
    assert verdict.num_walks >= 60
    assert not verdict.invalid
    assert not verdict.missed
    assert not verdict.dead_ends
    assert not any("panic" in words for words in verdict.refused)


def test_a_grammar_that_says_something_else_is_noticed(judge):
    grammar = judge.compile("[0-9]{1,3}", kind="regex")
    assert judge.accepts(grammar, "12")
    assert not any(judge.accepts(grammar, text) for text in ("", "1234", "1a", "a"))
    stuck = judge.compile("start: /a/ NONE\nNONE: /b/ & /c/\n", kind="lark")
    with pytest.raises(DeadEndError):
        judge.walk(stuck, random.Random(0))
