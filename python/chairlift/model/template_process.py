"""Renders conversations in a process that can be killed, which runs `template_worker.py`."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from typing import Any, Final, NoReturn

from chairlift.errors import Reason, RequestError

LENGTH: Final = struct.Struct("!I")
"""Goes before each message, which is JSON in ASCII."""

MAX_PROCESSOR_S: Final = 1.0
"""Of one rendering, the compilation of the template included."""

MAX_START_S: Final = 30.0
"""From the start of the process until it takes conversations."""

MAX_WAIT_S: Final = 10.0
"""For one rendering; on an idle machine it takes little more than its processor time."""

_MAIN: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from chairlift.model.template_worker import main; main(int(sys.argv[1]))"
)


class _Ended(Exception):
    """The process has ended before its answer."""


class TemplateProcess:
    """One process, started with the first conversation, and again after it has ended.

    Any thread may call `render` at any time; renderings come one after another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._end: weakref.finalize[..., TemplateProcess] | None = None

    def render(self, **arguments: object) -> str:
        """Render a conversation; the arguments are those of `chat_template.render`, as JSON values.

        Raises:
            RequestError: As `chat_template.render`; `BAD_PARAMETER` in `chat` where the template
                needs too much time; `BAD_PARAMETER` in `chat.template_arguments`: a value has no
                form in JSON; `ENGINE_BUSY`: no answer came in time.
        """
        try:
            message = json.dumps(arguments).encode("ascii")
        except (TypeError, ValueError, RecursionError):
            text = "chat.template_arguments: expected values that JSON can hold"
            field = "chat.template_arguments"
            raise RequestError(Reason.BAD_PARAMETER, text, field=field) from None
        with self._lock:
            answer = self._answer(message)
        if "text" in answer:
            return str(answer["text"])
        raise RequestError(Reason(answer["reason"]), answer["message"], field="chat")

    def _answer(self, message: bytes) -> dict[str, Any]:
        # An idle process may have been killed from outside: another one is started.
        if self._is_running():
            try:
                return self._exchange(message)
            except _Ended:
                _refuse_if_too_long(self._stop())
        self._start()
        try:
            return self._exchange(message)
        except _Ended:
            code = self._stop()
            _refuse_if_too_long(code)
            _refuse(f"chat template: its process ended with {code}")

    def _exchange(self, message: bytes) -> dict[str, Any]:
        deadline = time.monotonic() + MAX_WAIT_S
        try:
            self._connection.settimeout(MAX_WAIT_S)
            self._connection.sendall(LENGTH.pack(len(message)) + message)
            answer: dict[str, Any] = json.loads(self._receive(deadline))
        except TimeoutError:
            self._stop()
            text = f"the chat was not rendered within {MAX_WAIT_S:g} s"
            raise RequestError(Reason.ENGINE_BUSY, text, field="chat", retry_after_s=1.0) from None
        except OSError:
            raise _Ended from None
        return answer

    def _receive(self, deadline: float) -> bytes:
        (length,) = LENGTH.unpack(self._read(LENGTH.size, deadline))
        return self._read(length, deadline)

    def _read(self, length: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            piece = self._connection.recv(length - len(data))
            if not piece:
                raise _Ended
            data += piece
        return bytes(data)

    def _is_running(self) -> bool:
        # After a fork the process is the parent's, and two would write into one connection.
        return self._end is not None and self._end.alive and self._owner == os.getpid()

    def _start(self) -> None:
        """Start the process and wait until its limits hold."""
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = (str(theirs.fileno()), json.dumps([*map(str, sys.path)]))
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _MAIN, *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                ours.close()
                text = f"the process that renders chats does not start: {error.strerror}"
                raise RequestError(Reason.INTERNAL, text, field="chat") from None
        self._connection, self._owner = ours, os.getpid()
        self._end = weakref.finalize(self, _end_process, process, ours, self._owner)
        try:
            self._receive(time.monotonic() + MAX_START_S)
        except (_Ended, OSError):
            text = f"the process that renders chats does not start: it ended with {self._stop()}"
            raise RequestError(Reason.INTERNAL, text, field="chat") from None

    def _stop(self) -> int:
        """End the process; return its exit code, negative for a signal."""
        assert self._end is not None
        code = self._end()
        assert code is not None
        return int(code)


def _end_process(process: "subprocess.Popen[bytes]", connection: socket.socket, owner: int) -> int:
    connection.close()
    if os.getpid() != owner:
        # This is a fork of the process that it belongs to.
        return 0
    # A process that has ended by itself keeps its own code.
    process.kill()
    return process.wait()


def _refuse_if_too_long(code: int) -> None:
    if code == -signal.SIGPROF:
        _refuse(f"chat template: it needs more than {MAX_PROCESSOR_S:g} s of processor time")


def _refuse(message: str) -> NoReturn:
    raise RequestError(Reason.BAD_PARAMETER, message, field="chat") from None
