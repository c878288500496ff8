"""A TCP proxy that cuts connections: the peers get a reset, and what was in transit is lost."""

import asyncio
import socket
import struct
from contextlib import asynccontextmanager

_RESET = struct.pack("ii", 1, 0)
"""No lingering: `close` resets the connection."""


class Cutter:
    """Between clients and a server on this machine.

    Attributes:
        address: For clients.
        num_cuts: Connections that were cut.
    """

    def __init__(self, target):
        self._target = target
        self._pairs = set()
        self._tasks = set()
        self.num_cuts = 0

    @classmethod
    @asynccontextmanager
    async def before(cls, target):
        """A proxy before a server at HOST:PORT or unix:PATH."""
        self = cls(target)
        listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            listener.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def num_open(self):
        return len(self._pairs)

    def cut(self):
        """Reset every connection that is open."""
        for pair in list(self._pairs):
            self.num_cuts += 1
            for writer in pair:
                # Those of Unix sockets have no reset.
                if writer.get_extra_info("socket").family != socket.AF_UNIX:
                    plain = writer.get_extra_info("socket")
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
        self._pairs.clear()

    async def _connect(self, reader, writer):
        path = self._target.removeprefix("unix:")
        if path != self._target:
            back, forth = await asyncio.open_unix_connection(path)
        else:
            host, _, port = self._target.rpartition(":")
            back, forth = await asyncio.open_connection(host, int(port))
        pair = (writer, forth)
        self._pairs.add(pair)
        for source, sink in ((reader, forth), (back, writer)):
            task = asyncio.create_task(self._pass_on(source, sink, pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader, writer, pair):
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            self._pairs.discard(pair)
            writer.close()
