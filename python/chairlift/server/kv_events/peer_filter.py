"""Bounds what peers may send to the ZeroMQ sockets: few small messages, each of few parts.

    peer --TCP or Unix--> PeerFilter --Unix, in a private folder--> libzmq

libzmq keeps the parts of a message until the last one has come, and every topic of a subscriber,
both without a bound. So each connection passes through here, on a thread of its own: bytes to the
peer unchanged, and those from it frame by frame. A connection that breaks a bound is closed.

ZMTP 3 is a greeting of 64 bytes in both directions, and then frames: flags, size, body.
"""

import asyncio
import logging
import socket
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chairlift.api.errors import ConfigError
from chairlift.api.logs import fields
from chairlift.server.rpc.listen import TcpAddress, UnixAddress

_log = logging.getLogger(__name__)

MAX_PEERS: Final = 32
"""Connections to one socket; a further one is closed."""
MAX_FRAME_BYTES: Final = 512
"""A replay request has 8, a subscription as many as its topic, and a handshake a name of 255."""
MAX_PARTS: Final = 4
"""A replay request has one or two."""
MAX_SUBSCRIPTIONS: Final = 256
"""Messages of one subscriber while it is connected; each may be another topic."""

_GREETING_BYTES: Final = 64
_SIGNATURE_BYTES: Final = 10
_MORE, _LONG, _COMMAND = 1, 2, 4
_BEATS: Final = (b"\4PING", b"\4PONG")
_COPY_BYTES: Final = 2**16
_END_S: Final = 2.0


class _BoundError(Exception):
    """A peer sent what no consumer sends."""


@dataclass(slots=True)
class _Listening:
    """One listening socket.

    Attributes:
        inner: The path of libzmq's socket.
        max_messages: Most messages of one connection; None: any number, taken one by one.
        num_peers: Connections now.
    """

    inner: Path
    max_messages: int | None
    num_peers: int = 0


class PeerFilter:
    """Listens in the place of ZeroMQ sockets."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="chairlift-kv-peers", daemon=True
        )
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []
        self._peers: set[asyncio.Task[None]] = set()
        self._thread.start()

    def listen(
        self, address: TcpAddress | UnixAddress, inner: Path, *, max_messages: int | None
    ) -> str:
        """Listen at an address for a socket of libzmq.

        Args:
            address: Where peers connect.
            inner: Where libzmq listens.
            max_messages: Most messages of one connection; None: any number.

        Returns:
            The address in ZeroMQ's form, with the port that the system chose.

        Raises:
            ConfigError: The address cannot be used.
        """
        listener = _listener(address)
        if isinstance(address, UnixAddress):
            self._paths.append(address.path)
            where = f"ipc://{address.path}"
        else:
            where = f"tcp://{TcpAddress(address.host, listener.getsockname()[1])}"
        serving = self._serve(listener, _Listening(inner, max_messages))
        asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        return where

    def close(self) -> None:
        """Close all connections, and end the thread."""
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        with suppress(TimeoutError):
            ending.result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        if not self._thread.is_alive():
            self._loop.close()
        for path in self._paths:
            path.unlink(missing_ok=True)

    async def _serve(self, listener: socket.socket, at: _Listening) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._peers.add(task)
            try:
                await _pass_on(reader, writer, at)
            finally:
                self._peers.discard(task)

        if listener.family == socket.AF_UNIX:
            server = await asyncio.start_unix_server(accept, sock=listener)
        else:
            server = await asyncio.start_server(accept, sock=listener)
        self._servers.append(server)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in tuple(self._peers):
            task.cancel()
        await asyncio.gather(*self._peers, return_exceptions=True)


def _listener(address: TcpAddress | UnixAddress) -> socket.socket:
    """Bind a socket; that of a path is its owner's alone before anyone can connect.

    Raises:
        ConfigError: The address cannot be used.
    """
    family = socket.AF_UNIX if isinstance(address, UnixAddress) else address.family
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if isinstance(address, UnixAddress):
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK(address.path.lstat().st_mode):
                    address.path.unlink()
            listener.bind(str(address.path))
            address.path.chmod(0o600)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit it; asyncio sets it only for sockets that name their protocol.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.bind((address.host, address.port))
        listener.listen(MAX_PEERS)
    except OSError as error:
        listener.close()
        reason = (error.strerror or "unknown error").lower()
        message = f"kv_events: cannot listen on {address}: {reason}"
        raise ConfigError(message) from None
    return listener


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, at: _Listening
) -> None:
    """Connect a peer with libzmq, until one of them ends the connection or the peer is cut off."""
    writers = [writer]
    is_full = at.num_peers >= MAX_PEERS
    at.num_peers += 1
    try:
        if is_full:
            return
        inner_reader, inner_writer = await asyncio.open_unix_connection(str(at.inner))
        writers.append(inner_writer)
        async with asyncio.TaskGroup() as both:
            outward = both.create_task(_copy(inner_reader, writer))
            inward = both.create_task(_filter(reader, inner_writer, at.max_messages))
            outward.add_done_callback(lambda _: inward.cancel())
            inward.add_done_callback(lambda _: outward.cancel())
    except* OSError:
        pass
    except* _BoundError as error:
        reason = str(error.exceptions[0])
        _log.debug("a peer of the KV events is cut off", extra=fields(reason=reason))
    finally:
        at.num_peers -= 1
        for one in writers:
            one.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_COPY_BYTES):
        writer.write(data)
        await writer.drain()


async def _filter(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_messages: int | None
) -> None:
    """Pass a peer's frames on.

    Raises:
        _BoundError: One is too long, a message has too many parts, or there are too many messages.
    """
    with suppress(asyncio.IncompleteReadError):
        await _greeting(reader, writer)
        num_parts = num_messages = 0
        while True:
            flags, size, head = await _head(reader)
            body = await reader.readexactly(size)
            if not (flags & _COMMAND and body.startswith(_BEATS)):
                num_parts += 1
                num_messages += not flags & _MORE
            if num_parts > MAX_PARTS:
                raise _BoundError(f"a message of more than {MAX_PARTS} parts")
            if max_messages is not None and num_messages > max_messages:
                raise _BoundError(f"more than {max_messages} messages")
            if not flags & _MORE:
                num_parts = 0
            writer.write(head + body)
            await writer.drain()


async def _greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass the greeting on as it comes: each side waits for parts of the other's."""
    greeting = b""
    while len(greeting) < _GREETING_BYTES:
        part = await reader.read(_GREETING_BYTES - len(greeting))
        if not part:
            raise asyncio.IncompleteReadError(greeting, _GREETING_BYTES)
        greeting += part
        signature, version = greeting[:_SIGNATURE_BYTES], greeting[_SIGNATURE_BYTES:][:1]
        is_whole = len(signature) == _SIGNATURE_BYTES
        if signature[0] != 0xFF or (is_whole and not signature[-1] & 1) or version == b"\0":
            raise _BoundError("no greeting of ZMTP 3")
        # Versions 1 and 2 have other frames after ten bytes and these.
        if version and version[0] < 3:
            raise _BoundError("a version of ZMTP before 3")
        writer.write(part)
        await writer.drain()


async def _head(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Read flags and size of a frame; return them, and their bytes."""
    head = await reader.readexactly(2)
    flags = head[0]
    if flags & _LONG:
        head += await reader.readexactly(7)
    size = int.from_bytes(head[1:], "big")
    if size > MAX_FRAME_BYTES:
        raise _BoundError(f"a frame of {size} bytes")
    return flags, size, head
