"""Whether the blocks of a call go through shared memory, on either side; else messages carry them.

It is an optimisation: what does not work is noted once, and changes no answer.
"""

import logging
import threading
import time
from typing import Final

from chairlift.api.logs import fields
from chairlift.server.transfer.shared_memory import PeerSegment, Segment, host_id
from chairlift.v1 import transfer_pb2 as pb

_log = logging.getLogger(__name__)

MAX_OPEN: Final = 32
"""Segments of callers that are open at once: with 8 MiB each, as many bytes as exports may hold."""
_BACK_OFF_S: Final = 60.0
"""A server that did not use a segment is given none for this long."""


class Sharing:
    """What goes through shared memory in one server.

    Attributes:
        num_blocks: Blocks that came or went through it.
    """

    def __init__(self) -> None:
        self.num_blocks = 0
        self._lock = threading.Lock()
        self._has_failed = False

    def count(self, num_blocks: int) -> None:
        """Count blocks; any thread may call this."""
        with self._lock:
            self.num_blocks += num_blocks

    def note(self, error: Exception) -> None:
        """Log the first failure."""
        with self._lock:
            is_first, self._has_failed = not self._has_failed, True
        if is_first:
            note = fields(error=str(error))
            _log.info("blocks go through messages, not through shared memory", extra=note)


class Lending(Sharing):
    """The segments of a decode server."""

    def __init__(self) -> None:
        super().__init__()
        self._open_from: dict[str, float] = {}

    def new_segment(self, address: str, block_bytes: int, num_blocks: int) -> Segment | None:
        """Return memory for a call to a server of this machine; None if messages carry its blocks.

        Args:
            address: The server's.
            block_bytes: Bytes of a block.
            num_blocks: Blocks of the call.
        """
        if time.monotonic() < self._open_from.get(address, 0.0):
            return None
        try:
            return Segment(block_bytes, num_blocks)
        except OSError as error:
            self.note(error)
            return None

    def was_refused(self, address: str) -> None:
        """Lend a server nothing for a while: it may be in another container."""
        self._open_from[address] = time.monotonic() + _BACK_OFF_S


class Borrowing(Sharing):
    """The segments of callers that a prefill server writes to; belongs to the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.num_open = 0

    def open(self, request: pb.PrefillRequest, block_bytes: int) -> PeerSegment | None:
        """Return the segment that a request names; None if messages carry its blocks.

        Args:
            request: The request.
            block_bytes: Bytes of a block of this server.
        """
        if not request.HasField("shared_memory"):
            return None
        host = request.shared_memory.host
        if not host or host != host_id() or self.num_open >= MAX_OPEN:
            return None
        try:
            segment = PeerSegment.open(request.shared_memory, block_bytes)
        except (OSError, ValueError) as error:
            self.note(error)
            return None
        self.num_open += 1
        return segment

    def close(self, segment: PeerSegment | None) -> None:
        """Close a segment of `open` that is open."""
        if segment is not None:
            self.num_open -= 1
            segment.close()
