"""A timeline of a recorded run: the steps of its trace."""

from collections.abc import Iterator

import numpy as np

from chairlift.api.errors import ConfigError
from chairlift.replay.format import Step
from chairlift.replay.row_changes import (
    FINISHED,
    NUM_ACCEPTED,
    NUM_TOKENS,
    REQUEST,
    WORK,
    RowChanges,
)
from chairlift.replay.trace import Trace
from chairlift.timeline.builder import StepTimes, StepWork, TimelineBuilder, work_of
from chairlift.timeline.values import Timeline


def recorded_timeline(trace: Trace) -> Timeline:
    """Return what the rows of a recorded run did.

    Args:
        trace: With steps; its requests are numbered in order of arrival.

    Raises:
        ConfigError: A step does not say what its rows did, or contradicts the trace.
    """
    header = trace.header
    builder = TimelineBuilder("recorded", header.max_num_seqs, header.num_kv_blocks - 1)
    for number, request in enumerate(trace.requests, start=1):
        builder.name_request(number, arrived_ns=request.arrival)
    for index, (step, work) in enumerate(_steps(trace), start=1):
        if not step.failed and len(work.rows) != step.rows:
            message = (
                f"step {index} of the trace says what {len(work.rows)} of its {step.rows} rows "
                "did: record it again, or replay it with --batching"
            )
            raise ConfigError(message)
        times = StepTimes(step.t, step.duration, step.waiting, step.kv_blocks)
        builder.add_step(times, work, step.preempted)
    return builder.build()


def _steps(trace: Trace) -> Iterator[tuple[Step, StepWork]]:
    """Yield each step with what its rows did."""
    rows, num_requests = RowChanges(trace.header.max_num_seqs), len(trace.requests)
    for index, step in enumerate(trace.steps, start=1):
        try:
            rows.read(step.changes)
        except ValueError as error:
            message = f"step {index} of the trace: {error}"
            raise ConfigError(message) from None
        used = np.flatnonzero(rows.state[:, REQUEST])
        state = rows.state[used].T
        named = max([*state[REQUEST].tolist(), *step.preempted], default=0)
        if named > num_requests:
            message = f"step {index} of the trace: request {named} has not arrived"
            raise ConfigError(message)
        yield (
            step,
            StepWork(
                used,
                state[REQUEST],
                work_of(state[WORK], state[FINISHED] > 0),
                state[NUM_TOKENS],
                state[NUM_ACCEPTED],
            ),
        )


def has_rows(trace: Trace) -> bool:
    """Tell whether the trace is a recording that says what the rows did."""
    return any(step.changes for step in trace.steps)
