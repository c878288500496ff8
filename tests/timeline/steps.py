"""A timeline of two rows: three requests, one of them preempted."""

from collections.abc import Sequence

import numpy as np
from chairlift.timeline.builder import StepTimes, StepWork, TimelineBuilder
from chairlift.timeline.values import Timeline, Work

PREFILL, DECODE, VERIFY, FINISH = Work.PREFILL, Work.DECODE, Work.VERIFY, Work.FINISH
A, B, C = 7, 8, 9
MS = 1_000_000

Row = tuple[int, int, Work, int, int]
"""Row, request, work, tokens, accepted drafts."""

STEPS: tuple[tuple[Sequence[Row], Sequence[int]], ...] = (
    ([(0, A, PREFILL, 16, 0), (1, B, PREFILL, 4, 0)], []),
    ([(0, A, PREFILL, 9, 0), (1, B, FINISH, 1, 0)], []),
    ([(0, A, DECODE, 1, 0), (1, C, PREFILL, 3, 0)], []),
    ([(1, C, VERIFY, 4, 2)], [A]),
    ([(1, C, FINISH, 1, 0)], []),
    ([(0, A, PREFILL, 26, 0)], []),
    ([(0, A, FINISH, 1, 0)], []),
)


def add(
    builder: TimelineBuilder,
    rows: Sequence[Row],
    preempted: Sequence[int] = (),
    duration_ns: int = MS,
) -> None:
    """Add a step, of a millisecond by default; a pause of a millisecond comes before it."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    numbers, requests, work, num_tokens, accepted = columns
    step = builder.num_steps
    parts = (MS // 10, MS // 10, MS // 2, MS // 5, MS // 10)
    times = StepTimes(2 * step * MS, duration_ns, max(0, 3 - step), 2 * step, parts)
    builder.add_step(times, StepWork(numbers, requests, work, num_tokens, accepted), preempted)


def example(name: str = "continuous") -> Timeline:
    """Return the timeline of `STEPS`."""
    builder = TimelineBuilder(name, num_rows=2, num_blocks=20)
    for key, label in ((A, "a long prompt"), (B, "short & <sweet>"), (C, "late")):
        builder.name_request(key, label, arrived_ns=0 if key != C else 2 * MS)
    for rows, preempted in STEPS:
        add(builder, rows, preempted)
    return builder.build()
