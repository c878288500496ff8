"""Work on what a client sent, in processes whose time and memory the kernel bounds.

Python and native code cannot be interrupted in the middle of an operation, and a stack that
overflows ends its process. So work that a client's data can make as long, large or deep as it
likes runs in a process of its own, which runs `serve`. It is started with the first message, and
again after it has ended. A pool has several, so that a message that uses up its time holds no
other one up.
"""

import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from chairlift.api.errors import Reason, RequestError, refusal
from chairlift.api.interruption import interruptible, is_interrupted

MAX_START_S: Final = 30.0
"""From the start of a process until it takes messages."""

MAX_WAIT_S: Final = 10.0
"""For one answer, and for a free process; an idle machine takes little more than the processor
time."""

MAX_PROCESSES: Final = 4
"""Processes of one pool: as many as there are threads that prepare requests."""

_LENGTH: Final = struct.Struct("!I")
"""Goes before each message."""

_MAIN: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from {module} import main; main(int(sys.argv[1]))"
)
_FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one message, enforced by the kernel."""

    processor_s: float
    memory_bytes: int
    """Memory of the process, private and writable."""


class TooLongError(Exception):
    """The work needs more processor time than it may use."""


class EndedError(Exception):
    """The process has ended before its answer: a fault, or memory that it was refused."""

    def __init__(self, code: int) -> None:
        super().__init__(f"its process ended with {code}")
        self.code = code


class _Settings(NamedTuple):
    """The settings that `ProcessPool` gets."""

    module: str
    what: str
    field: str
    greeting: Callable[[], bytes]


class ProcessPool:
    """Processes that run one module; any thread may call `ask` at any time."""

    def __init__(
        self, module: str, what: str, field: str, greeting: Callable[[], bytes] = bytes
    ) -> None:
        """Start none yet.

        Args:
            module: Its `main` gets the descriptor of a socket, which it gives to `serve`.
            what: What a process does, for messages: "renders chats".
            field: Field of a request, for errors that no message of a client causes.
            greeting: Returns the first message, by which a process prepares itself.
        """
        self._settings = _Settings(module, what, field, greeting)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._free = threading.BoundedSemaphore(MAX_PROCESSES)

    def ask(self, message: bytes) -> bytes:
        """Return the answer to a message.

        Raises:
            TooLongError: It takes more processor time than it may.
            EndedError: The process has ended.
            RequestError: `ENGINE_BUSY`: no answer came in time; `DRAINING`: the work of this
                thread was interrupted; `INTERNAL`: the process does not start.
        """
        if not self._free.acquire(timeout=MAX_WAIT_S):
            raise _busy(self._settings.field)
        try:
            with self._lock:
                process = self._idle.pop() if self._idle else _Process(self._settings)
            try:
                with interruptible(process.kill):
                    return process.ask(message)
            finally:
                with self._lock:
                    self._idle.append(process)
        finally:
            self._free.release()


class _Process:
    """One process; one thread uses it at a time, and any may end it."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._owner = 0
        self._end: weakref.finalize[..., _Process] | None = None

    def ask(self, message: bytes) -> bytes:
        # An idle process may have been killed from outside: another one is started.
        if self._is_running():
            try:
                return self._exchange(message)
            except OSError:
                self._refuse_fault(self._stop())
        self._start()
        try:
            return self._exchange(message)
        except OSError:
            code = self._stop()
            self._refuse_fault(code)
            raise EndedError(code) from None

    def kill(self) -> None:
        """End the process, which the thread that waits for it notices."""
        if self._is_running():
            self._process.kill()

    def _refuse_fault(self, code: int) -> None:
        if is_interrupted():
            raise refusal(Reason.DRAINING) from None
        if code == -signal.SIGPROF:
            raise TooLongError from None
        if -code in _FAULTS:
            raise EndedError(code) from None

    def _exchange(self, message: bytes) -> bytes:
        deadline = time.monotonic() + MAX_WAIT_S
        try:
            self._connection.settimeout(MAX_WAIT_S)
            self._connection.sendall(_LENGTH.pack(len(message)) + message)
            return self._receive(deadline)
        except TimeoutError:
            self._stop()
            raise _busy(self._settings.field) from None
        except OSError:
            raise
        except BaseException:
            # The answer to this message must not become that to the next one.
            self._stop()
            raise

    def _receive(self, deadline: float) -> bytes:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        return self._read(length, deadline)

    def _read(self, length: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            piece = self._connection.recv(length - len(data))
            if not piece:
                message = "the process has ended"
                raise ConnectionError(message)
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
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-c",
                        _MAIN.format(module=self._settings.module),
                        *arguments,
                    ],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                ours.close()
                raise self._no_start(str(error.strerror)) from None
        self._connection, self._owner = ours, os.getpid()
        self._end = weakref.finalize(self, _end_process, self._process, ours, self._owner)
        # A process that is killed while it is idle leaves nothing behind until it is needed again.
        threading.Thread(target=self._process.wait, name="chairlift-reaper", daemon=True).start()
        try:
            greeting = self._settings.greeting()
            self._connection.settimeout(MAX_START_S)
            self._connection.sendall(_LENGTH.pack(len(greeting)) + greeting)
            self._receive(time.monotonic() + MAX_START_S)
        except OSError:
            code = self._stop()
            if is_interrupted():
                raise refusal(Reason.DRAINING) from None
            why = f"it ended with {code}"
            raise self._no_start(why) from None
        except BaseException:
            # It would take the next message for its greeting.
            self._stop()
            raise
        if is_interrupted():
            # It may have been before there was a process to end.
            self._stop()
            raise refusal(Reason.DRAINING)

    def _no_start(self, why: str) -> RequestError:
        text = f"the process that {self._settings.what} does not start: {why}"
        return RequestError(Reason.INTERNAL, text, field=self._settings.field)

    def _stop(self) -> int:
        """End the process; return its exit code, negative for a signal."""
        assert self._end is not None
        code = self._end()
        assert code is not None
        return int(code)


def _busy(field: str) -> RequestError:
    text = f"{field}: it was not prepared within {MAX_WAIT_S:g} s"
    return RequestError(Reason.ENGINE_BUSY, text, field=field, retry_after_s=1.0)


def _end_process(process: "subprocess.Popen[bytes]", connection: socket.socket, owner: int) -> int:
    connection.close()
    if os.getpid() != owner:
        # This is a fork of the process that it belongs to.
        return 0
    # A process that has ended by itself keeps its own code.
    process.kill()
    return process.wait()


def serve(
    descriptor: int, bounds: Bounds, prepare: Callable[[bytes], Callable[[bytes], bytes]]
) -> None:
    """Answer messages on a socket until its other end is closed.

    Args:
        descriptor: Descriptor of the socket.
        bounds: Bounds of each message. One that exceeds its processor time ends the process,
            whatever it is doing; memory beyond the limit is refused to it.
        prepare: Called with the first message; returns what answers the others.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (bounds.memory_bytes, bounds.memory_bytes))
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as received:
        answer: Callable[[bytes], bytes] | None = None
        while header := received.read(_LENGTH.size):
            message = received.read(_LENGTH.unpack(header)[0])
            if answer is None:
                answer, text = prepare(message), b""
            else:
                # The default action of SIGPROF is the end of the process.
                signal.setitimer(signal.ITIMER_PROF, bounds.processor_s)
                text = answer(message)
                signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(_LENGTH.pack(len(text)) + text)
