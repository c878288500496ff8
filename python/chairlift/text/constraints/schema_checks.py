"""JSON schemas as the parser of constraints takes them, so that it means by them what they mean.

A keyword that could change which values are valid is kept or refused by name; what says nothing
about values is left out. References are resolved here, to places in one list of definitions. A part
that describes no finite value becomes `false`, so that no answer begins what it cannot end.
"""

import json
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import unquote

from chairlift.api.errors import echo
from chairlift.text.constraints.schema_keys import with_plain_keys
from chairlift.text.constraints.schema_numbers import (
    LOWER,
    UPPER,
    SchemaError,
    bounds,
    count,
    literal,
    multiple,
    parse_float,
    parse_int,
    short,
    wrong,
)
from chairlift.text.constraints.schema_references import anchors, no_place, place_of, plain
from chairlift.text.constraints.schema_values import Schema, drop_endless

MAX_DEPTH: Final = 100
"""Depth of objects and lists inside of each other."""
MAX_REFERENCES: Final = 2048
"""Places in a schema that references name."""

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
_SCHEMAS: Final = frozenset({"items", "additionalProperties"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPPINGS: Final = frozenset({"properties", "patternProperties"})
_COUNTS: Final = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)
ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "$vocabulary"}
    | {"title", "description", "default", "examples", "example", "deprecated"}
    | {"readOnly", "writeOnly", "contentMediaType", "contentEncoding", "contentSchema"}
    | {"discriminator", "externalDocs", "xml", "x-guidance"}
)
"""Keywords that are true of every value, or that are handled elsewhere."""
_OPTIONS: Final = frozenset(
    {"item_separator", "key_separator", "whitespace_flexible", "whitespace_pattern"}
    | {"coerce_one_of", "json_allowed_escapes", "json_allow_general_unicode_escapes"}
)
_ESCAPES: Final = 'nrbtf\\"'
"""Without `\\u`: by it another spelling of a key that is taken would be a further key."""
_NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "uniqueItems": (False,),
    "nullable": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}, {"type": "string"}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False,),
    "$recursiveAnchor": (False,),
}
"""Values of keywords, not supported otherwise, that every value passes."""
_NEEDS: Final = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
    "additionalItems": (),
}
"""Keywords that say nothing without one of others."""


def checked_schema(text: str) -> str:
    """Return a JSON schema as the parser takes it.

    Raises:
        SchemaError: It is none, or has a part that is not supported; the message names it.
    """
    try:
        value = decoder().decode(text)
    except RecursionError:
        raise _too_deep() from None
    except SchemaError:
        raise
    except ValueError as error:
        message = f"not JSON: {error}"
        raise SchemaError(message) from None
    return written(checked_value(value))


