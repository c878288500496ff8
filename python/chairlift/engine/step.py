"""A step as values: in flight, its output, and the record of how long it took.

```text
one step in flight   | plan k | run k | end k | plan k+1 | run k+1 | end k+1 |
two                  | plan k | run k            | run k+1            | run k+2 ...
                              | plan k+1 |       | end k | plan k+2 |
```
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift import _core
from chairlift.core.events import SampledLogprobs
from chairlift.core.plan import PlanView
from chairlift.core.step_rows import StepRows
from chairlift.engine.runner.model_runner import Launched
from chairlift.engine.runner.step_inputs import StepInputs

_NS_PER_S = 1_000_000_000


class StepTimes(NamedTuple):
    """Where the time of a step went, in seconds; the parts add up to the step."""

    schedule_s: float
    """The scheduler spends the budget and writes the plan."""
    inputs_s: float
    """The plan changes the row tables and becomes the inputs of the forward pass."""
    forward_s: float
    """The model, from token ids to logits, and the passes of a step that runs again in parts."""
    sample_s: float
    """One draw per row that samples."""
    update_s: float
    """The scheduler takes the tokens: text, stops, ends, blocks."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, for `watch_steps` and the picture of the batch; R rows computed tokens."""

    step: int
    """Counts from 1."""
    started_ns: int
    """On the engine's monotonic clock."""
    duration_s: float
    times: StepTimes
    """The same by part."""
    num_waiting: int
    """Requests in the queue after the step."""
    row_numbers: NDArray[np.int32]
    """`[R]` their rows of the batch."""
    request_ids: NDArray[np.int64]
    """`[R]`"""
    num_tokens: NDArray[np.int32]
    """`[R]` prompt tokens of a chunk, or 1 and its drafts."""
    sampled: NDArray[np.bool_]
    """`[R]` whether the row gave a new token."""
    done: StepRows
    """The kind of work of each row, its drafts, its end; and the requests that were preempted."""

    @property
    def rows(self) -> list[tuple[int, int, int, bool]]:
        """The same as tuples (row, request_id, num_tokens, sampled)."""
        return list(
            zip(
                self.row_numbers.tolist(),
                self.request_ids.tolist(),
                self.num_tokens.tolist(),
                self.sampled.tolist(),
                strict=True,
            )
        )


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The result of `Engine.advance`; its events become Python objects where they are received."""

    events: _core.Events
    sampled: SampledLogprobs
    """The log probabilities that the events refer to."""
    load: _core.Load
    """After the step."""
    record: StepRecord | None
    """None when there was nothing to run."""


@dataclass(slots=True)
class InFlightStep:
    """A step that was planned and launched; times in nanoseconds of the engine's clock."""

    number: int
    """The scheduler's number of the step."""
    plan: PlanView
    inputs: StepInputs
    started_ns: int
    planned_ns: int
    ready_ns: int
    """When its inputs were."""
    sampled: Launched | None = None
    """Its draws, known or not yet; None where its launch failed."""
    sample_ns: int = 0
    """Time spent on drawing, as far as the launch waited for it."""

    def times(self, previous_ns: int, computed_ns: int, ended_ns: int) -> StepTimes:
        """Split the time that this step took, counted from the end of the one before.

        Work for it that was done while the step before ran cost no time.

        Args:
            previous_ns: When the step before ended.
            computed_ns: When the tokens were known.
            ended_ns: When the scheduler had taken them.
        """
        started, planned, ready = (
            max(mark, previous_ns) for mark in (self.started_ns, self.planned_ns, self.ready_ns)
        )
        sample_ns = min(self.sample_ns, computed_ns - ready)
        return StepTimes(
            schedule_s=(planned - started) / _NS_PER_S,
            inputs_s=(ready - planned) / _NS_PER_S,
            forward_s=(computed_ns - ready - sample_ns) / _NS_PER_S,
            sample_s=sample_ns / _NS_PER_S,
            update_s=(ended_ns - computed_ns) / _NS_PER_S,
        )
