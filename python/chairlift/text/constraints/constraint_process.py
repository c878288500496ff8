"""Compiles constraints in processes that can be killed, which run `constraint_worker.py`.

The parser of constraints is native code that recurses into what a client wrote, and whose work has
no bound in time. So each constraint that is new is compiled here first. What has passed, in the
form in which it comes back, the server compiles for itself: the same code does the same work on a
stack that is larger.
"""

import json
from typing import Final, NoReturn

from chairlift import _core
from chairlift.api.bounded_process import EndedError, ProcessPool, TooLongError
from chairlift.api.constraints import Source
from chairlift.api.errors import Reason, RequestError

MAX_PROCESSOR_S: Final = 0.5
"""Seconds of processor time of one constraint."""
MAX_MEMORY_BYTES: Final = 256 * 2**20
"""Memory of the process, which takes some 30 MiB before a constraint."""


class ConstraintProcess:
    """Processes that compile: one, and more while it is busy; any thread may use them."""

    def __init__(self, token_table: _core.TokenTable, end_ids: tuple[int, ...]) -> None:
        """Start none yet; they get the tokens that constraints can name, and no others."""

        def greeting() -> bytes:
            outline = token_table.outline(end_ids)
            tokens = [(i, text.decode("latin-1"), special) for i, text, special in outline]
            described = {"size": token_table.vocab_size, "tokens": tokens, "end_ids": end_ids}
            return json.dumps(described).encode("ascii")

        module = "chairlift.text.constraints.constraint_worker"
        self._pool = ProcessPool(module, "checks constraints", "constraint", greeting)

    def checked(self, source: Source) -> Source:
        """Return a constraint in the form in which it can be compiled here.

        Raises:
            RequestError: `BAD_PARAMETER` in its field: it is no constraint, is not supported, or
                takes too much time, memory or depth; `ENGINE_BUSY` and `DRAINING` as
                `ProcessPool.ask`.
        """
        message = json.dumps([source.kind, source.text, source.choices]).encode("ascii")
        try:
            answer = json.loads(self._pool.ask(message))
        except TooLongError:
            text = f"expected less work: it takes more than {MAX_PROCESSOR_S:g} s to compile"
            _refuse(source, text)
        except EndedError:
            max_mib = MAX_MEMORY_BYTES // 2**20
            text = f"expected a smaller one: it nests too deeply, or takes more than {max_mib} MiB"
            _refuse(source, text)
        if "error" in answer:
            _refuse(source, answer["error"])
        return source._replace(text=answer["text"])


def _refuse(source: Source, message: str) -> NoReturn:
    text = f"{source.field}: {message}"
    raise RequestError(Reason.BAD_PARAMETER, text, field=source.field) from None