def written(value: object) -> str:
    """Return a value as JSON, without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def decoder() -> json.JSONDecoder:
    """Return what reads a schema inside of another text."""
    return json.JSONDecoder(
        parse_int=parse_int, parse_float=parse_float, parse_constant=_refuse_constant
    )


def checked_value(value: object) -> Schema:
    """Return a parsed JSON schema as the parser takes it.

    Raises:
        SchemaError: See `checked_schema`.
    """
    _check_depth(value)
    return _Document(value).rewritten()


class _Document:
    """One schema with all that its references name."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._numbers: dict[str, int] = {"": 0}
        """The number of each place that a reference names, by its pointer; 0 is the root."""
        self._waiting: list[tuple[str, object]] = [("", root)]
        self._has_controls = False
        self._rewriters = self._new_rewriters()
        self._anchors: dict[str, str] | None = None
        identifier = root.get("$id", root.get("id")) if isinstance(root, dict) else None
        self._id = identifier.rstrip("#") if isinstance(identifier, str) else ""

    def rewritten(self) -> Schema:
        """Return the whole schema."""
        parts: list[Schema] = []
        while len(parts) < len(self._waiting):
            pointer, value = self._waiting[len(parts)]
            path = "$" + "".join(f".{short(plain(s))}" for s in pointer.split("/")[1:])
            parts.append(self._schema(value, path))
        root, *others = drop_endless(with_plain_keys(parts))
        if root is False:
            message = "$: no finite value is valid"
            raise SchemaError(message)
        if not isinstance(root, dict):
            return root
        options = self._options()
        if others:
            root["$defs"] = {str(i): part for i, part in enumerate(others, 1)}
        return {**root, "x-guidance": options}

    def _options(self) -> dict[str, Any]:
        asked = self._root.get("x-guidance", {}) if isinstance(self._root, dict) else {}
        if not isinstance(asked, dict):
            place = "$.x-guidance"
            raise wrong(place, "an object", asked)
        for key in asked:
            if key not in _OPTIONS:
                message = f"$.x-guidance.{short(key)}: not supported"
                raise SchemaError(message)
        # Text with other control characters has no form without `\\u`.
        defaults = {} if self._has_controls else {"json_allowed_escapes": _ESCAPES}
        return {**defaults, **asked}

    def _schema(self, value: object, path: str) -> Schema:
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise wrong(path, "a schema: an object, true or false", value)
        schema = _as_2020(value, path)
        types = _types(schema, path)
        numeric = {"integer", "number"} & set(types or ("number",))
        limits = bounds(schema, path, is_integer=numeric == {"integer"})
        found: dict[str, Any] = {}
        for key, part in schema.items():
            if key in LOWER + UPPER:
                found.update({key: limits.pop(key)} if key in limits else {})
            elif key != "type":
                found.update(self._keyword(schema, key, part, f"{path}.{short(key)}"))
        found.update(limits)
        if types is not None:
            found["type"] = types[0] if len(types) == 1 else types
        if path != "$" and isinstance(schema.get("$id"), str):
            message = f"{path}.$id: supported at the top alone"
            raise SchemaError(message)
        _check_count_of_keys(found, path)
        return found

    def _keyword(
        self, schema: dict[str, Any], key: str, value: object, path: str
    ) -> dict[str, object]:
        """Return a keyword as the parser takes it; empty if it says nothing."""
        rewrite = self._rewriters.get(key)
        if rewrite is not None:
            return {key: rewrite(value, path)}
        if key in _COUNTS:
            length = count(value, path)
            return {} if length is None else {key: length}
        if not _says_nothing(key, value, schema):
            message = f"{path}: not supported{_hint(key)}"
            raise SchemaError(message)
        return {}

    def _new_rewriters(self) -> dict[str, Callable[[Any, str], Any]]:
        return {
            **dict.fromkeys(_SCHEMAS, self._schema),
            **dict.fromkeys(_LISTS, self._schemas),
            **dict.fromkeys(_MAPPINGS, self._mapping),
            "const": self._const,
            "enum": self._enum,
            "multipleOf": multiple,
            "pattern": self._text,
            "format": self._text,
            "required": self._required,
            "$ref": self._reference,
        }

    def _schemas(self, value: object, path: str) -> list[Schema]:
        if not isinstance(value, list):
            raise wrong(path, "a list of schemas", value)
        return [self._schema(part, f"{path}[{i}]") for i, part in enumerate(value)]

    def _mapping(self, value: object, path: str) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise wrong(path, "an object of schemas", value)
        return {
            self._text(key, path): self._schema(part, f"{path}.{short(key)}")
            for key, part in value.items()
        }

    def _const(self, value: object, path: str) -> object:
        self._note_controls(value)
        return literal(value, path)

    def _enum(self, value: object, path: str) -> list[object]:
        if not isinstance(value, list):
            raise wrong(path, "a list of values", value)
        self._note_controls(value)
        return [literal(part, f"{path}[{i}]") for i, part in enumerate(value)]

    def _text(self, value: object, path: str) -> str:
        if not isinstance(value, str):
            raise wrong(path, "text", value)
        self._note_controls(value)
        return cast("str", literal(value, path))

    def _required(self, value: object, path: str) -> list[str]:
        if not isinstance(value, list):
            raise wrong(path, "a list of names", value)
        return list(dict.fromkeys(self._text(part, f"{path}[{i}]") for i, part in enumerate(value)))

    def _note_controls(self, value: object) -> None:
        if self._has_controls:
            return
        if isinstance(value, str):
            self._has_controls = any(c < " " and c not in "\n\r\t\b\f" for c in value)
        elif isinstance(value, list):
            for part in value:
                self._note_controls(part)
        elif isinstance(value, dict):
            for key, part in value.items():
                self._note_controls(key)
                self._note_controls(part)

    def _reference(self, value: object, path: str) -> str:
        if not isinstance(value, str):
            raise wrong(path, "a reference as text", value)
        pointer = self._pointer(value, path)
        number = self._numbers.get(pointer)
        if number is None:
            if len(self._numbers) >= MAX_REFERENCES:
                message = f"{path}: expected references to at most {MAX_REFERENCES} places"
                raise SchemaError(message)
            number = self._numbers[pointer] = len(self._numbers)
            self._waiting.append((pointer, place_of(self._root, pointer, path)))
        return f"#/$defs/{number}" if number else "#"

    def _pointer(self, reference: str, path: str) -> str:
        base, _, fragment = reference.partition("#")
        if base and base != self._id:
            message = f"{path}: expected a reference into the schema itself (#...), got another"
            raise SchemaError(message)
        fragment = unquote(fragment)
        if fragment == "" or fragment.startswith("/"):
            # The parser of before took `#/` as the root.
            return "" if fragment == "/" else fragment
        if self._anchors is None:
            self._anchors = dict(anchors(self._root))
        if fragment not in self._anchors:
            raise no_place(path, reference)
        return self._anchors[fragment]


