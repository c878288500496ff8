"""A TCP proxy that can go dark: connections stay open and nothing passes any more."""

import asyncio
from contextlib import asynccontextmanager


class BlackHole:
    """Between clients and a server on this machine."""

    def __init__(self, target):
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._is_open = True
        self._tasks = set()
        self._writers = []

    @classmethod
    @asynccontextmanager
    async def before(cls, target):
        """A proxy before the server that listens there."""
        self = cls(target)
        listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            listener.close()
            for task in tuple(self._tasks):
                task.cancel()
            for writer in self._writers:
                writer.close()

    def go_dark(self):
        """What comes from now on is dropped; the system below still acknowledges it."""
        self._is_open = False

    async def _connect(self, reader, writer):
        back, forth = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, forth]
        for pair in ((reader, forth), (back, writer)):
            task = asyncio.create_task(self._pass_on(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader, writer):
        while data := await reader.read(65_536):
            if self._is_open:
                writer.write(data)
                await writer.drain()
        if self._is_open:
            writer.close()
