"""A timeline of a replay: each step as it ends."""

from collections.abc import Sequence

from chairlift.replay.format import Header
from chairlift.replay.run import ReplayedStep
from chairlift.replay.trace import Request
from chairlift.timeline.builder import StepTimes, StepWork, TimelineBuilder, work_of
from chairlift.timeline.values import Timeline


class ReplayTimeline:
    """Notes the steps of a replay; `note` is its `on_step`."""

    def __init__(
        self,
        settings: Header,
        requests: Sequence[Request],
        *,
        max_steps: int | None = None,
    ) -> None:
        """Start with no step; with several tenants a number and a colour are a tenant's.

        Args:
            settings: Settings of the replay, whose policy names the timeline.
            requests: Those of the trace.
            max_steps: Steps that are noted; None: all.
        """
        self._max_steps = max_steps
        self._builder = TimelineBuilder(
            settings.batching.value,
            settings.max_num_seqs,
            settings.num_kv_blocks - 1,
            is_modelled=True,
        )
        by_tenant = len({request.tenant for request in requests}) > 1
        for index, request in enumerate(requests):
            number = 1 + (request.tenant if by_tenant else index)
            label = f"tenant {number}" if by_tenant else ""
            self._builder.name_request(index, label, number, request.arrival)

    def note(self, step: ReplayedStep) -> None:
        """Note a step that ended."""
        if self._builder.num_steps == self._max_steps:
            return
        done, plan = step.done, step.plan
        self._builder.add_step(
            StepTimes(step.start, step.duration, step.num_waiting, step.num_used_blocks),
            StepWork(
                plan.rows,
                step.indices,
                work_of(done.work, done.finished),
                plan.num_tokens,
                done.num_accepted,
            ),
            step.preempted,
        )

    def timeline(self, *, only_used_rows: bool = False) -> Timeline:
        """Return the timeline.

        Args:
            only_used_rows: Leave out the rows behind the last one that was used.
        """
        return self._builder.build(only_used_rows=only_used_rows)
