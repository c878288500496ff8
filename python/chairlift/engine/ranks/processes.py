"""The processes of the other ranks: started, watched, and ended.

One thread starts them and watches them: the kernel ends a process that asked for it when the thread
that started it ends, so also when this process is killed.
"""

import json
import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from chairlift.api.errors import ModelError
from chairlift.api.logs import fields
from chairlift.engine.ranks.adapter_socket import LeadEnd

START_S: Final = 600.0
"""From the start of a process until it has its weights."""
END_S: Final = 5.0
"""From the end of the group until a process is killed."""

READY: Final = "ready"
"""What a rank writes when it takes messages; another line says what is wrong."""

RANK_MODULE: Final = "chairlift.engine.loading.rank_process"
"""Its `main` is the process of a rank."""
_MAIN: Final = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.stdin.readline());"
    "importlib.import_module(sys.argv[1]).main(json.loads(sys.stdin.readline()))"
)

_log = logging.getLogger(__name__)


class RankProcesses:
    """The processes of ranks 1, 2, ... of one group."""

    def __init__(
        self,
        settings: Sequence[dict[str, Any]],
        descriptor: int,
        on_death: Callable[[int], None],
        module: str = RANK_MODULE,
    ) -> None:
        """Start the thread, which starts the processes.

        Args:
            settings: What `main` gets, of each rank.
            descriptor: The segment, which they inherit.
            on_death: Called on the thread with the rank of a process that ended before `close`.
            module: Has `main`, as `rank_process` does.
        """
        self._settings = settings
        self._module = module
        self._descriptor = descriptor
        self._on_death = on_death
        self._owner = os.getpid()
        self._closing = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._started = threading.Event()
        self._failure: OSError | None = None
        self._processes: list[subprocess.Popen[str]] = []
        self._adapters: list[LeadEnd] = []
        self._thread = threading.Thread(target=self._main, name="chairlift-ranks", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def process_ids(self) -> list[int]:
        """Return the id of each process."""
        return [process.pid for process in self._processes]

    @property
    def adapters(self) -> list[LeadEnd]:
        """Return the socket of each process, about adapters."""
        return self._adapters

    def wait_until_ready(self, timeout_s: float = START_S) -> None:
        """Wait until every rank has its weights.

        Raises:
            ModelError: One cannot be started, has ended, or takes too long.
        """
        if self._failure is not None:
            message = f"tensor_parallel: no process can be started: {self._failure.strerror}"
            raise ModelError(message)
        deadline = time.monotonic() + timeout_s
        for rank, process in enumerate(self._processes, start=1):
            line = _read_line(process, deadline)
            if line != READY:
                message = f"rank {rank}: {line or 'its process ended while it was loading'}"
                raise ModelError(message)

    @property
    def is_owner(self) -> bool:
        """Whether this process started them; a fork of it did not."""
        return os.getpid() == self._owner

    def close(self) -> None:
        """End the processes, by force where they take too long; the group has ended."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _main(self) -> None:
        try:
            for rank, settings in enumerate(self._settings, start=1):
                this_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._adapters.append(LeadEnd(rank, this_end))
                with other_end:
                    self._processes.append(self._start(settings, other_end.fileno()))
        except OSError as error:
            self._failure = error
        finally:
            self._started.set()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            handles = [os.pidfd_open(process.pid) for process in self._processes]
            for rank, handle in enumerate(handles, start=1):
                selector.register(handle, selectors.EVENT_READ, rank)
            while not self._closing.is_set():
                for key, _ in selector.select():
                    if key.data is not None:
                        selector.unregister(key.fileobj)
                        self._report(key.data)
        for handle in handles:
            os.close(handle)
        for process in self._processes:
            _end(process)
        for end in self._adapters:
            end.close()

    def _report(self, rank: int) -> None:
        code = self._processes[rank - 1].wait()
        if not self._closing.is_set():
            _log.error("the process of a rank ended", extra=fields(rank=rank, exit_code=code))
            self._on_death(rank)

    def _start(self, settings: dict[str, Any], adapters: int) -> "subprocess.Popen[str]":
        settings = {**settings, "adapters": adapters}
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _MAIN, self._module],
            pass_fds=[self._descriptor, adapters],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None, "a pipe"
        lines = json.dumps([*map(str, sys.path)]), json.dumps(settings)
        with suppress(BrokenPipeError):
            # Less than a pipe holds.
            process.stdin.write("".join(f"{line}\n" for line in lines))
            process.stdin.close()
        return process


def _read_line(process: "subprocess.Popen[str]", deadline: float) -> str:
    """Return what a rank says; empty where it ends, or says nothing in time."""
    assert process.stdout is not None, "a pipe"
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            return "it does not load in time"
    return process.stdout.readline().strip()


def _end(process: "subprocess.Popen[str]") -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
