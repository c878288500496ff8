"""Watches the memory of the process, and returns what messages have freed to the system.

The number of calls that wait for a message bounds their bytes, but not what gRPC keeps with them:
24 bytes can pin a whole read buffer. So if memory grows fast, calls that may have caused it end.
glibc keeps freed memory in hundreds of fragments of its arenas: 1.3 GB after an attack, until
`malloc_trim` returns them.
"""

import asyncio
import ctypes
import logging
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from chairlift.api.logs import fields
from chairlift.server.limits.receiving import Receiving

_log = logging.getLogger(__name__)

_EVERY_S: Final = 0.1
_NUM_SAMPLES: Final = 300
"""Samples of half a minute: three times as long as a single message may take."""
_GROWTH_BYTES: Final = 192 * 2**20
"""Growth within that time; if it is larger, calls that may hold unfinished messages end."""
_TRIM_BYTES: Final = 16 * 2**20
"""Bytes of ended messages after which free memory is returned."""
_TRIM_EVERY_S: Final = 2.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


async def watch_memory(receiving: Receiving) -> None:
    """Watch the memory for as long as the server runs; return if the system has no `statm`."""
    resident: deque[int] = deque(maxlen=_NUM_SAMPLES)
    trimmed_bytes, trimmed_at = 0, time.monotonic()
    with suppress(OSError):
        while True:
            resident.append(resident_bytes())
            grown = resident[-1] - min(resident)
            num_ended = receiving.evict() if grown > _GROWTH_BYTES else 0
            if num_ended:
                _log.warning(
                    "memory grew: ending calls without a complete message",
                    extra=fields(num_calls=num_ended, grown_bytes=grown),
                )
            await asyncio.sleep(_EVERY_S)
            is_due = time.monotonic() > trimmed_at + _TRIM_EVERY_S
            if num_ended or (is_due and receiving.ended_bytes > trimmed_bytes + _TRIM_BYTES):
                trimmed_bytes, trimmed_at = receiving.ended_bytes, time.monotonic()
                await asyncio.to_thread(return_free_memory)


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def return_free_memory() -> None:
    """Make glibc return free pages; other C libraries have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
