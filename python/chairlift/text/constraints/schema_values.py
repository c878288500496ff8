"""Which parts of a schema describe a value that ends: a cycle of required properties has none."""

from typing import Any, Final

from chairlift.text.constraints.schema_numbers import SchemaError

Schema = bool | dict[str, Any]
"""A JSON schema that was checked."""

_SCALARS: Final = frozenset({"null", "boolean", "integer", "number", "string"})
_ALL_TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
_MAX_ROUNDS: Final = 64
"""Rounds over all parts: each finds the parts that end because of those found before."""


def drop_endless(parts: list[Schema]) -> list[Schema]:
    """Return the parts of a schema with `false` in place of what has no finite value.

    Args:
        parts: Rewritten schemas that refer to each other by number: `#/$defs/3`, and `#` for 0.

    Raises:
        SchemaError: The references are too entangled.
    """
    ends = [False] * len(parts)
    for _ in range(_MAX_ROUNDS):
        has_changed = False
        # What was found last refers to less.
        for number in reversed(range(len(parts))):
            if not ends[number] and _ends(parts[number], ends):
                ends[number] = has_changed = True
        if not has_changed:
            return [_without_endless(part, ends) for part in parts]
    message = "$: its references are too entangled"
    raise SchemaError(message)


def _ends(schema: Schema, ends: list[bool]) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not ends[_number_of(schema["$ref"])]:
        return False
    if not all(_ends(part, ends) for part in schema.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any(_ends(part, ends) for part in schema[key]):
            return False
    if "const" in schema or "enum" in schema:
        return bool(schema.get("enum", True))
    types = _types_of(schema)
    return (
        not _SCALARS.isdisjoint(types)
        or ("array" in types and _array_ends(schema, ends))
        or ("object" in types and _object_ends(schema, ends))
    )


def _array_ends(schema: dict[str, Any], ends: list[bool]) -> bool:
    min_items, first = schema.get("minItems", 0), schema.get("prefixItems", [])
    if not all(_ends(part, ends) for part in first[:min_items]):
        return False
    return min_items <= len(first) or _ends(schema.get("items", True), ends)


def _object_ends(schema: dict[str, Any], ends: list[bool]) -> bool:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name in properties:
            if not _ends(properties[name], ends):
                return False
        elif "patternProperties" not in schema and not _ends(others, ends):
            return False
    return True


def _without_endless(schema: Schema, ends: list[bool]) -> Schema:
    if isinstance(schema, bool):
        return schema
    if not _ends(schema, ends):
        return False
    kept = {key: _part_without_endless(key, part, ends) for key, part in schema.items()}
    if "const" in kept or "enum" in kept:
        return kept
    endless = set()
    types = _types_of(schema)
    if "array" in types and not _array_ends(schema, ends):
        endless.add("array")
    if "object" in types and not _object_ends(schema, ends):
        endless.add("object")
    if endless:
        kept["type"] = [name for name in types if name not in endless]
    return kept


def _part_without_endless(key: str, value: Any, ends: list[bool]) -> object:  # noqa: ANN401
    match key:
        case "items" | "additionalProperties":
            return _without_endless(value, ends)
        case "allOf" | "anyOf" | "oneOf" | "prefixItems":
            return [_without_endless(part, ends) for part in value]
        case "properties" | "patternProperties":
            return {name: _without_endless(part, ends) for name, part in value.items()}
        case _:
            return value


def _types_of(schema: dict[str, Any]) -> tuple[str, ...]:
    asked = schema.get("type", _ALL_TYPES)
    return (asked,) if isinstance(asked, str) else tuple(asked)


def _number_of(reference: str) -> int:
    return 0 if reference == "#" else int(reference.rpartition("/")[2])
