"""Keys that patterns of a schema name, where names that the schema has leave nothing else to match.

The parser keeps a pattern as "matched, and none of the names that are taken". Where that is no text
at all, an answer would begin a key that it cannot end: such a pattern is written as properties.
"""

from collections.abc import Iterator
from typing import Any, Final

from chairlift import _core
from chairlift.text.constraints.schema_numbers import SchemaError
from chairlift.text.constraints.schema_values import Schema

MAX_PATTERNS: Final = 64
"""Patterns for the keys of one object, at most: each is compared with each other one."""


def with_plain_keys(parts: list[Schema]) -> list[Schema]:
    """Return the parts of a schema without patterns and further keys that no key is left for.

    Raises:
        SchemaError: A pattern is none, or what it matches cannot be told.
    """
    if not any("patternProperties" in schema for part in parts for schema in _all_of(part)):
        return parts
    names: dict[str, None] = {}
    for part in parts:
        for schema in _all_of(part):
            names.update(dict.fromkeys(schema.get("properties", ())))
            names.update(dict.fromkeys(schema.get("required", ())))
    known = list(names)
    for part in parts:
        for schema in _all_of(part):
            if "patternProperties" in schema:
                _rewrite(schema, known)
    return parts


def _rewrite(schema: dict[str, Any], names: list[str]) -> None:
    patterns = list(schema["patternProperties"])
    if len(patterns) > MAX_PATTERNS:
        message = f"patternProperties: expected at most {MAX_PATTERNS}, got {len(patterns)}"
        raise SchemaError(message)
    try:
        matched, is_complete = _core.matched_names(patterns, names)
    except ValueError as error:
        message = f"patternProperties: {error}"
        raise SchemaError(message) from None
    properties = dict(schema.get("properties", {}))
    kept = {}
    for pattern, positions, has_no_other in zip(patterns, matched, is_complete, strict=True):
        value = schema["patternProperties"][pattern]
        if not has_no_other:
            kept[pattern] = value
            continue
        for position in positions:
            name = names[position]
            properties[name] = {"allOf": [properties[name], value]} if name in properties else value
    if properties:
        schema["properties"] = properties
    del schema["patternProperties"]
    if kept:
        schema["patternProperties"] = kept
    try:
        if schema.get("additionalProperties") is not False and _core.match_all(
            list(kept), list(properties)
        ):
            schema["additionalProperties"] = False
    except ValueError as error:
        message = f"patternProperties: {error}"
        raise SchemaError(message) from None


def _all_of(schema: object) -> Iterator[dict[str, Any]]:
    """Yield a schema and those in it, inner ones first."""
    if not isinstance(schema, dict):
        return
    for key in ("items", "additionalProperties"):
        yield from _all_of(schema.get(key))
    for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
        for part in schema.get(key, ()):
            yield from _all_of(part)
    for key in ("properties", "patternProperties"):
        for part in schema.get(key, {}).values():
            yield from _all_of(part)
    yield schema
