"""HTTP by hand: what no client library sends, and what comes back byte by byte."""

import asyncio
import json
from dataclasses import dataclass, field


@dataclass
class Response:
    """A response, whole or as far as it came."""

    status: int
    headers: dict = field(default_factory=dict)
    body: bytes = b""

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        assert self.headers["content-type"] == "application/json"
        assert "Traceback" not in self.body.decode()
        error = self.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error


class Raw:
    """One connection."""

    def __init__(self, port, *, read_bytes=None):
        self._port = port
        self._limit = read_bytes or 2**20

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=self._limit
        )
        return self

    async def __aexit__(self, *_error):
        self.writer.close()

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def request(self, method, path, body=b"", **headers):
        headers = {"host": "localhost", **headers}
        if body:
            headers["content-length"] = str(len(body))
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
        await self.send(head.encode() + body)

    async def post(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.request("POST", path, data, **{"content_type": "application/json", **headers})

    async def head(self):
        """The status and the headers of the next response."""
        line = await self.reader.readline()
        response = Response(int(line.split()[1]))
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            response.headers[name.lower()] = value.strip()
        return response

    async def chunk(self):
        """The next chunk of a body; empty at its end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def response(self):
        """The next response to its end."""
        response = await self.head()
        if "content-length" in response.headers:
            response.body = await self.reader.readexactly(int(response.headers["content-length"]))
        elif response.headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                response.body += chunk
        else:
            response.body = await self.reader.read()
        return response

    async def at_end(self):
        """Whether the server closes the connection."""
        return await self.reader.read(1) == b""
