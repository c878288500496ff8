"""Long messages are decoded one at a time, with pauses in which tokens are computed and delivered.

Protobuf decodes a message of 1 MiB in up to 25 ms, with the interpreter's lock held. The engine
thread takes that lock several times in a step, so decodings without pauses would delay the tokens
of all streams by the time of several of them.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

SHORT_BYTES: Final = 32 * 2**10
"""A message up to this length is decoded at once, in less than a millisecond."""

PAUSE: Final = 3.0
"""Times the duration of a decoding that passes before the next: decodings get a quarter of the time
of the event loop. A message of few long fields takes a millisecond and delays others by three."""


class DecodingQueue:
    """The long messages of a server; for one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._resume_at = 0.0

    async def decode(self, decode: Callable[[bytes], Any], data: bytes) -> Any:
        """Decode a message in its turn; raises what `decode` raises."""
        if len(data) <= SHORT_BYTES:
            return decode(data)
        async with self._lock:
            await asyncio.sleep(self._resume_at - time.monotonic())
            began = time.monotonic()
            try:
                return decode(data)
            finally:
                now = time.monotonic()
                self._resume_at = now + PAUSE * (now - began)