def _refuse_constant(name: str) -> object:
    message = f"not JSON: {name}"
    raise SchemaError(message)


def _as_2020(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a schema with lists of items as draft 2020-12 names them."""
    if not isinstance(schema.get("items"), list):
        return schema
    if "prefixItems" in schema:
        place = f"{path}.items"
        raise wrong(place, "a schema beside prefixItems", schema["items"])
    rest = {key: part for key, part in schema.items() if key not in ("items", "additionalItems")}
    rest["prefixItems"] = schema["items"]
    if "additionalItems" in schema:
        rest["items"] = schema["additionalItems"]
    return rest


def _types(schema: dict[str, Any], path: str) -> list[str] | None:
    if "type" not in schema:
        return None
    asked = schema["type"]
    names = asked if isinstance(asked, list) else [asked]
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            got = echo(name) if isinstance(name, str) else type(name).__name__
            message = f"{path}.type: expected one of {', '.join(TYPES)}, got {got}"
            raise SchemaError(message)
    if not names:
        place = f"{path}.type"
        raise wrong(place, "at least one type", asked)
    return [n for n in dict.fromkeys(names) if n != "integer" or "number" not in names]


def _says_nothing(key: str, value: object, schema: dict[str, Any]) -> bool:
    if key in ANNOTATIONS or key.startswith("x-"):
        return True
    if key in _NEEDS:
        return not any(other in schema for other in _NEEDS[key])
    # 0 and False, 1 and True are equal in Python.
    return any(
        type(value) is type(neutral) and value == neutral for neutral in _NEUTRAL.get(key, ())
    )


def _hint(key: str) -> str:
    if key == "nullable":
        return ': write "type": [..., "null"]'
    return ""


def _check_count_of_keys(schema: dict[str, Any], path: str) -> None:
    """Refuse a number of keys that keys that repeat would make up."""
    num_others = schema.get("minProperties", 0) - len(schema.get("required", ()))
    is_open = schema.get("additionalProperties") is not False or schema.get("patternProperties")
    if num_others > 1 and is_open:
        message = (
            f"{path}.minProperties: expected at most 1 more than there are required, unless"
            " additionalProperties is false"
        )
        raise SchemaError(message)


def _check_depth(value: object) -> None:
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise _too_deep()
        inner: list[object] = []
        for part in level:
            if isinstance(part, dict):
                inner.extend(part.values())
            elif isinstance(part, list):
                inner.extend(part)
        level, depth = inner, depth + 1


def _too_deep() -> SchemaError:
    return SchemaError(f"$: expected at most {MAX_DEPTH} levels of nesting")
