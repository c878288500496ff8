"""A timeline of the steps of a watched server."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chairlift.timeline.builder import StepTimes, StepWork, TimelineBuilder
from chairlift.timeline.values import Timeline, Work

if TYPE_CHECKING:
    from google.protobuf import duration_pb2

    from chairlift.v1 import server_pb2 as pb


class WatchedRow(NamedTuple):
    """One row of a step."""

    row: int
    handle: str
    """Handle of the request; empty for requests of other tenants."""
    request_id: str
    work: Work
    num_tokens: int
    num_accepted: int
    sampled: bool


def watched_rows(step: "pb.Step") -> Iterator[WatchedRow]:
    """Yield the rows of a step; an end counts before the kind of work.

    A kind that only newer servers know counts as a decode.
    """
    from chairlift.v1 import server_pb2 as pb

    works = {pb.ROW_WORK_PREFILL: Work.PREFILL, pb.ROW_WORK_VERIFY: Work.VERIFY}
    for row in step.rows:
        work = Work.FINISH if row.finished else works.get(row.work, Work.DECODE)
        yield WatchedRow(
            row.row,
            row.handle,
            row.request_id,
            work,
            row.num_tokens,
            row.num_accepted,
            row.sampled,
        )


def watched_times(step: "pb.Step", num_used_blocks: int = -1) -> StepTimes:
    """Return when a step ran.

    Args:
        step: From the server.
        num_used_blocks: KV blocks in use after it; -1 if it is not known.
    """
    times = step.times
    parts = (times.schedule, times.inputs, times.forward, times.sample, times.update)
    return StepTimes(
        _ns(step.start),
        _ns(step.duration),
        step.num_waiting,
        num_used_blocks,
        tuple(_ns(part) for part in parts),
    )


class WatchedTimeline:
    """Takes the steps of a watch in their order."""

    def __init__(self, name: str, num_rows: int, num_blocks: int = 0) -> None:
        """Start without steps.

        Args:
            name: Name of the run.
            num_rows: Rows of the batch.
            num_blocks: KV blocks of the pool; 0 if that is not known.
        """
        self._builder = TimelineBuilder(name, num_rows, num_blocks)
        self._num_rows = num_rows
        # Requests of other tenants have no handle: one number stands for all of them in a row.
        self.handles: dict[str, int] = {}
        """Keys of the requests by handle, in the order in which they were seen."""

    def add_rows(
        self,
        rows: Sequence[WatchedRow],
        preempted: Sequence[str] = (),
        times: StepTimes | None = None,
    ) -> None:
        """Add a step.

        Args:
            rows: What its rows did.
            preempted: Handles of requests that lost a row before it.
            times: When it ran; None where no time is drawn.
        """
        keys = [self._key(row) for row in rows]
        columns = [[row.row, row.work, row.num_tokens, row.num_accepted] for row in rows]
        numbers, work, num_tokens, accepted = np.array(columns, dtype=np.int64).reshape(-1, 4).T
        requests = np.array(keys, dtype=np.int64)
        lost = [self.handles[handle] for handle in preempted if handle in self.handles]
        step = StepWork(numbers, requests, work, num_tokens, accepted)
        self._builder.add_step(times or StepTimes(self._builder.num_steps, 1, 0), step, lost)

    def add_gap(self, num_steps: int) -> None:
        """Note steps that the server dropped because they were not read in time."""
        self._builder.add_gap(num_steps)

    def name_request(self, handle: str, *, label: str = "", number: int | None = None) -> None:
        """Say what a legend says of a request; as `TimelineBuilder.name_request`."""
        self._builder.name_request(self.handles[handle], label, number)

    def timeline(self) -> Timeline:
        """Return the timeline; no step may follow."""
        return self._builder.build()

    def _key(self, row: WatchedRow) -> int:
        handle = row.handle or f"#{row.row}"
        return self.handles.setdefault(handle, len(self.handles))


def _ns(duration: "duration_pb2.Duration") -> int:
    return int(duration.ToNanoseconds())
