"""Long messages are decoded one at a time, with other work of the event loop in between.

Protobuf decodes a message of 1 MiB in up to 25 ms, with the interpreter's lock held. Many that
arrive at once would delay the tokens of all streams by the sum of their times.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

SHORT_BYTES: Final = 32 * 2**10
"""A message up to this length is decoded at once, in less than a millisecond."""


class DecodingQueue:
    """The long messages of a server; for one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def decode(self, decode: Callable[[bytes], Any], data: bytes) -> Any:
        """Decode a message when it is its slot; raises what `decode` raises."""
        if len(data) <= SHORT_BYTES:
            return decode(data)
        async with self._lock:
            # Events of a step that has ended meanwhile are delivered first.
            await asyncio.sleep(0)
            return decode(data)
