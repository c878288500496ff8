"""Publishes a stream over ZeroMQ in vLLM's form, with a socket that repeats what was published.

    PUB     topic, number (8 bytes, big-endian), payload
    ROUTER  request: number of the first batch; answers: number, payload; the end: number -1

Each socket has a thread of its own, and peers reach both through a `PeerFilter`. The publishing
socket drops what a subscriber does not read: the subscriber finds a gap in the numbers, and asks
for what is missing. What is gone from the stream is answered, and published, as a batch that clears
and stores all there is.
"""

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Final

import zmq

from chairlift.api.errors import ChairliftError, ConfigError
from chairlift.api.logs import fields
from chairlift.server.kv_events.address import ZmqEndpoint
from chairlift.server.kv_events.events import Batch
from chairlift.server.kv_events.kv_events import KvEvents
from chairlift.server.kv_events.peer_filter import MAX_FRAME_BYTES, MAX_SUBSCRIPTIONS, PeerFilter
from chairlift.server.kv_events.stream import MAX_BATCHES, EventStream
from chairlift.server.kv_events.wire import frames

_log = logging.getLogger(__name__)

_MAX_UNREAD: Final = 1_000
"""Messages that wait for a subscriber, before further ones are dropped for it."""
_MAX_REQUESTS: Final = 16
"""Messages of one peer that wait here; further ones wait with the peer."""
_BEAT_S: Final = 0.25
"""How often a thread looks whether it should end."""
_JOIN_S: Final = 2.0
_END: Final = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """The sockets of one tenant."""

    def __init__(
        self, events: KvEvents, stream: EventStream, endpoint: ZmqEndpoint, block_size: int
    ) -> None:
        """Bind the sockets.

        Args:
            events: Has the stream, and snapshots of it.
            stream: What is published.
            endpoint: Where, and how.
            block_size: Tokens of a block.

        Raises:
            ConfigError: An address cannot be used.
        """
        self._events, self._stream, self._endpoint = events, stream, endpoint
        self._block_size = block_size
        self._closing = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._threads: list[threading.Thread] = []
        self._folder = Path(tempfile.mkdtemp(prefix="lift-"))
        self._filter = PeerFilter()
        try:
            pub = self._bound(zmq.PUB, _MAX_UNREAD)
            self._start("chairlift-kv-events", pub, self._publish)
            self.address = self._filter.listen(
                endpoint.address, self._inner(zmq.PUB), max_messages=MAX_SUBSCRIPTIONS
            )
            if endpoint.replay is not None:
                replay = self._bound(zmq.ROUTER, MAX_BATCHES + _MAX_UNREAD)
                self._start("chairlift-kv-replay", replay, self._replay)
                self._filter.listen(endpoint.replay, self._inner(zmq.ROUTER), max_messages=None)
        except ConfigError:
            self.close()
            raise

    def close(self) -> None:
        """End the threads and close the sockets; what was not sent is dropped."""
        self._closing.set()
        self._filter.close()
        for thread in self._threads:
            thread.join(_JOIN_S)
        # A thread that waits for the engine closes its socket later.
        if not any(thread.is_alive() for thread in self._threads):
            self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _inner(self, kind: int) -> Path:
        return self._folder / str(kind)

    def _bound(self, kind: int, max_unread: int) -> "zmq.Socket[bytes]":
        """Bind a socket in the private folder."""
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, max_unread)
        socket.setsockopt(zmq.RCVHWM, _MAX_REQUESTS)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        try:
            socket.bind(f"ipc://{self._inner(kind)}")
        except zmq.ZMQError as error:
            reason = (error.strerror or "unknown error").lower()
            message = f"kv_events: cannot use the folder of temporary files: {reason}"
            raise ConfigError(message) from None
        return socket

    def _start(
        self,
        name: str,
        socket: "zmq.Socket[bytes]",
        work: Callable[["zmq.Socket[bytes]"], None],
    ) -> None:
        def run() -> None:
            try:
                work(socket)
            except zmq.ZMQError as error:
                _log.error("%s ends: %s", name, error)
            finally:
                socket.close(linger=0)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _publish(self, socket: "zmq.Socket[bytes]") -> None:
        topic, number = self._endpoint.topic.encode(), self._stream.number - 1
        while not self._closing.is_set():
            for batch in self._behind(number):
                socket.send_multipart((topic, *self._frames(batch)))
                number = batch.number
            self._stream.wait(number, _BEAT_S)

    def _replay(self, socket: "zmq.Socket[bytes]") -> None:
        while not self._closing.is_set():
            if not socket.poll(int(_BEAT_S * 1000)):
                continue
            # A REQ or DEALER socket puts an empty frame before its message, or none.
            client, *delimiter, request = socket.recv_multipart()
            if len(request) != 8 or delimiter not in ([], [b""]):
                continue
            number = int.from_bytes(request, "big") - 1
            while not self._closing.is_set() and (batches := self._behind(number)):
                for batch in batches:
                    socket.send_multipart((client, *delimiter, *self._frames(batch)))
                    number = batch.number
            socket.send_multipart((client, *delimiter, _END, b""))

    def _behind(self, number: int) -> list[Batch]:
        """Return the batches behind a number, or a snapshot where the next one is gone."""
        batches = self._stream.since(number)
        if batches is not None:
            return batches
        try:
            snapshot = self._events.snapshot(self._stream)
        except (TimeoutError, CancelledError, ChairliftError):
            # The engine starts again, and clears; or the server ends.
            return []
        _log.info("KV events begin again", extra=fields(behind=number, number=snapshot.number))
        return [snapshot]

    def _frames(self, batch: Batch) -> tuple[bytes, bytes]:
        return frames(batch, self._endpoint.form, self._block_size)
