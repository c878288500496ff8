"""Random schemas of every keyword, judged by the grammar and by the `jsonschema` package.

Each value that the grammar accepts must be valid; each that is valid must be accepted in some order
of its properties, written as answers are.
"""

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from chairlift import _core
from chairlift.api.errors import RequestError
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from tests.constraints.acceptance import DeadEndError, Judge, written

KEYS = ("a", "b", "ab", "c")
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 4, 6, 9, 10, -3, -6, 15, 100),
    *(0.5, 1.5, 2.5, -0.5, 0.3, 2**53, 2**53 - 1, -(2**53)),
    *("", "a", "b", "ab", "abc", "é", "aa", 'q"', "\n"),
)
PATTERNS = ("^a", "b$", "^[ab]*$", "a", "^c", "^(a|b){1,2}$")
MAX_ORDERS = 24
NUM_WALKS = 6


def _multiple(validator: Any, divisor: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    del schema
    is_number = validator.is_type(value, "number")
    if is_number and Fraction(str(value)) % Fraction(str(divisor)):
        yield ValidationError(f"{value} is no multiple of {divisor}")


def _pattern(validator: Any, pattern: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    del schema
    # In JSON Schema `$` is the end alone, in Python also before a line break at the end.
    if validator.is_type(value, "string") and not re.search(pattern.replace("$", r"\Z"), value):
        yield ValidationError(f"{value!r} does not match {pattern}")


ExactValidator = extend(Draft202012Validator, {"multipleOf": _multiple, "pattern": _pattern})
"""Numbers are what is written, not floats near it."""


@dataclass
class Verdict:
    """What became of the schemas of some seeds."""

    num_compiled: int = 0
    num_judged: int = 0
    num_undefined: int = 0
    """Values that lead into a reference to itself: the specification defines no result."""
    refused: Counter[str] = field(default_factory=Counter)
    """By the words of the message."""
    invalid: list[tuple[int, Any, str]] = field(default_factory=list)
    """Accepted and not valid: seed, schema, text."""
    missed: list[tuple[int, Any, str]] = field(default_factory=list)
    """Valid and not accepted."""
    dead_ends: list[tuple[int, Any, str]] = field(default_factory=list)
    """Begun, and not to be ended."""
    num_walks: int = 0
    """Answers that were drawn at random, and have ended."""


def judge_schemas(judge: Judge, seeds: Iterable[int]) -> Verdict:
    """Compile the schemas of some seeds and judge values by each."""
    verdict = Verdict()
    for seed in seeds:
        draw = random.Random(seed)
        schema = _Writer(draw).document()
        try:
            grammar = judge.compile(written(schema))
        except RequestError as error:
            words = error.message.partition(": ")[2].partition("\n")[0]
            verdict.refused[re.sub(r"\$[^ :]*|[-\d.]+|/[^ ]*/", "_", words)[:60]] += 1
            continue
        verdict.num_compiled += 1
        _judge_walks(judge, grammar, seed, schema, draw, verdict)
        _judge_values(judge, grammar, seed, schema, draw, verdict)
    return verdict


def _judge_walks(
    judge: Judge,
    grammar: _core.Grammar,
    seed: int,
    schema: Any,
    draw: random.Random,
    verdict: Verdict,
) -> None:
    """Judge answers that are drawn at random from the grammar."""
    for _ in range(NUM_WALKS):
        try:
            text = judge.walk(grammar, draw)
        except DeadEndError as error:
            verdict.dead_ends.append((seed, schema, str(error)))
            continue
        if text is not None:
            verdict.num_walks += 1
            if _is_valid(schema, json.loads(text)) is False:
                verdict.invalid.append((seed, schema, text))


def _judge_values(
    judge: Judge,
    grammar: _core.Grammar,
    seed: int,
    schema: Any,
    draw: random.Random,
    verdict: Verdict,
) -> None:
    """Judge whether the grammar accepts the values that are valid, and no others."""
    for value in _values(draw):
        is_valid = _is_valid(schema, value)
        if is_valid is None:
            verdict.num_undefined += 1
            continue
        orders = _orders(value)
        accepted = [text for text in orders if judge.accepts(grammar, text)]
        verdict.num_judged += 1
        if accepted and not is_valid:
            verdict.invalid.append((seed, schema, accepted[0]))
        if is_valid and not accepted and len(orders) < MAX_ORDERS:
            verdict.missed.append((seed, schema, written(value)))


def _is_valid(schema: Any, value: Any) -> bool | None:
    """Return whether a value is valid; None where a reference leads back to itself."""
    try:
        return bool(ExactValidator(schema).is_valid(value))
    except RecursionError:
        return None


def _values(draw: random.Random) -> list[Any]:
    values = [*SCALARS, [], {}]
    for _ in range(20):
        size = draw.randint(1, 3)
        values.append([draw.choice(values) for _ in range(size)])
        values.append({key: draw.choice(values) for key in draw.sample(KEYS, size)})
    return values


def _orders(value: Any) -> list[str]:
    return [written(one) for one in itertools.islice(_arranged(value), MAX_ORDERS)]


def _arranged(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for keys in itertools.permutations(value):
            options = [list(itertools.islice(_arranged(value[key]), 6)) for key in keys]
            for chosen in itertools.product(*options):
                yield dict(zip(keys, chosen, strict=True))
    elif isinstance(value, list):
        options = [list(itertools.islice(_arranged(item), 6)) for item in value]
        yield from map(list, itertools.product(*options))
    else:
        yield value


class _Writer:
    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def document(self) -> Any:
        schema = self._schema(0)
        if isinstance(schema, dict):
            names = [f"d{i}" for i in range(self._draw.randint(1, 3))]
            schema["$defs"] = {name: self._schema(1) for name in names}
            return self._resolved(schema, [f"#/$defs/{name}" for name in names] + ["#"])
        return schema

    def _resolved(self, value: Any, references: list[str]) -> Any:
        """Put references in the places that were left for them."""
        if isinstance(value, dict):
            found = {key: self._resolved(own, references) for key, own in value.items()}
            if "$ref" in found:
                found["$ref"] = self._draw.choice(references)
            return found
        if isinstance(value, list):
            return [self._resolved(own, references) for own in value]
        return value

    def _schema(self, depth: int) -> Any:
        draw = self._draw
        if draw.random() < 0.07:
            return draw.random() < 0.6
        parts = [self._type, self._number, self._string, self._literal]
        if depth < 3:
            parts += [self._object, self._object, self._array, self._combined, self._reference]
        schema: dict[str, Any] = {}
        for part in draw.sample(parts, draw.randint(1, 2)):
            schema.update(part(depth + 1))
        if draw.random() < 0.5 and "type" not in schema:
            schema.update(self._type(depth))
        if draw.random() < 0.1:
            schema.update(draw.choice([{"title": "t"}, {"uniqueItems": False}, {"x-own": 1}]))
        items = list(schema.items())
        draw.shuffle(items)
        return dict(items)

    def _type(self, depth: int) -> dict[str, Any]:
        del depth
        names = ["null", "boolean", "integer", "number", "string", "array", "object"]
        if self._draw.random() < 0.7:
            return {"type": self._draw.choice(names)}
        return {"type": self._draw.sample(names, self._draw.randint(1, 3))}

    def _number(self, depth: int) -> dict[str, Any]:
        del depth
        kinds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
        schema = {
            kind: self._draw.choice([-6, -1, 0, 1, 1.5, 3, 9, 10, 2.0])
            for kind in self._draw.sample(kinds, self._draw.randint(0, 2))
        }
        if self._draw.random() < 0.4:
            schema["multipleOf"] = self._draw.choice([1, 2, 3, 0.5, 1.5, 0.1, 5])
        return schema

    def _string(self, depth: int) -> dict[str, Any]:
        del depth
        schema: dict[str, Any] = {}
        if self._draw.random() < 0.5:
            schema["minLength"] = self._draw.randint(0, 2)
        if self._draw.random() < 0.5:
            schema["maxLength"] = self._draw.choice([0, 1, 2, 3, 2.0, 2**40])
        if self._draw.random() < 0.4:
            schema["pattern"] = self._draw.choice(PATTERNS)
        return schema

    def _literal(self, depth: int) -> dict[str, Any]:
        del depth
        values = [*SCALARS, [], [1], {}, {"a": 1}, {"a": [None], "b": "x"}, 1.0, -0.0]
        if self._draw.random() < 0.4:
            return {"const": self._draw.choice(values)}
        return {"enum": self._draw.sample(values, self._draw.randint(1, 4))}

    def _object(self, depth: int) -> dict[str, Any]:
        draw = self._draw
        schema: dict[str, Any] = {}
        if draw.random() < 0.8:
            keys = draw.sample(KEYS, draw.randint(0, 3))
            schema["properties"] = {key: self._schema(depth) for key in keys}
        if draw.random() < 0.5:
            schema["required"] = draw.sample(KEYS, draw.randint(0, 2))
        if draw.random() < 0.5:
            schema["additionalProperties"] = self._schema(depth) if draw.random() < 0.5 else False
        if draw.random() < 0.3:
            schema["patternProperties"] = {
                draw.choice(PATTERNS): self._schema(depth) for _ in range(draw.randint(1, 2))
            }
        for kind in ("minProperties", "maxProperties"):
            if draw.random() < 0.12:
                schema[kind] = draw.randint(0, 3)
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        draw = self._draw
        schema: dict[str, Any] = {}
        if draw.random() < 0.6:
            schema["items"] = self._schema(depth)
        if draw.random() < 0.4:
            schema["prefixItems"] = [self._schema(depth) for _ in range(draw.randint(1, 2))]
        for kind in ("minItems", "maxItems"):
            if draw.random() < 0.3:
                schema[kind] = draw.randint(0, 3)
        return schema

    def _combined(self, depth: int) -> dict[str, Any]:
        kind = self._draw.choice(["anyOf", "anyOf", "oneOf", "allOf", "allOf"])
        return {kind: [self._schema(depth) for _ in range(self._draw.randint(1, 3))]}

    def _reference(self, depth: int) -> dict[str, Any]:
        del depth
        return {"$ref": ""}
