"""Constraints on an answer: `response_format`, `text.format`, and the fields of vLLM."""

import json
from typing import Any, Final

from chairlift.api.checks import bad
from chairlift.api.errors import Reason, RequestError
from chairlift.api.types import Constraint
from chairlift.server.protocols.openai.fields import Fields, unsupported

Names = dict[str, str]
"""Names of the API for paths of the engine."""

_TYPES: Final = ("text", "json_object", "json_schema")
_STRUCTURED: Final = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choices",
    "grammar": "lark",
    "json_object": "json_object",
}
"""Fields of `structured_outputs`; all but the last also as `guided_NAME`."""


def chat_format(body: Fields) -> tuple[Constraint | None, Names]:
    """Take the constraint of a conversation or a completion.

    Raises:
        RequestError: With the path of the field that is wrong, or there is more than one.
    """
    return _one_of(body, body.part("response_format"), is_flat=False)


def response_format(body: Fields, text_format: Fields | None) -> tuple[Constraint | None, Names]:
    """Take the constraint of a response; `text_format` is `text.format`, as `chat_format`."""
    return _one_of(body, text_format, is_flat=True)


def _one_of(body: Fields, form: Fields | None, *, is_flat: bool) -> tuple[Constraint | None, Names]:
    found: list[tuple[Constraint, Names]] = []
    if form is not None:
        found += _format(form, is_flat=is_flat)
    for name in ("json", "regex", "choice", "grammar"):
        value = body.take(f"guided_{name}")
        if value is not None:
            found.append(_structured(name, value, f"guided_{name}"))
    structured = body.part("structured_outputs")
    if structured is not None:
        for name in _STRUCTURED:
            value = structured.take(name)
            if value is not None and value is not False:
                found.append(_structured(name, value, f"structured_outputs.{name}"))
        structured.end()
    if len(found) > 1:
        paths = [names["constraint"] for _, names in found]
        message = f"{paths[1]}: expected one format of the answer, got {paths[0]} too"
        raise RequestError(Reason.BAD_PARAMETER, message, field=paths[1])
    return found[0] if found else (None, {})


def _format(form: Fields, *, is_flat: bool) -> list[tuple[Constraint, Names]]:
    kind = form.take("type")
    if kind not in _TYPES:
        raise unsupported(form.path_of("type"), f"expected {', '.join(map(repr, _TYPES))}")
    if kind == "json_schema":
        schema = form if is_flat else form.part("json_schema")
        if schema is None:
            raise bad(form.path_of("json_schema"), "an object", None)
        schema.text("name")
        schema.drop("description")
        # Every schema is kept to.
        schema.flag("strict")
        path, value = schema.path_of("schema"), schema.take("schema", {})
        if not isinstance(value, dict | bool):
            raise bad(path, "a JSON schema", value)
        schema.end()
        form.end()
        return [(Constraint(json_schema=_text(value)), _names("json_schema", path))]
    form.end()
    if kind == "text":
        return []
    return [(Constraint(json_object=True), _names("json_object", form.path))]


def _text(schema: Any) -> str:
    """Return a schema as JSON, once: the engine asks for it several times."""
    return json.dumps(schema, ensure_ascii=False)


def _structured(name: str, value: Any, path: str) -> tuple[Constraint, Names]:
    field = _STRUCTURED[name]
    given: dict[str, Any] = {field: _text(value) if isinstance(value, dict) else value}
    return Constraint(**given), _names(field, path)


def _names(field: str, path: str) -> Names:
    """Return the client's names of a constraint as a whole, and of its one field."""
    return {f"constraint.{field}": path, "constraint": path}
