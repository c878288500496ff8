"""The last steps of the engine, for all feeds; each feed continues from its own position."""

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from chairlift.engine.step import StepRecord

MAX_STEPS: Final = 4096
MAX_CELLS: Final = 2**19
"""Rows of all steps together, some 16 MiB; older steps are dropped."""


class KeptStep(NamedTuple):
    """A step, and the rows that requests lost before it."""

    record: "StepRecord"
    preempted: list[tuple[int, int]]
    """(row, request) by the engine's ids."""


class StepHistory:
    """Steps by their position, which rises by one with each; for one event loop."""

    def __init__(self, num_rows: int) -> None:
        """Start empty.

        Args:
            num_rows: Rows of the batch.
        """
        self.end = 0
        """Position of the next step."""
        self.first_number = 0
        """The engine's number of the step at position 0."""
        self._steps: deque[KeptStep] = deque()
        self._num_cells = 0
        self._request_of_row = np.full(num_rows, -1, dtype=np.int64)

    def add(self, record: "StepRecord") -> None:
        """Add a step; takes time in its rows, by numpy alone."""
        if not self.end:
            self.first_number = record.step
        preempted = [(self._row_of(lost, record), lost) for lost in record.done.preempted]
        self._request_of_row[record.row_numbers] = record.request_ids
        self._steps.append(KeptStep(record, preempted))
        self._num_cells += len(record.row_numbers)
        self.end += 1
        while self._num_cells > MAX_CELLS or len(self._steps) > MAX_STEPS:
            self._drop()

    def since(self, position: int) -> tuple[list[KeptStep], int]:
        """Return the steps from a position on, and the position of the first of them."""
        start = self.end - len(self._steps)
        first = max(position, start)
        return list(islice(self._steps, first - start, None)), first

    def forget(self, position: int) -> None:
        """Drop the steps before a position, which every feed has read."""
        while self._steps and self.end - len(self._steps) < position:
            self._drop()

    def _drop(self) -> None:
        self._num_cells -= len(self._steps.popleft().record.row_numbers)

    def _row_of(self, request: int, record: "StepRecord") -> int:
        """Return the row that a request had before a step; -1 if no step has shown it."""
        rows = np.flatnonzero(self._request_of_row == request)
        # A request may have several sequences: one that goes on has kept its row.
        lost = rows[~np.isin(rows, record.row_numbers)]
        return int(lost[0]) if len(lost) else int(rows[0]) if len(rows) else -1
