"""The process that renders chat templates, with bounds that the kernel enforces.

A template can ask for any amount of work or memory in one operation (`"a" * 10**10`,
`range(10**9) | list`), and Python cannot interrupt one.
"""

import json
from typing import Any, Final

from chairlift.api.bounded_process import Bounds, serve
from chairlift.api.errors import RequestError
from chairlift.text.chat import chat_template
from chairlift.text.chat.template_process import MAX_PROCESSOR_S

BOUNDS: Final = Bounds(processor_s=MAX_PROCESSOR_S, memory_bytes=512 * 2**20)


def main(descriptor: int) -> None:
    """Serve renderings on a socket until its other end is closed."""
    serve(descriptor, BOUNDS, lambda _: _answer)


def _answer(message: bytes) -> bytes:
    answer: dict[str, Any]
    try:
        answer = {"text": chat_template.render(**json.loads(message))}
    except RequestError as error:
        answer = {"reason": error.reason.value, "message": error.message}
    return json.dumps(answer).encode("ascii")
