"""The steps of a run, and what a report shows of them."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

NUM_RECORDS: Final = 400
"""Steps of a run, from the first on, whose rows are kept for its timeline."""
_KV_POINTS: Final = 120


class Step(NamedTuple):
    """One step."""

    start_s: float
    """After the first step's start."""
    duration_s: float
    num_rows: int
    num_tokens: int
    is_decode: bool
    """Whether every row computed one token: the last that it had sampled."""
    num_waiting: int
    kv_tokens: int
    """Written, after the step."""
    kv_slots: int
    """Allocated, after the step."""


def step_curve(steps: Sequence[Step]) -> list[list[float]]:
    """Return rows, steps and median seconds of the steps that only decode, by their rows."""
    by_rows: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        if step.is_decode:
            by_rows[step.num_rows].append(step.duration_s)
    return [
        [rows, len(seconds), statistics.median(seconds)]
        for rows, seconds in sorted(by_rows.items())
    ]


def kv_points(steps: Sequence[Step]) -> list[list[float]]:
    """Return seconds, written tokens and allocated slots of some steps, evenly over the run."""
    stride = max(1, math.ceil(len(steps) / _KV_POINTS))
    return [[round(s.start_s, 4), s.kv_tokens, s.kv_slots] for s in steps[::stride]]
