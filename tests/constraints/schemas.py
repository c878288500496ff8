"""Random JSON schemas whose values are bounded, with what the parser of constraints knows."""

import random
from typing import Any

WORDS = ("lift", "slope", "name", "größe", "open hours", "x", "price", "tags", "id", "日本")
PATTERNS = ("^[a-z]{1,6}$", "^(north|south)-[0-9]{2}$", "^[A-Z][a-z]{0,4}( [A-Z])?$", "[0-9]{3}")
FORMATS = ("date", "uuid", "ipv4")


def random_schema(seed: int) -> dict[str, Any]:
    """Return the schema of a number: an object, or now and then another value."""
    return _Writer(random.Random(seed)).document()


class _Writer:
    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._definitions: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        kinds = [self._object] * 6 + [self._array, self._string, self._integer, self._any_of]
        schema = self._draw.choice(kinds)(depth=0)
        if self._draw.random() < 0.5:
            schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    def _value(self, depth: int) -> Any:
        kinds = [self._string, self._string, self._integer, self._number, self._enum, self._const]
        kinds += [self._boolean, self._null, self._nullable]
        if depth < 3:
            kinds += [self._object, self._array, self._tuple, self._any_of, self._one_of]
            kinds += [self._all_of, self._reference]
        schema = self._draw.choice(kinds)(depth=depth)
        if self._draw.random() < 0.1:
            schema = {"description": "what it is", **schema}
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._draw.sample(WORDS, self._draw.randint(0, 4))
        required = [name for name in names if self._draw.random() < 0.6]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._value(depth + 1) for name in names},
            "additionalProperties": False,
        }
        if required or self._draw.random() < 0.3:
            schema["required"] = required
        if self._draw.random() < 0.15:
            # The parser counts properties where all that are named must come.
            schema["required"] = names
            schema["patternProperties"] = {"^n_[a-z]{1,3}$": self._integer(depth + 1)}
            schema["maxProperties"] = len(names) + 2
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        least = self._draw.randint(0, 2)
        return {
            "type": "array",
            "items": self._value(depth + 1),
            "minItems": least,
            "maxItems": least + self._draw.randint(0, 3),
        }

    def _tuple(self, depth: int) -> dict[str, Any]:
        items = [self._value(depth + 1) for _ in range(self._draw.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}

    def _string(self, depth: int) -> dict[str, Any]:
        del depth
        kind = self._draw.random()
        if kind < 0.2:
            return {"type": "string", "pattern": self._draw.choice(PATTERNS[:3])}
        if kind < 0.3:
            return {"type": "string", "pattern": PATTERNS[3], "maxLength": 12}
        if kind < 0.45:
            return {"type": "string", "format": self._draw.choice(FORMATS)}
        least = self._draw.randint(0, 4)
        return {
            "type": "string",
            "minLength": least,
            "maxLength": least + self._draw.randint(0, 20),
        }

    def _integer(self, depth: int) -> dict[str, Any]:
        del depth
        low = self._draw.randint(-1000, 1000)
        schema = {"type": "integer", "minimum": low, "maximum": low + self._draw.randint(0, 5000)}
        if self._draw.random() < 0.2:
            schema = {"type": "integer", "minimum": 0, "exclusiveMaximum": 1000, "multipleOf": 5}
        return schema

    def _number(self, depth: int) -> dict[str, Any]:
        del depth
        low = self._draw.randint(-20, 20)
        return {"type": "number", "minimum": low, "maximum": low + self._draw.randint(1, 50)}

    def _enum(self, depth: int) -> dict[str, Any]:
        del depth
        values = [*WORDS, 1, 2.5, True, None, [1], {"a": "b"}]
        return {"enum": self._draw.sample(values, self._draw.randint(1, 5))}

    def _const(self, depth: int) -> dict[str, Any]:
        del depth
        return {"const": self._draw.choice([*WORDS, 17, False, None, ["a", {"b": 1}]])}

    def _boolean(self, depth: int) -> dict[str, Any]:
        del depth
        return {"type": "boolean"}

    def _null(self, depth: int) -> dict[str, Any]:
        del depth
        return {"type": "null"}

    def _nullable(self, depth: int) -> dict[str, Any]:
        del depth
        return {"type": ["string", "null"], "maxLength": 10}

    def _any_of(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self._value(depth + 1) for _ in range(self._draw.randint(1, 3))]}

    def _one_of(self, depth: int) -> dict[str, Any]:
        kinds = self._draw.sample([self._string, self._integer, self._boolean, self._object], 2)
        return {"oneOf": [kind(depth=depth + 1) for kind in kinds]}

    def _all_of(self, depth: int) -> dict[str, Any]:
        integer = self._integer(depth)
        return {"allOf": [integer, {"type": "integer"}, {"minimum": integer["minimum"]}]}

    def _reference(self, depth: int) -> dict[str, Any]:
        name = f"part{len(self._definitions)}"
        # Known before it is written: a value inside may refer to it no more.
        self._definitions[name] = {}
        self._definitions[name] = self._value(depth + 1)
        return {"$ref": f"#/$defs/{name}"}
