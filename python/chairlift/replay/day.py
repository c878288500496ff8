"""A day's load: arrivals that are dense by day and sparse by night."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_HOURS: Final = (
    *(0.45, 0.35, 0.3, 0.3, 0.35, 0.5, 0.7, 0.95, 1.2, 1.4, 1.5, 1.5),
    *(1.45, 1.5, 1.55, 1.5, 1.4, 1.3, 1.2, 1.15, 1.1, 0.95, 0.8, 0.6),
)
"""Arrivals in each hour over those of a mean one; their sum is 24."""


def by_day(arrivals: Sequence[int], day_s: float) -> NDArray[np.int64]:
    """Return arrivals of the same number and mean rate whose rate follows the hours of days.

    Args:
        arrivals: In nanoseconds, rising.
        day_s: Length of a day, in seconds: shorter ones have the same shape.
    """
    day = day_s * 1e9
    # The part of a day's arrivals that has come by the end of each hour.
    share = np.concatenate([[0.0], np.cumsum(_HOURS)]) / sum(_HOURS)
    hours = np.linspace(0, day, len(share))
    days, rest = np.divmod(np.asarray(arrivals, dtype=np.float64), day)
    times: NDArray[np.int64] = np.rint(days * day + np.interp(rest / day, share, hours)).astype(
        np.int64
    )
    return times
