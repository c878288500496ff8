"""A timeline as values: steps, and spans of consecutive steps in which a row did one thing."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

PARTS = ("schedule", "inputs", "forward", "sample", "update")
"""Parts of a step, in order."""


class Work(IntEnum):
    """What a row did in a step; the end of a request counts before the kind of work."""

    PREFILL = 0
    """Computed a chunk of its prompt, or recomputed what a preemption lost."""
    DECODE = 1
    """Computed one token and drew the next."""
    FINISH = 2
    """Drew its last token."""
    VERIFY = 3
    """Computed one token and drafts behind it, and drew as many as were right."""


class Span(NamedTuple):
    """Consecutive steps in which a row did one kind of work for one request."""

    row: int
    first_step: int
    """Index in the arrays of the timeline."""
    num_steps: int
    request: int
    """Index in `Timeline.requests`."""
    work: Work
    num_tokens: int
    """Computed tokens, summed over the steps."""
    num_accepted: int
    """Drafts that the answer took, summed over the steps."""

    @property
    def end(self) -> int:
        """Return the index of the step after the last."""
        return self.first_step + self.num_steps


class Preemption(NamedTuple):
    """A request lost its row after a step."""

    row: int
    step: int
    """Index of the last step in which the request had the row."""
    request: int


class Run(NamedTuple):
    """Adjacent spans of one request in one row."""

    row: int
    request: int
    spans: tuple[Span, ...]

    @property
    def first_step(self) -> int:
        """Return the index of the first step."""
        return self.spans[0].first_step

    @property
    def end(self) -> int:
        """Return the index of the step after the last."""
        return self.spans[-1].end


class Gap(NamedTuple):
    """Steps that were not recorded."""

    before_step: int
    """Index of the step that follows them."""
    num_steps: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a timeline."""

    label: str
    """What a legend says of it; empty where there is nothing to say."""
    number: int
    """Its number on the bars, from 1; it chooses the colour."""
    arrived_ns: int | None = None
    """On the clock of the steps; None if it is not known."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The N steps of a timeline; times in nanoseconds after one common moment."""

    start_ns: Int64Array
    """`[N]`"""
    duration_ns: Int64Array
    """`[N]`"""
    num_waiting: Int64Array
    """`[N]` requests in the queue."""
    num_used_blocks: Int64Array
    """`[N]` KV blocks in use; -1 where it is not known."""
    num_tokens: Int64Array
    """`[N]` computed tokens."""
    parts_ns: Int64Array
    """`[N, 5]` times of `PARTS`, or `[N, 0]` where they are not known."""

    @property
    def end_ns(self) -> Int64Array:
        """Return when the steps ended, `[N]`."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class Timeline:
    """The work of each row over the steps of one run."""

    name: str
    """Name of the run: its batching policy, say."""
    num_rows: int
    num_blocks: int
    """KV blocks of the pool; 0 if that is not known."""
    steps: Steps
    spans: tuple[Span, ...]
    """In order of row and first step."""
    preemptions: tuple[Preemption, ...]
    requests: tuple[Request, ...]
    gaps: tuple[Gap, ...] = ()
    is_modelled: bool = False
    """Whether the times come from a model of the step time, not from a clock."""

    @property
    def num_steps(self) -> int:
        """Return the number of recorded steps."""
        return len(self.steps.start_ns)

    @property
    def seconds(self) -> float:
        """Return the time from the start of the first step to the end of the last."""
        if not self.num_steps:
            return 0.0
        return float(self.steps.end_ns[-1] - self.steps.start_ns[0]) * 1e-9

    @property
    def utilization(self) -> float:
        """Return the share of cells (a row in a step) in use, 0 to 1."""
        used = sum(span.num_steps for span in self.spans)
        return used / max(1, self.num_rows * self.num_steps)

    def num_used_rows(self) -> Int64Array:
        """Return how many rows computed something in each step, `[N]`."""
        changes = np.zeros(self.num_steps + 1, dtype=np.int64)
        if self.spans:
            np.add.at(changes, [span.first_step for span in self.spans], 1)
            np.add.at(changes, [span.end for span in self.spans], -1)
        return np.cumsum(changes)[:-1]

    def runs(self) -> Iterator[Run]:
        """Yield the stretches of one request in one row, in order of row and first step."""
        for _, spans in groupby(self.spans, _RunKey()):
            adjacent = tuple(spans)
            yield Run(adjacent[0].row, adjacent[0].request, adjacent)

    def describe(self) -> str:
        """Return one line on how full the rows were."""
        return (
            f"{self.num_steps:,} steps, {self.num_rows} rows, "
            f"{self.utilization:.0%} of the cells used"
        )

    def describe_time(self) -> str:
        """Return how long the run took, and whether that was measured."""
        seconds = self.seconds
        words = f"{seconds:,.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
        return f"{words} by a model of the step time" if self.is_modelled else words


class _RunKey:
    """Counts up whenever a span does not continue the one before it."""

    def __init__(self) -> None:
        self._number = 0
        self._last: Span | None = None

    def __call__(self, span: Span) -> int:
        last, self._last = self._last, span
        if last is None or (last.row, last.request, last.end) != (
            span.row,
            span.request,
            span.first_step,
        ):
            self._number += 1
        return self._number
