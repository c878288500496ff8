"""The steps of a replay as a report shows them."""

from collections.abc import Sequence
from typing import Any

from chairlift.bench.steps import NUM_RECORDS, Step, kv_points, step_curve
from chairlift.core.step_rows import RowWork
from chairlift.replay.format import Header
from chairlift.replay.run import ReplayedStep
from chairlift.replay.trace import Request
from chairlift.timeline.from_replay import ReplayTimeline
from chairlift.timeline.lists import to_lists


class ReplaySteps:
    """Notes the steps of a replay; `note` is its `on_step`."""

    def __init__(self, settings: Header, requests: Sequence[Request]) -> None:
        """Start with no step.

        Args:
            settings: Settings of the replay.
            requests: Those of the trace.
        """
        self._block_size = settings.block_size
        self._timeline = ReplayTimeline(settings, requests, max_steps=NUM_RECORDS)
        self._steps: list[Step] = []
        self._first: int | None = None

    def note(self, step: ReplayedStep) -> None:
        """Note a step that ended."""
        if self._first is None:
            self._first = step.start
        self._timeline.note(step)
        self._steps.append(
            Step(
                start_s=(step.start - self._first) * 1e-9,
                duration_s=step.duration * 1e-9,
                num_rows=len(step.indices),
                num_tokens=int(step.plan.num_tokens.sum()),
                is_decode=bool((step.done.work == RowWork.DECODE).all()),
                num_waiting=step.num_waiting,
                kv_tokens=step.num_kv_tokens,
                kv_slots=step.num_used_blocks * self._block_size,
            )
        )

    def fields(self) -> dict[str, Any]:
        """Return what a run of a report has beside its figures."""
        timeline = self._timeline.timeline() if self._steps else None
        return {
            "num_steps": len(self._steps),
            "step_curve": step_curve(self._steps),
            "kv": kv_points(self._steps),
            "timeline": None if timeline is None else to_lists(timeline),
        }


def reported(
    figures: dict[str, Any],
    settings: Header,
    rate_per_s: str | None,
    steps: ReplaySteps | None = None,
) -> dict[str, Any]:
    """Return a run of a report; without steps it is one that was recorded, not modelled.

    Args:
        figures: From `summarize`.
        settings: Settings of the run.
        rate_per_s: `max` if all requests arrive at once, None at their own times.
        steps: Those of the replay.
    """
    rows = settings.max_num_seqs
    return {
        **figures,
        "rows": rows,
        "rate_per_s": rate_per_s,
        "repeat": 1,
        "mean_rows": figures["slot_utilization"] * rows,
        "other_cores": None,
        "cores": 0,
        "is_modelled": steps is not None,
        **(steps.fields() if steps is not None else {}),
    }
