"""A step between its launch and its end, and where its time went.

```text
one step in flight   | plan k | run k | end k | plan k+1 | run k+1 | end k+1 |
two                  | plan k | run k            | run k+1            | run k+2 ...
                              | plan k+1 |       | end k | plan k+2 |
```
"""

from dataclasses import dataclass

from chairlift.engine.model_runner import Launched, StepInputs
from chairlift.engine.step_record import StepTimes
from chairlift.plan import PlanView

_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Flight:
    """A step that was planned and launched; times in nanoseconds of the engine's clock."""

    step: int
    """What the scheduler calls it."""
    plan: PlanView
    inputs: StepInputs
    started_ns: int
    planned_ns: int
    ready_ns: int
    """When its inputs were."""
    sampled: Launched | None = None
    """What it will have drawn; None where its launch failed."""
    sample_ns: int = 0
    """Time spent on drawing, as far as the launch waited for it."""

    def times(self, previous_ns: int, computed_ns: int, ended_ns: int) -> StepTimes:
        """Splits the time that this step took, counted from the end of the one before.

        What was done for it while the one before ran cost nothing.

        Args:
            previous_ns: When the step before ended.
            computed_ns: When the tokens were there.
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
