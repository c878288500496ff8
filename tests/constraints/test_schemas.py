"""Answers to random schemas are values that these describe; `make check-constraints` runs 1,000."""

from collections import Counter

from chairlift.api.types import FinishReason
from chairlift.engine.engine import Engine

from tests.constraints.answers import answer_schemas, is_valid
from tests.constraints.schemas import random_schema


def test_answers_to_random_schemas_are_valid():
    engine = Engine("demo", max_num_seqs=16)
    tally = answer_schemas(engine, range(60))
    assert not tally.wrong
    assert tally.reasons[FinishReason.STOP.value] >= 57, tally.reasons


def test_the_schemas_use_many_keywords():
    seen = Counter()
    for seed in range(60):
        count(random_schema(seed), seen)
    assert {"anyOf", "oneOf", "allOf", "$ref", "enum", "const", "pattern", "format"} <= set(seen)
    assert {"prefixItems", "maxItems", "maxLength", "multipleOf", "required"} <= set(seen)


def count(schema, seen):
    if isinstance(schema, dict):
        seen.update(schema.keys())
        for value in schema.values():
            count(value, seen)
    elif isinstance(schema, list):
        for value in schema:
            count(value, seen)


def test_a_wrong_value_is_noticed():
    schema = {"type": "array", "items": {"type": "integer"}, "maxItems": 1}
    assert is_valid("[1]", schema)
    assert not any(is_valid(text, schema) for text in ("[1, 2]", '["1"]', "[1", ""))
