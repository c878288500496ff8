"""The events of a stream of the page, as a browser reads them."""

import json
from contextlib import asynccontextmanager


def decoded(data):
    """(name, value) of whole events; comments are left out."""
    found = []
    for block in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


class Events:
    """The events of one open response, as they come."""

    def __init__(self, raw, response):
        self._raw = raw
        self._data = b""
        self.status = response.status
        self.headers = response.headers

    def __aiter__(self):
        return self

    async def __anext__(self):
        while True:
            block, end, rest = self._data.partition(b"\n\n")
            if end:
                self._data = rest
                if events := decoded(block):
                    return events[0]
                continue
            chunk = await self._raw.chunk()
            if not chunk:
                raise StopAsyncIteration
            self._data += chunk

    async def until(self, name, where=lambda value: True):
        """The value of the next event of a name."""
        async for found, value in self:
            if found == name and where(value):
                return value
        raise AssertionError(name)


@asynccontextmanager
async def opened(raw, method, path, body=None, **headers):
    """An open stream."""
    async with raw:
        if body is None:
            await raw.request(method, path, **headers)
        else:
            await raw.post(path, body, **headers)
        yield Events(raw, await raw.head())
