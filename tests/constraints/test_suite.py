"""The public test suite of JSON Schema: a schema is refused, or its grammar says what it says."""

import json
from pathlib import Path

import pytest
from chairlift.api.errors import Reason, RequestError

from tests.constraints.acceptance import Judge, written

SUITE = Path(__file__).parent / "suite"
REFUSED_WHOLE = {
    *("contains.json", "dependentRequired.json", "if-then-else.json", "not.json"),
    *("propertyNames.json", "uniqueItems.json"),
}
"""Of keywords that are not supported: schemas that compile have them without effect."""

STRICTER = {
    # Properties come in the order of the schema.
    ("allOf.json", "allOf", "allOf"),
    ("allOf.json", "allOf with base schema", "valid"),
    ("const.json", "const with object", "same object with different property order is valid"),
    # Integers are written without a fraction.
    ("const.json", "const with 0 does not match other zero-like types", "float zero is valid"),
    ("const.json", "const with 1 does not match true", "float one is valid"),
    ("const.json", "const with -2.0 matches integer and float types", "float -2.0 is valid"),
    (
        "const.json",
        "float and integers are equal up to 64-bit representation limits",
        "float is valid",
    ),
    ("enum.json", "enum with 0 does not match false", "float zero is valid"),
    ("enum.json", "enum with [0] does not match [false]", "[0.0] is valid"),
    ("enum.json", "enum with 1 does not match true", "float one is valid"),
    ("enum.json", "enum with [1] does not match [true]", "[1.0] is valid"),
    (
        "type.json",
        "integer type matches integers",
        "a float with zero fractional part is an integer",
    ),
    # Neither are they with an exponent.
    (
        "float-overflow.json",
        "all integers are multiples of 0.5, if overflow is handled",
        "valid if optional overflow handling is implemented",
    ),
}
"""Valid values that no answer writes so."""

MAX_REFUSED = {
    "ref.json": 15,
    "oneOf.json": 9,
    "anchor.json": 3,
    "patternProperties.json": 3,
    "bignum.json": 4,
    "allOf.json": 2,
    "additionalProperties.json": 2,
}
"""Schemas of a file that are refused; of other files at most one."""


def compiled(judge, schema):
    """The grammar of a schema; None if it is refused, as a client may see it."""
    try:
        return judge.compile(schema)
    except RequestError as refused:
        error = refused
    assert error.reason is Reason.BAD_PARAMETER
    assert error.message.startswith("constraint.json_schema: ")
    assert "panic" not in error.message
    return None


@pytest.fixture(scope="module")
def judge():
    return Judge()


@pytest.mark.parametrize("path", sorted(SUITE.glob("*.json")), ids=lambda path: path.stem)
def test_a_grammar_accepts_what_its_schema_describes(judge, path):
    num_refused, stricter = 0, set()
    for group in json.loads(path.read_text()):
        grammar = compiled(judge, written(group["schema"]))
        if grammar is None:
            num_refused += 1
            continue
        for test in group["tests"]:
            name = (path.name, group["description"], test["description"])
            is_accepted = judge.accepts(grammar, written(test["data"]))
            if test["valid"] and not is_accepted:
                stricter.add(name)
            assert test["valid"] or not is_accepted, name
    assert stricter == {name for name in STRICTER if name[0] == path.name}
    if path.name not in REFUSED_WHOLE:
        assert num_refused <= MAX_REFUSED.get(path.name, 1)
