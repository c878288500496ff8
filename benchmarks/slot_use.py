"""What slots and steps allow: the arithmetic of docs/gains.md for lengths of a gamma law.

`benchmarks/gain_page/formula.js` is the same in JavaScript.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

CONTINUOUS_USE: Final = 0.95
"""Share of the rows that continuous batching keeps busy at least."""
_NUM_POINTS: Final = 4001
_CURVE_ROWS: Final = 16
"""Rows of the step whose time over that of one row describes a device."""

Array = npt.NDArray[np.float64]


def lengths(cv: float) -> tuple[Array, Array]:
    """Return lengths over their mean, and the share of answers that are at most as long.

    Args:
        cv: Deviation of the lengths over their mean.
    """
    # Over the logarithm of the length, the density is smooth for every shape.
    shape = cv**-2
    low = -40 / shape - 18 / shape**0.5
    high = np.log((shape + 12 * shape**0.5 + 60) / shape)
    logs = np.linspace(low, high, _NUM_POINTS)
    density = np.exp(shape * (logs - np.expm1(logs)))
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return np.exp(logs), below / below[-1]


def slot_use(cv: float, rows: int) -> float:
    """Return the share of slots that a static batch uses: the mean over the mean longest."""
    length, below = lengths(cv)
    middle = (length[1:] + length[:-1]) / 2
    return float((middle @ np.diff(below)) / (middle @ np.diff(below**rows)))


def step_time(rows: float, step_ratio: float) -> float:
    """Return the time of a step over that of one row, by a line.

    Args:
        rows: Rows of the step.
        step_ratio: Time of a step of 16 rows over that of one row.
    """
    return 1 + (step_ratio - 1) * (rows - 1) / (_CURVE_ROWS - 1)


def gain_of(cv: float, rows: int, step_ratio: float) -> float:
    """Return the throughput of continuous batching over that of static batching.

    Args:
        cv: Deviation of the lengths over their mean.
        rows: Rows of the batch.
        step_ratio: Time of a step of 16 rows over that of one row.
    """
    static = slot_use(cv, rows)
    continuous = max(CONTINUOUS_USE, static)
    longer = step_time(continuous * rows, step_ratio) / step_time(static * rows, step_ratio)
    return continuous / static / longer
