"""`chairlift serve --supervise`: a small parent that restarts the server after a fault.

    parent: spawn ──▶ wait ──▶ 0, a wrong setting, or a signal was sent: the same exit code
                ▲       └────▶ 70, or it died while it served: back off
                └──────────────┘ three times within five minutes, then exit 70

The child is the same command with a socket to the parent. One byte from the child means that it
serves; the end of the file means that the parent is gone, and the child exits at once, so that the
port is free for the next one. The parent imports no torch and takes a few megabytes.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final

from chairlift.server.ops.restart_budget import RestartBudget
from chairlift.server.ops.watchdog import FAULT_EXIT

SOCKET_VARIABLE: Final = "CHAIRLIFT_SUPERVISOR_SOCKET"
"""In the environment of the child: its end of the socket."""

_BACKOFF_S: Final = (0.25, 1.0, 4.0)
"""Delays before the restarts of a budget: the cause of a fault may need time to pass."""

_SIGNAL_EXIT: Final = 128
"""Plus its number: the exit code of a process that a signal ended."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)


class Parent:
    """The child's side of the supervision; without a supervisor it does nothing."""

    def __init__(self) -> None:
        """Connect this process to its supervisor, if it has one."""
        number = os.environ.pop(SOCKET_VARIABLE, None)
        self._socket = None if number is None else socket.socket(fileno=int(number))
        if self._socket is None:
            return
        # A compiler that this process starts must not keep the socket open.
        self._socket.set_inheritable(False)
        _die_with_parent()
        threading.Thread(target=self._watch, name="chairlift-parent", daemon=True).start()

    def __bool__(self) -> bool:
        return self._socket is not None

    def serving(self) -> None:
        """Report that requests are accepted."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(b"1")

    def _watch(self) -> None:
        assert self._socket is not None
        with suppress(OSError):
            self._socket.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)


def _die_with_parent() -> None:
    """Let the kernel kill this process with its parent, even if every thread is stuck."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def run_supervised(command: list[str]) -> int:
    """Run a server as a child, and restart it after a fault, until a signal or its own end.

    Every SIGTERM and SIGINT is forwarded: the second one cuts the child's grace short.

    Args:
        command: Program and arguments of the child.

    Returns:
        The exit code: the child's last, or 70 after too many faults.
    """
    return asyncio.run(_Supervisor(command).run())


class _Supervisor:
    """The parent's side."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._child: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._budget = RestartBudget()
        self._has_served = False

    async def run(self) -> int:
        with self._forwarded_signals():
            while True:
                is_serving, code = await self._run_child()
                self._has_served |= is_serving
                if self._stopping.is_set() or not self._is_fault(code, was_serving=is_serving):
                    return code
                if not self._budget.take():
                    _log.critical("the server ended with %d once too often", code)
                    return FAULT_EXIT
                if await self._stops_within(_BACKOFF_S[self._budget.num_taken - 1]):
                    return code
                _log.error("the server ended with %d and starts again", code)

    def _is_fault(self, code: int, *, was_serving: bool) -> bool:
        """Return whether another child may succeed; a wrong setting stays wrong."""
        is_killed = code >= _SIGNAL_EXIT and self._has_served
        return code == FAULT_EXIT or is_killed or (code != 0 and was_serving)

    async def _run_child(self) -> tuple[bool, int]:
        """Return whether the child served, and its exit code as a shell reports it."""
        ours, theirs = socket.socketpair()
        with closing(theirs):
            self._child = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, SOCKET_VARIABLE: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                # Ctrl-C reaches the parent only, which forwards it once.
                process_group=0,
            )
        if self._stopping.is_set():
            # The signal came before the child existed.
            self._child.terminate()
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            code = await self._child.wait()
            # A byte that the child sent has arrived by now.
            is_serving = bool(await reader.read(1))
        finally:
            writer.close()
        return is_serving, code if code >= 0 else _SIGNAL_EXIT - code

    async def _stops_within(self, delay_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        return self._stopping.is_set()

    @contextmanager
    def _forwarded_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._forward_signal, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _forward_signal(self, number: int) -> None:
        self._stopping.set()
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)
