"""Schemas as the parser takes them: exact numbers, known keywords, values that end."""

import json

import pytest
from chairlift.text.constraints.lark_checks import checked_lark
from chairlift.text.constraints.schema_checks import checked_schema
from chairlift.text.constraints.schema_numbers import SchemaError


def checked(schema):
    """The schema as it is taken, without the options that are added."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    found = json.loads(checked_schema(text))
    if isinstance(found, dict):
        found.pop("x-guidance")
    return found


def refusal(schema):
    with pytest.raises(SchemaError) as caught:
        checked(schema)
    return str(caught.value)


INEXACT = [
    ('{"enum": [1234567890123456789]}', "$.enum[0]"),
    ('{"enum": [[{"a": 9007199254740993}]]}', "$.enum[0][0].a"),
    ('{"const": 9007199254740993}', "$.const"),
    ('{"const": 1e400}', "$.const"),
    ('{"const": 1E+20}', "$.const"),
    ('{"const": 0.10000000000000000001}', "$.const"),
    ('{"const": 123456789012345678901234567890}', "$.const"),
    ('{"const": -9223372036854775808}', "$.const"),
    ('{"type": "integer", "minimum": 9007199254740993}', "$.minimum"),
    ('{"type": "integer", "exclusiveMaximum": 9007199254740994}', "$.exclusiveMaximum"),
    ('{"type": "integer", "maximum": 18446744073709551615, "minimum": 0}', "$.maximum"),
    ('{"type": "integer", "minimum": 4611686018427387904}', "$.minimum"),
    ('{"type": "number", "minimum": 1152921504606846976}', "$.minimum"),
    ('{"type": "number", "maximum": 1e300}', "$.maximum"),
    ('{"items": {"anyOf": [{"exclusiveMinimum": 5e-400}]}}', "$.items.anyOf[0].exclusiveMinimum"),
    ('{"multipleOf": 0.07}', "$.multipleOf"),
    ('{"multipleOf": 99999989}', "$.multipleOf"),
    ('{"multipleOf": 0.00001000001}', "$.multipleOf"),
    ('{"minItems": 1000001}', "$.minItems"),
    ('{"minLength": 1.5}', "$.minLength"),
    ('{"minLength": 1e400}', "$.minLength"),
]


@pytest.mark.parametrize(("schema", "place"), INEXACT)
def test_a_number_that_would_be_rounded_is_refused_by_its_place(schema, place):
    message = refusal(schema)
    assert message.startswith(f"{place}: expected ")
    assert "panic" not in message
    assert len(message) < 300


EXACT = [
    ('{"const": -0.0}', {"const": 0}),
    ('{"const": 1.0}', {"const": 1}),
    ('{"enum": [1e3, 0.1, -2.50]}', {"enum": [1000, 0.1, -2.5]}),
    ('{"const": 1152921504606846976}', {"const": 2**60}),
    ('{"minLength": 2.0, "maxLength": 1e30}', {"minLength": 2}),
    (
        '{"type": "integer", "exclusiveMinimum": 0.5, "maximum": 9007199254740992}',
        {"type": "integer", "minimum": 1, "maximum": 2**53},
    ),
    (
        '{"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807}',
        {"type": "integer", "minimum": -(2**63 - 1024), "maximum": 2**63 - 1},
    ),
    ('{"minimum": 3, "exclusiveMinimum": true}', {"exclusiveMinimum": 3}),
    ('{"minimum": 3, "exclusiveMinimum": false}', {"minimum": 3}),
]


@pytest.mark.parametrize(("schema", "expected"), EXACT)
def test_a_number_keeps_its_value(schema, expected):
    assert checked(schema) == expected


UNKNOWN = {
    "minimun": 3,
    "nullable": True,
    "divisibleBy": 3,
    "uniqueItems": True,
    "not": {},
    "if": {},
    "contains": {},
    "propertyNames": {"maxLength": 3},
    "dependentRequired": {"a": ["b"]},
    "unevaluatedProperties": False,
    "$dynamicRef": "#a",
    "MinLength": 3,
    "minlength": 3,
    "disallow": "string",
    "extends": {},
}


@pytest.mark.parametrize("keyword", UNKNOWN)
def test_a_keyword_that_could_change_the_answer_is_refused_by_name(keyword):
    own = {keyword: UNKNOWN[keyword]} | ({"then": False} if keyword == "if" else {})
    places = {
        "$": own,
        "$.properties.x": {"properties": {"x": own}},
        "$.items.anyOf[1]": {"items": {"anyOf": [{}, own]}},
        "$.$defs.d": {"$ref": "#/$defs/d", "$defs": {"d": own}},
        "$.patternProperties.^x.allOf[0]": {"patternProperties": {"^x": {"allOf": [own]}}},
    }
    for place, schema in places.items():
        assert refusal(schema).startswith(f"{place}.{keyword}: not supported")
        assert refusal({"type": "object", **schema}).startswith(f"{place}.{keyword}: ")


def test_what_says_nothing_about_values_is_left_out():
    schema = {"type": "string", "title": "t", "description": "d", "default": 1e300, "examples": [2]}
    schema |= {"deprecated": True, "readOnly": True, "$comment": "c", "x-order": 3, "$defs": {}}
    schema |= {"uniqueItems": False, "nullable": False, "propertyNames": {"type": "string"}}
    schema |= {"then": False, "minContains": 2, "additionalItems": False, "contentEncoding": "x"}
    assert checked(schema) == {"type": "string"}
    # A property may have any name.
    names = {"properties": {"minimun": {}, "$ref": {"type": "null"}, "nullable": True}}
    assert checked(names) == names
    assert checked({"const": {"minimun": 1, "$ref": "x"}}) == {"const": {"minimun": 1, "$ref": "x"}}


ENDLESS = {
    "the root": {"$ref": "#"},
    "a required property": {
        "type": "object",
        "properties": {"a": {"$ref": "#"}},
        "required": ["a"],
    },
    "through definitions": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 1},
            "b": {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/a"}}},
        },
    },
    "every alternative": {"anyOf": [{"$ref": "#"}, {"oneOf": [{"$ref": "#"}]}]},
    "one of all": {"allOf": [{}, {"$ref": "#"}]},
    "a first item": {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
    "a further property": {
        "type": "object",
        "required": ["a"],
        "additionalProperties": {"$ref": "#"},
    },
    "false": False,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_schema_without_a_finite_value_is_refused(name):
    assert refusal(ENDLESS[name]) == "$: no finite value is valid"


def test_a_part_without_a_finite_value_is_never_begun():
    endless = {"type": "object", "required": ["n"], "properties": {"n": {"$ref": "#/$defs/e"}}}
    found = checked({"properties": {"a": {"$ref": "#/$defs/e"}}, "$defs": {"e": endless}})
    assert found["properties"] == {"a": False}
    listed = {"type": ["object", "null"], "required": ["n"], "properties": {"n": {"$ref": "#"}}}
    assert checked(listed)["type"] == ["object", "null"]
    only = {"type": ["object", "null"], "required": ["n"], "properties": {"n": False}}
    assert checked(only)["type"] == ["null"]
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert checked(tree) == tree


def test_references_are_resolved():
    part = {"type": "null"}
    defined = {"$defs": {"a/b~c %": {"$anchor": "here", **part}}}
    for reference in ("#/$defs/a~1b~0c%20%25", "#here", "http://x/y#here", "#/$defs/a~1b~0c %25"):
        found = checked({"$id": "http://x/y", "$ref": reference, **defined})
        assert found == {"$ref": "#/$defs/1", "$defs": {"1": part}}
    found = checked({"prefixItems": [part, {"$ref": "#/prefixItems/0"}]})
    assert found["prefixItems"] == [part, {"$ref": "#/$defs/1"}]
    for reference in ("other.json", "http://x/z#here", "#there", "#/$defs/none", "#/prefixItems/9"):
        assert refusal({"$ref": reference, "prefixItems": []}).startswith("$.$ref: ")
    inner = {"properties": {"a": {"$id": "http://x/z", "type": "null"}}}
    assert refusal(inner).startswith("$.properties.a.$id: ")


def test_nesting_and_references_have_a_bound():
    assert refusal('{"items":' * 200 + "{}" + "}" * 200).startswith(
        "$: expected at most 100 levels"
    )
    assert refusal("[" * 100_000).startswith("$: expected at most 100 levels")
    many = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(3000)}
    message = refusal({"$ref": "#/$defs/d0", "$defs": {**many, "d3000": {}}})
    assert "at most 2048 places" in message


NO_SCHEMA = [
    *("3", "[]", '"a"', "null", "{", "NaN", '{"const": NaN}', '{"const": "\\ud800"}', "", '{"a"}'),
    *('{"type": "strange"}', '{"type": []}', '{"type": 3}', '{"properties": []}', '{"items": 3}'),
    *('{"anyOf": {}}', '{"required": "a"}', '{"required": [1]}', '{"enum": 3}', '{"$ref": 3}'),
    *('{"minimum": "3"}', '{"minimum": true}', '{"multipleOf": 0}', '{"maxItems": -1}'),
    *('{"pattern": 3}', '{"format": null}', '{"x-guidance": {"lenient": true}}'),
]


@pytest.mark.parametrize("schema", NO_SCHEMA)
def test_what_is_no_schema_is_refused(schema):
    assert refusal(schema).startswith(("$", "not JSON: "))


def test_a_pattern_of_names_that_are_known_becomes_properties():
    found = checked(
        {
            "properties": {"a": {"type": "integer"}},
            "patternProperties": {
                "^(a|b)$": {"minimum": 3},
                "^c": {},
                "[^\\s\\S]": {"type": "null"},
            },
            "required": ["b"],
        }
    )
    assert found["patternProperties"] == {"^c": {}}
    assert found["properties"] == {
        "a": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
        "b": {"minimum": 3},
    }
    assert "additionalProperties" not in found
    assert checked({"patternProperties": {"": {}}})["additionalProperties"] is False


def test_schemas_inside_of_a_grammar_are_checked():
    head = 'start: "%json {" /%json/ # %json {\n  %json '
    found = checked_lark(f'{head}{{"minLength": 2.0}} "x" %json true')
    assert found.startswith(f'{head}{{"minLength":2,"x-guidance"')
    assert found.endswith('} "x" %json true')
    for schema, message in (
        ('{"minimun": 3}', "$.minimun: not supported"),
        ('{"const": 1e400}', "$.const: "),
        ("{", "%json: not JSON"),
        ('{"items":' * 5000, "%json: "),
    ):
        with pytest.raises(SchemaError) as caught:
            checked_lark(f"start: %json {schema}")
        assert str(caught.value).startswith(message)


def test_the_number_of_rules_has_a_bound():
    def chain(length):
        rules = [f'r{i}: "a" r{i + 1}' for i in range(length)]
        return "\n".join(["start: r0", *rules, f'r{length}: "b"'])

    assert checked_lark(chain(4000)) == chain(4000)
    with pytest.raises(SchemaError, match="at most 4096 rules"):
        checked_lark(chain(9000))
