"""From steps, one after the other, to a timeline."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift.core.step_rows import RowWork
from chairlift.timeline.values import (
    PARTS,
    Gap,
    Int64Array,
    Preemption,
    Request,
    Span,
    Steps,
    Timeline,
    Work,
)

WORK_OF_ROW = np.zeros(len(RowWork), dtype=np.int64)
"""By `RowWork`."""
WORK_OF_ROW[[RowWork.PREFILL, RowWork.DECODE, RowWork.VERIFY]] = (
    Work.PREFILL,
    Work.DECODE,
    Work.VERIFY,
)

_NONE = -1


class StepWork(NamedTuple):
    """What R rows did in a step; arrays `[R]`."""

    rows: NDArray[np.integer]
    requests: NDArray[np.integer]
    """Keys: any numbers, one for each request."""
    work: NDArray[np.integer]
    """Values of `Work`."""
    num_tokens: NDArray[np.integer]
    num_accepted: NDArray[np.integer]


class StepTimes(NamedTuple):
    """What is known of a step beside its rows."""

    start_ns: int
    duration_ns: int
    num_waiting: int
    num_used_blocks: int = _NONE
    parts_ns: tuple[int, ...] = ()
    """In the order of `PARTS`; empty if they are not known."""


def work_of(work: NDArray[np.integer], finished: NDArray[np.bool_]) -> Int64Array:
    """Return the values of `Work` of rows whose `RowWork` and ends are known."""
    return np.where(finished, int(Work.FINISH), WORK_OF_ROW[work])


class TimelineBuilder:
    """Takes steps in their order; numpy does what grows with the rows."""

    def __init__(
        self, name: str, num_rows: int, num_blocks: int = 0, *, is_modelled: bool = False
    ) -> None:
        """Start without steps.

        Args:
            name: Name of the run.
            num_rows: Rows of the batch, empty ones included.
            num_blocks: KV blocks of the pool; 0 if that is not known.
            is_modelled: Whether the times come from a model of the step time.
        """
        self._name, self._num_blocks, self._is_modelled = name, num_blocks, is_modelled
        self._times: list[StepTimes] = []
        self._spans: list[Span] = []
        self._preemptions: list[Preemption] = []
        self._gaps: list[Gap] = []
        self._arrived: dict[int, int] = {}
        self._labels: dict[int, str] = {}
        self._numbers: dict[int, int] = {}
        self._num_tokens_of_step: list[int] = []
        self._unbroken_from = 0
        self._ended_ns = 0
        # By row: the open span.
        self._request = np.full(num_rows, _NONE, dtype=np.int64)
        self._work = np.zeros(num_rows, dtype=np.int64)
        self._first = np.zeros(num_rows, dtype=np.int64)
        self._last = np.full(num_rows, _NONE, dtype=np.int64)
        self._num_tokens = np.zeros(num_rows, dtype=np.int64)
        self._num_accepted = np.zeros(num_rows, dtype=np.int64)

    @property
    def num_steps(self) -> int:
        """Return how many steps were added."""
        return len(self._times)

    def name_request(
        self, key: int, label: str = "", number: int | None = None, arrived_ns: int | None = None
    ) -> None:
        """Say what is known of a request.

        Args:
            key: The key by which the steps name the request.
            label: What a legend says of it.
            number: Its number, from 1; default: by the order of the calls.
            arrived_ns: When it was queued, on the clock of the steps.
        """
        self._labels[key] = label
        self._numbers[key] = len(self._numbers) + 1 if number is None else number
        if arrived_ns is not None:
            self._arrived[key] = arrived_ns

    def add_gap(self, num_steps: int) -> None:
        """Note that steps before the next one were not recorded."""
        self._gaps.append(Gap(self.num_steps, num_steps))
        self._unbroken_from = self.num_steps

    def add_step(self, times: StepTimes, work: StepWork, preempted: Sequence[int] = ()) -> None:
        """Add a step.

        Args:
            times: When it ran.
            work: What its rows did.
            preempted: Requests that lost a row before it, an entry per row.
        """
        if preempted:
            self._preempt(work, Counter(preempted))
        step, rows = len(self._times), work.rows.astype(np.int64)
        # A step that is planned while the one before it runs counts from the end of that one.
        start_ns = max(times.start_ns, self._ended_ns)
        self._ended_ns = start_ns + times.duration_ns
        self._times.append(times._replace(start_ns=start_ns))
        self._num_tokens_of_step.append(int(work.num_tokens.sum()))
        goes_on = (
            (self._request[rows] == work.requests)
            & (self._work[rows] == work.work)
            & (self._last[rows] == step - 1)
            & (step > self._unbroken_from)
        )
        begun = rows[~goes_on]
        for row in begun.tolist():
            self._close(row)
        self._request[rows], self._work[rows] = work.requests, work.work
        self._first[begun] = step
        self._num_tokens[begun] = self._num_accepted[begun] = 0
        self._num_tokens[rows] += work.num_tokens
        self._num_accepted[rows] += work.num_accepted
        self._last[rows] = step

    def _preempt(self, work: StepWork, lost: Counter[int]) -> None:
        """Note which rows were lost: the last that their requests had and do not have now.

        A request has several rows, one for each answer, and those that it keeps may be in the step.
        """
        kept = {*zip(work.rows.tolist(), work.requests.tolist(), strict=True)}
        for request, count in lost.items():
            had = np.flatnonzero((self._request == request) & (self._work != Work.FINISH))
            gone = [row for row in had.tolist() if (row, request) not in kept]
            gone.sort(key=lambda row: -int(self._last[row]))
            for row in gone[:count]:
                self._preemptions.append(Preemption(row, int(self._last[row]), request))
                self._close(row)
                self._request[row] = _NONE

    def _close(self, row: int) -> None:
        if self._request[row] == _NONE:
            return
        first = int(self._first[row])
        self._spans.append(
            Span(
                row,
                first,
                int(self._last[row]) - first + 1,
                int(self._request[row]),
                Work(int(self._work[row])),
                int(self._num_tokens[row]),
                int(self._num_accepted[row]),
            )
        )

    def build(self, *, only_used_rows: bool = False) -> Timeline:
        """Return the timeline of the steps so far; no step may follow.

        Args:
            only_used_rows: Leave out the rows behind the last one that was used.
        """
        for row in range(len(self._request)):
            self._close(row)
        self._request[:] = _NONE
        spans = sorted(self._spans)
        seen = {span.request: None for span in sorted(spans, key=lambda span: span.first_step)}
        for key in seen:
            if key not in self._numbers:
                self.name_request(key)
        keys = sorted(seen, key=lambda key: (self._numbers[key], key))
        place = {key: index for index, key in enumerate(keys)}
        num_rows = 1 + max((span.row for span in spans), default=0)
        return Timeline(
            self._name,
            num_rows if only_used_rows else len(self._request),
            self._num_blocks,
            self._steps(),
            tuple(span._replace(request=place[span.request]) for span in spans),
            tuple(lost._replace(request=place[lost.request]) for lost in self._preemptions),
            tuple(
                Request(self._labels[key], self._numbers[key], self._arrived.get(key))
                for key in keys
            ),
            tuple(self._gaps),
            is_modelled=self._is_modelled,
        )

    def _steps(self) -> Steps:
        count = self.num_steps
        columns = np.array([times[:4] for times in self._times], dtype=np.int64).reshape(count, 4)
        has_parts = count > 0 and all(len(times.parts_ns) == len(PARTS) for times in self._times)
        parts = [times.parts_ns if has_parts else () for times in self._times]
        start, duration, waiting, used = columns.T
        width = len(PARTS) if has_parts else 0
        num_tokens = np.array(self._num_tokens_of_step, dtype=np.int64)
        return Steps(
            start,
            duration,
            waiting,
            used,
            num_tokens,
            np.array(parts, dtype=np.int64).reshape(count, width),
        )
