"""Chairlift's ordinary server in a child process, which dies with its parent."""

import asyncio
import json
import os
import re
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from chairlift.api.errors import ChairliftError
from chairlift.cli.config_sources import option_name
from chairlift.cli.supervisor import SOCKET_VARIABLE

_GRPC: Final = re.compile(r"serving on (\S+) after")
_HTTP: Final = re.compile(r"OpenAI API on (\S+)/v1")
_NUM_LINES: Final = 20
"""Lines of its output that an error shows."""


class ServerProcess:
    """A server that runs.

    Attributes:
        address: The address of its gRPC port.
        http_url: The URL of its HTTP port, without a path.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, parent: socket.socket, folder: Any
    ) -> None:
        self.address = self.http_url = ""
        self._process = process
        # The child watches the other end: it dies when this one is closed.
        self._parent = parent
        self._folder = folder
        self._lines: deque[str] = deque(maxlen=_NUM_LINES)
        self._serving = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, model: str, settings: Mapping[str, Any], *, host: str = "127.0.0.1"
    ) -> "ServerProcess":
        """Start a server on ports that the system chooses; return when it serves.

        Args:
            model: The model, as `chairlift serve` takes it.
            settings: Options of `chairlift serve` by their names in Python, such as
                `max_num_seqs`.
            host: The address to listen on.

        Raises:
            ChairliftError: The server ended; the message has its last lines.
        """
        folder = tempfile.TemporaryDirectory(prefix="chairlift-")
        listen = f"[{host}]:0" if ":" in host else f"{host}:0"
        options = {"listen": listen, "http_listen": listen, **settings}
        config = Path(folder.name) / "chairlift.toml"
        config.write_text("".join(map(_toml_line, options.items())), encoding="utf-8")
        ours, theirs = socket.socketpair()
        # Variables of the machine's own server do not apply.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CHAIRLIFT_")}
        environment |= {SOCKET_VARIABLE: str(theirs.fileno()), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "chairlift", "serve", model, "--config", str(config)]
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                pass_fds=(theirs.fileno(),),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # A signal to the group of the parent reaches the parent alone, which drains it.
                start_new_session=True,
            )
        server = cls(process, ours, folder)
        try:
            await server._until_serving()
        except BaseException:
            await server.stop(0)
            raise
        return server

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the process lives."""
        return self._process.returncode is None

    async def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # A line of more than 64 KiB.
            async for line in self._process.stdout:
                text = line.decode(errors="replace").rstrip()
                self._lines.append(text)
                if (found := _GRPC.search(text)) is not None:
                    self.address = found[1]
                if (found := _HTTP.search(text)) is not None:
                    self.http_url = found[1]
                if self.address and self.http_url:
                    self._serving.set()

    async def _until_serving(self) -> None:
        serving = asyncio.create_task(self._serving.wait())
        # The server itself bounds the time of its start (load_timeout_s).
        await asyncio.wait((serving, self._reading), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            serving.cancel()
            message = "\n".join(["the server did not start:", *self._lines])
            raise ChairliftError(message)

    async def stop(self, grace_s: float) -> None:
        """Let the server drain, then end it.

        Args:
            grace_s: Time until it is killed, more than its `drain_grace_s`.
        """
        if self.is_running:
            with suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), grace_s)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        self._parent.close()
        await self._reading
        self._folder.cleanup()


def _toml_line(setting: tuple[str, Any]) -> str:
    # Texts, numbers, switches and lists of JSON are those of TOML.
    name, value = setting
    return f"{option_name(name)} = {json.dumps(value)}\n"
