"""The process that checks constraints, with bounds that the kernel enforces."""

import json
from collections.abc import Callable
from typing import Final

from chairlift import _core
from chairlift.api.bounded_process import Bounds, serve
from chairlift.text.constraints.constraint_process import MAX_MEMORY_BYTES, MAX_PROCESSOR_S
from chairlift.text.constraints.lark_checks import checked_lark
from chairlift.text.constraints.schema_checks import checked_schema
from chairlift.text.constraints.schema_numbers import SchemaError

BOUNDS: Final = Bounds(processor_s=MAX_PROCESSOR_S, memory_bytes=MAX_MEMORY_BYTES)

STACK_BYTES: Final = 32 * 2**20
"""Half of what a thread of the server has."""


def main(descriptor: int) -> None:
    """Serve checks on a socket until its other end is closed."""
    serve(descriptor, BOUNDS, _prepare)


def _prepare(message: bytes) -> Callable[[bytes], bytes]:
    described = json.loads(message)
    tokens, special = [b""] * described["size"], []
    for number, text, is_special in described["tokens"]:
        tokens[number] = text.encode("latin-1")
        if is_special:
            special.append(number)
    table = _core.TokenTable(tokens, special)
    compiler = _core.GrammarCompiler(table, described["end_ids"], stack_bytes=STACK_BYTES)
    # What the first constraint would pay for.
    compiler.compile("json_object")

    def answer(message: bytes) -> bytes:
        kind, text, choices = json.loads(message)
        try:
            text = _rewritten(kind, text)
            compiler.compile(kind, text, choices)
            found = {"text": text}
        except (SchemaError, ValueError) as error:
            found = {"error": str(error)}
        return json.dumps(found).encode("ascii")

    return answer


def _rewritten(kind: str, text: str) -> str:
    match kind:
        case "json_schema":
            return checked_schema(text)
        case "lark":
            return checked_lark(text)
        case _:
            return text
