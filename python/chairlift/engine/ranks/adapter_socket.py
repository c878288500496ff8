"""What is said of adapters between rank 0 and another rank, over a socket of packets.

Rank 0 sends the descriptors of an adapter's files, and the rank answers when it has read them. Each
adapter has a number, by which a later message puts it into a slot.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from chairlift.api.errors import ChairliftError, ModelError
from chairlift.model.lora.folder import OpenAdapter
from chairlift.model.lora.load import PackedAdapter

LOAD_S: Final = 120.0
"""How long a rank may take to read an adapter."""
_SEND_S: Final = 10.0
_PACKET_BYTES: Final = 32 * 1024
_MAX_FILES: Final = 4
_MAX_ERROR: Final = 4000


class Load(NamedTuple):
    """An adapter to be read."""

    number: int
    files: OpenAdapter
    max_rank: int
    """The server's limit."""


class LeadEnd:
    """The end of rank 0."""

    def __init__(self, rank: int, end: socket.socket) -> None:
        self._rank = rank
        self._end = end

    def begin(self, load: Load) -> None:
        """Have the rank read an adapter.

        Raises:
            ModelError: The rank has ended, or reads nothing.
        """
        descriptors = load.files.descriptors
        packet = {
            "number": load.number,
            "path": str(load.files.path),
            "max_rank": load.max_rank,
            "names": [*descriptors],
        }
        self._end.settimeout(_SEND_S)
        try:
            data = json.dumps(packet).encode()
            socket.send_fds(self._end, [data], [*descriptors.values()])
        except OSError as error:
            message = f"rank {self._rank}: cannot be told of an adapter: {error.strerror}"
            raise ModelError(message) from None

    def wait(self, number: int, deadline: float) -> None:
        """Wait until the rank has read an adapter.

        Args:
            number: Which one.
            deadline: By `time.monotonic`.

        Raises:
            ModelError: It cannot be read, it takes too long, or the rank has ended.
        """
        answer: dict[str, Any] = {}
        # One that took too long may answer before.
        while answer.get("number") != number:
            self._end.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._end.recv(_PACKET_BYTES)
            except OSError:
                data = b""
            if not data:
                message = f"rank {self._rank}: it ended, or did not read the adapter in time"
                raise ModelError(message)
            answer = json.loads(data)
        if answer["error"]:
            raise ModelError(answer["error"])

    def forget(self, number: int) -> None:
        """Have the rank drop an adapter that is in no slot; this never waits."""
        with suppress(OSError):
            self._end.send(json.dumps({"forget": number}).encode(), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close the socket."""
        self._end.close()


class ReadAdapters:
    """The adapters that a rank has read, and that are in no slot yet."""

    def __init__(self, end: socket.socket, load: Callable[[Load], PackedAdapter]) -> None:
        """Start the thread that reads them.

        Args:
            end: The end of the rank.
            load: Reads one; see `load_adapter`.
        """
        self._end = end
        self._load = load
        self._read: dict[int, PackedAdapter] = {}
        threading.Thread(target=self._main, name="chairlift-adapters", daemon=True).start()

    def take(self, number: int) -> PackedAdapter:
        """Return one that was read, and forget it."""
        return self._read.pop(number)

    def _main(self) -> None:
        # Where the thread fails, rank 0 sees the end of the socket, and does not wait in vain.
        with self._end:
            self._serve()

    def _serve(self) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._end, _PACKET_BYTES, _MAX_FILES)
            if not data:
                return
            packet = json.loads(data)
            if "forget" in packet:
                self._read.pop(packet["forget"], None)
                continue
            files = dict(zip(packet["names"], descriptors, strict=True))
            error = self._try(packet, files)
            answer = {"number": packet["number"], "error": error[:_MAX_ERROR]}
            with suppress(OSError):
                self._end.send(json.dumps(answer).encode())

    def _try(self, packet: Mapping[str, Any], files: Mapping[str, int]) -> str:
        """Read an adapter; return what is wrong, or nothing."""
        number, max_rank = packet["number"], packet["max_rank"]
        try:
            opened = OpenAdapter(Path(packet["path"]), files)
            self._read[number] = self._load(Load(number, opened, max_rank))
        except (ChairliftError, MemoryError, OSError) as error:
            return " ".join(str(error).split()) or type(error).__name__
        return ""
