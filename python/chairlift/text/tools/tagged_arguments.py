"""Arguments as tags: what a schema says of parameters whose values are written without quotes.

The grammar of JSON schemas holds values of JSON. A text between tags is none, so what a schema says
of it is held here, or refused by name. The parameters of a call are those that are declared.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from chairlift.api.errors import Reason, RequestError, echo
from chairlift.text.constraints.schema_checks import ANNOTATIONS
from chairlift.text.tools.answer_formats import kinds_of, may_be_text, referred

END: Final = "</parameter>"
_MAX_DEPTH: Final = 8
_ROOT: Final = ANNOTATIONS | {"type", "properties", "required"}
# Parameters that are not declared are never written.
_ABOUT_OTHERS: Final = frozenset({"additionalProperties", "unevaluatedProperties"})
_TEXT: Final = ANNOTATIONS | {"type", "enum", "const", "minLength", "maxLength"}


class Text(NamedTuple):
    """What the text of a parameter can be."""

    values: tuple[str, ...] | None = None
    """The only ones; None is any."""
    min_length: int = 0
    """In characters."""
    max_length: int | None = None


class Unheld(Exception):
    """A part of a schema that is not held."""


def refuse(error: Unheld, path: str) -> NoReturn:
    """Refuse the schema of the tool with this path.

    Raises:
        RequestError: `BAD_PARAMETER` in its schema.
    """
    field = f"{path}.parameters_json"
    message = f"{field}: {error}, which is not held in this model's form of calls"
    raise RequestError(Reason.BAD_PARAMETER, message, field=field) from None


def check_root(schema: Mapping[str, Any]) -> None:
    """Check that what a schema says of all parameters is held by declared ones alone.

    Raises:
        Unheld: It says more.
    """
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping):
        message = "expected properties as a mapping"
        raise Unheld(message)
    if not isinstance(required, list) or not all(name in properties for name in required):
        message = "got required beyond the properties"
        raise Unheld(message)
    held = _ROOT | _ABOUT_OTHERS
    if schema.get("minProperties", 0) in range(len(required) + 1):
        held |= {"minProperties"}
    max_properties = schema.get("maxProperties")
    if isinstance(max_properties, int) and max_properties >= len(properties):
        held |= {"maxProperties"}
    _check_keywords(schema, held, "")


def text_of(name: str, declared: object, root: Mapping[str, Any]) -> Text:
    """Return what the text of a parameter can be.

    Args:
        name: Name of the parameter.
        declared: Its schema, by which it may be a text.
        root: The whole, for references within it.

    Raises:
        Unheld: The schema says what is not held.
    """
    place = f" of {echo(name)}"
    schema = _text_part(declared, root, place)
    if schema is True:
        return Text()
    if not isinstance(schema, Mapping):
        message = f"got no value{place}"
        raise Unheld(message)
    _check_keywords(schema, _TEXT, place)
    min_length, max_length = schema.get("minLength", 0), schema.get("maxLength")
    if not _is_length(min_length) or not (max_length is None or _is_length(max_length)):
        message = f"expected whole numbers as minLength and maxLength{place}"
        raise Unheld(message)
    lists = [schema["enum"]] if isinstance(schema.get("enum"), list) else []
    lists += [[schema["const"]]] if "const" in schema else []
    if not lists:
        return Text(None, int(min_length), None if max_length is None else int(max_length))
    kinds = kinds_of(schema, root)
    values = tuple(
        value
        for value in lists[0]
        if isinstance(value, str)
        and all(value in values for values in lists)
        and min_length <= len(value) <= (len(value) if max_length is None else max_length)
        and END not in value
        and (kinds == {"string"} or not _is_other(value))
    )
    if not values:
        message = f"got no text among the values{place}"
        raise Unheld(message)
    return Text(values)


def _text_part(schema: object, root: Mapping[str, Any], place: str) -> object:
    """Return the part of a schema that is about texts, behind references and beside null."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return schema
        said = schema.keys() - ANNOTATIONS
        if said == {"$ref"} and isinstance(schema["$ref"], str):
            schema = referred(schema["$ref"], root)
        elif said in ({"anyOf"}, {"oneOf"}) and isinstance(schema[next(iter(said))], list):
            options = schema[next(iter(said))]
            texts = [option for option in options if may_be_text(option, root)]
            if all(_is_type_alone(option) for option in options):
                return True
            others = [option for option in options if not may_be_text(option, root)]
            if len(texts) != 1 or any(kinds_of(other, root) != {"null"} for other in others):
                message = f"got {next(iter(said))}{place}"
                raise Unheld(message)
            schema = texts[0]
        else:
            return schema
    message = f"got references that nest too deeply{place}"
    raise Unheld(message)


def _is_type_alone(schema: object) -> bool:
    return isinstance(schema, Mapping) and not schema.keys() - ANNOTATIONS - {"type"}


def _is_length(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return False
    return isinstance(value, int) or value.is_integer()


def _is_other(text: str) -> bool:
    """Return whether a text may be read as a value of another type."""
    try:
        json.loads(text)
    except ValueError:
        return text.strip().lower() in ("true", "false", "null", "none") or not text.strip()
    return True


def _check_keywords(schema: Mapping[str, Any], held: frozenset[str], place: str) -> None:
    for key in schema:
        if key not in held and not key.startswith("x-"):
            message = f"got {echo(key)}{place}"
            raise Unheld(message)
