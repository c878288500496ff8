"""A client that speaks HTTP/2 frame by frame, and does with them as it likes."""

import asyncio
import struct
from contextlib import asynccontextmanager

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_HEADERS, END_STREAM, ACK = 4, 1, 1
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5

GENERATE = "/chairlift.v1.GenerationService/Generate"
GENERATE_ONE = "/chairlift.v1.GenerationService/GenerateOne"
WATCH_STEPS = "/chairlift.v1.ServerService/WatchSteps"


def frame(kind, flags, stream, payload=b""):
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def message(payload, *, length=None):
    """A message of gRPC, or the beginning of a longer one."""
    return struct.pack(">BI", 0, len(payload) if length is None else length) + payload


def _field(name, value):
    """A header as a literal that is not indexed, without Huffman's code."""
    parts = [name.encode(), value if isinstance(value, bytes) else value.encode()]
    return b"\0" + b"".join(bytes([len(part)]) + part for part in parts)


def _headers(path):
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(_field(name, value) for name, value in fields.items())


def preface():
    """What a client sends first."""
    return PREFACE + frame(SETTINGS, 0, 0)


def call(path, *, stream=1):
    """A whole call without a message; its path may be any bytes."""
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, _headers(path))


class RawClient:
    """A connection: it keeps to the server's windows and reads what comes.

    Attributes:
        ended: Streams that the server has ended, with their last headers as they came.
        is_gone: Whether the server has closed the connection.
    """

    def __init__(self, reader, writer, settings=b""):
        self.ended = {}
        self.is_gone = False
        self._reader, self._writer = reader, writer
        self._windows = {}
        self._window = self._initial = 65_535
        self._max_frame = 16_384
        self._num_streams = 0
        self._changed = asyncio.Condition()
        writer.write(PREFACE + frame(SETTINGS, 0, 0, settings))
        self._task = asyncio.create_task(self._read())

    def begin(self, path):
        """Open a call; return its stream."""
        stream = 2 * self._num_streams + 1
        self._num_streams += 1
        self._windows[stream] = self._initial
        self._writer.write(frame(HEADERS, END_HEADERS, stream, _headers(path)))
        return stream

    def reset(self, stream):
        """End a call at once."""
        self._writer.write(frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))

    def half_close(self, stream):
        """Say that no message follows."""
        self._writer.write(frame(DATA, END_STREAM, stream))

    async def send(self, stream, data):
        """Send what the windows allow; return how much it was when the call ended."""
        sent = 0
        while sent < len(data) and stream not in self.ended and not self.is_gone:
            room = min(self._window, self._windows[stream], self._max_frame, len(data) - sent)
            if room <= 0:
                async with self._changed:
                    await self._changed.wait()
                continue
            self._writer.write(frame(DATA, 0, stream, data[sent : sent + room]))
            sent += room
            self._window -= room
            self._windows[stream] -= room
            try:
                await self._writer.drain()
            except ConnectionError:
                break
        return sent

    async def until(self, condition):
        """Wait until what the server does makes the condition true."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def close(self):
        """Drop the connection without a word."""
        self._task.cancel()
        self._writer.transport.abort()

    async def _read(self):
        try:
            while True:
                head = await self._reader.readexactly(9)
                body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), body)
                async with self._changed:
                    self._changed.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.is_gone = True
            async with self._changed:
                self._changed.notify_all()

    def _take(self, kind, flags, stream, body):
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", body):
                if name == INITIAL_WINDOW_SIZE:
                    for other in self._windows:
                        self._windows[other] += value - self._initial
                    self._initial = value
                elif name == MAX_FRAME_SIZE:
                    self._max_frame = value
            self._writer.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._writer.write(frame(PING, ACK, 0, body))
        elif kind == WINDOW_UPDATE and stream:
            self._windows[stream] += int.from_bytes(body, "big")
        elif kind == WINDOW_UPDATE:
            self._window += int.from_bytes(body, "big")
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self.ended.setdefault(stream, body)


@asynccontextmanager
async def raw_client(address, *, settings=b"", tls=None):
    """A connection of its own."""
    host, _, port = address.rpartition(":")
    client = RawClient(*await asyncio.open_connection(host, int(port), ssl=tls), settings)
    try:
        yield client
    finally:
        await client.close()
