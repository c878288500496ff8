"""Lark grammars as the parser of constraints takes them: with few rules and checked schemas."""

import re
from typing import Final

from chairlift.text.constraints.schema_checks import checked_value, decoder, written
from chairlift.text.constraints.schema_numbers import SchemaError

MAX_RULES: Final = 4096
"""Rules and terminals of a grammar; the parser recurses into what they name."""

_PART: Final = re.compile(
    r'"(?:[^"\\\n]|\\.)*+"?'  # A text.
    r"|(?:\#|//)[^\n]*+"  # A comment.
    r"|/(?:[^/\\]|\\.)*+/?"  # An expression.
    r"|%json[ \t\r\n]*+",
    re.DOTALL,
)
_RULE: Final = re.compile(r"^[ \t]*+[!?_]*+[A-Za-z][\w\-]*+[^:\n]*+:", re.MULTILINE)


def checked_lark(text: str) -> str:
    """Return a grammar with its JSON schemas as the parser takes them.

    Raises:
        SchemaError: It has too many rules, or a schema in it is not supported.
    """
    num_rules = sum(1 for _ in _RULE.finditer(text))
    if num_rules > MAX_RULES:
        message = f"expected at most {MAX_RULES} rules and terminals, got {num_rules}"
        raise SchemaError(message)
    reader, parts, end, place = decoder(), [], 0, 0
    while (found := _PART.search(text, place)) is not None:
        place = found.end()
        if not found[0].startswith("%json"):
            continue
        try:
            schema, place = reader.raw_decode(text, place)
        except RecursionError:
            message = "%json: it nests too deeply"
            raise SchemaError(message) from None
        except SchemaError:
            raise
        except ValueError as error:
            message = f"%json: not JSON: {error}"
            raise SchemaError(message) from None
        checked = written(checked_value(schema))
        parts += [text[end : found.end()], checked]
        end = place
    return "".join([*parts, text[end:]])
