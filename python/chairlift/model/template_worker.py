"""The process that renders chat templates, with bounds that the kernel enforces.

A template can ask for any amount of work or memory in one operation (`"a" * 10**10`,
`range(10**9) | list`), and Python cannot interrupt one. So a rendering that exceeds its processor
time ends the process, whatever it is doing, and memory beyond the limit is refused to it.
"""

import json
import resource
import signal
import socket
from typing import Any, Final

from chairlift.errors import RequestError
from chairlift.model import chat_template
from chairlift.model.template_process import LENGTH, MAX_PROCESSOR_S

MAX_MEMORY_BYTES: Final = 512 * 2**20
"""Of the process, as private writable memory."""


def main(descriptor: int) -> None:
    """Serve renderings on a socket until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as received:
        _send(connection, b"{}")
        while header := received.read(LENGTH.size):
            message = received.read(LENGTH.unpack(header)[0])
            # The default action of SIGPROF is the end of the process.
            signal.setitimer(signal.ITIMER_PROF, MAX_PROCESSOR_S)
            answer = json.dumps(_answer(message)).encode("ascii")
            signal.setitimer(signal.ITIMER_PROF, 0)
            _send(connection, answer)


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(LENGTH.pack(len(message)) + message)


def _answer(message: bytes) -> dict[str, Any]:
    try:
        return {"text": chat_template.render(**json.loads(message))}
    except RequestError as error:
        return {"reason": error.reason.value, "message": error.message}
