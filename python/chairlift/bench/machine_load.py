"""Work of other processes beside a measurement."""

import os
import time
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
# user, nice, system, irq, softirq, steal: idle and waiting for disks are no work, and the time of
# guests is in that of the user.
_BUSY: Final = (0, 1, 2, 5, 6, 7)


class OtherWork:
    """Counts the processor time that this process did not get, from its construction on.

    The load average is an average of the last minute and holds this process's own threads; this is
    exact for the time of a run: what other processes used of the cores that this one may use, and
    what the hypervisor gave to other machines.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy = _busy_s()
        self._process = _process_s()

    def cores(self) -> float | None:
        """Return the cores that others used on average; None where the system does not say."""
        busy, elapsed = _busy_s(), time.monotonic() - self._started
        if busy is None or self._busy is None or elapsed <= 0:
            return None
        return max(0.0, busy - self._busy - (_process_s() - self._process)) / elapsed


def _busy_s() -> float | None:
    """Return the seconds that the cores of this process have worked since the system's start."""
    try:
        lines = _STAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in lines:
        name, *counts = line.split()
        if name in cores:
            ticks += sum(int(counts[place]) for place in _BUSY if place < len(counts))
    return ticks / os.sysconf("SC_CLK_TCK")


def _process_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
