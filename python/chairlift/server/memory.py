"""Watches the process's memory while messages come: what they took is given back to the system.

The count of calls that wait for a message bounds their bytes, but not what gRPC keeps with them:
24 bytes can hold a whole buffer of what was read. So where memory grows fast, calls that may have
caused it end. And glibc keeps what was freed beside what was not, in hundreds of fragments of its
arenas: 1.3 GB after an attack, until it is told to return them.
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

from chairlift.logs import fields
from chairlift.server.receiving import Receiving

_log = logging.getLogger(__name__)

_EVERY_S: Final = 0.1
_NUM_SAMPLES: Final = 300
"""Half a minute, three times as long as a single message may take."""
_GROWTH_BYTES: Final = 192 * 2**20
"""Within that time; more, and calls that may hold unfinished messages end."""
_CHURN_BYTES: Final = 16 * 2**20
"""Messages of so many bytes have come and gone before it is worth returning memory."""
_TRIM_EVERY_S: Final = 2.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


async def watch_memory(receiving: Receiving) -> None:
    """Runs beside the server; gives up where the system does not say what is resident."""
    resident: deque[int] = deque(maxlen=_NUM_SAMPLES)
    churn, trimmed_at = 0, time.monotonic()
    with suppress(OSError):
        while True:
            resident.append(resident_bytes())
            grown = resident[-1] - min(resident)
            num_ended = receiving.relieve() if grown > _GROWTH_BYTES else 0
            if num_ended:
                _log.warning(
                    "memory grew: calls without a complete message end",
                    extra=fields(num_calls=num_ended, grown_bytes=grown),
                )
            await asyncio.sleep(_EVERY_S)
            is_due = time.monotonic() > trimmed_at + _TRIM_EVERY_S
            if num_ended or (is_due and receiving.churn_bytes > churn + _CHURN_BYTES):
                churn, trimmed_at = receiving.churn_bytes, time.monotonic()
                await asyncio.to_thread(return_free_memory)


def resident_bytes() -> int:
    """Memory of this process that is not swapped out."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def return_free_memory() -> None:
    """Lets glibc return the pages that it keeps free; others have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
