"""Counts of the last minute, in bounded memory."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

Key = TypeVar("Key")

_SLOT_S: Final = 10.0
_NUM_SLOTS: Final = 6
_RATIO: Final = 1.1
_SHORTEST_S: Final = 1e-5
_LONGEST_S: Final = 3600.0


class Recent(Generic[Key]):
    """Counts by key, in slots of ten seconds; a count is forgotten after 50 to 60 seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start empty.

        Args:
            clock: Returns seconds.
        """
        self._clock = clock
        self._slots: deque[tuple[int, Counter[Key]]] = deque(maxlen=_NUM_SLOTS)

    def add(self, key: Key, count: int = 1) -> None:
        """Count an event, or several."""
        number = int(self._clock() // _SLOT_S)
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, Counter()))
        self._slots[-1][1][key] += count

    def counts(self) -> Counter[Key]:
        """Return the counts of the last minute."""
        first = int(self._clock() // _SLOT_S) - _NUM_SLOTS + 1
        total: Counter[Key] = Counter()
        for number, counts in self._slots:
            if number >= first:
                total += counts
        return total


def size_class(seconds: float) -> int:
    """Return the class of a duration; durations of one class differ by at most a tenth."""
    bounded = min(max(seconds, _SHORTEST_S), _LONGEST_S)
    return math.floor(math.log(bounded, _RATIO))


def percentile(counts: Mapping[int, int], percent: float) -> float:
    """Return a percentile of durations that were counted by `size_class`, in seconds.

    Args:
        counts: At least one.
        percent: Above 0, at most 100.

    Raises:
        ValueError: There are no counts.
    """
    rank, seen = math.ceil(sum(counts.values()) * percent / 100), 0
    for number in sorted(counts):
        seen += counts[number]
        if seen >= rank:
            return float(_RATIO ** (number + 0.5))
    message = "expected at least one duration"
    raise ValueError(message)
