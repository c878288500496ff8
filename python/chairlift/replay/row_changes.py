"""What the rows of the steps of a trace did, written as changes from one step to the next.

A row that decodes another token of the same request changes nothing: most steps have no change.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from chairlift.core.step_rows import RowWork, StepRows

Int64Array = NDArray[np.int64]

REQUEST, WORK, NUM_TOKENS, NUM_ACCEPTED, FINISHED = range(5)
"""Columns of the state of a row, and the numbers behind the row in a change."""

_WIDTH = 5
_NUM_WORKS = len(RowWork)


class RowChanges:
    """The state of each row in the last step that was written or read.

    Attributes:
        state: `[num_rows, 5]`: request (0: idle), `RowWork`, tokens, accepted drafts, finished.
    """

    def __init__(self, num_rows: int) -> None:
        """Start with idle rows."""
        self.state = np.zeros((num_rows, _WIDTH), dtype=np.int64)

    def write(
        self,
        rows: NDArray[np.int32],
        requests: Int64Array,
        num_tokens: NDArray[np.int32],
        done: StepRows,
    ) -> list[list[int]]:
        """Return the changes of a step; arrays are `[R]`, in the order of `done`.

        Args:
            rows: Rows of the batch.
            requests: Their requests, from 1.
            num_tokens: Tokens that they computed, drafts included.
            done: What they did.
        """
        new = np.zeros_like(self.state)
        new[rows] = np.stack(
            [requests, done.work, num_tokens, done.num_accepted, done.finished], axis=1
        )
        changed = np.flatnonzero((new != self.state).any(axis=1))
        self.state = new
        return [
            [row, *values] if values[REQUEST] else [row]
            for row, values in zip(changed.tolist(), new[changed].tolist(), strict=True)
        ]

    def read(self, changes: Iterable[Sequence[int]]) -> None:
        """Apply the changes of a step.

        Raises:
            ValueError: A change is of no row, of no kind of work, or of another length.
        """
        for row, *values in changes:
            if not 0 <= row < len(self.state):
                message = f"changes: expected a row below {len(self.state)}, got {row}"
                raise ValueError(message)
            if len(values) not in (0, _WIDTH):
                message = f"changes: expected 1 or {_WIDTH + 1} numbers, got {1 + len(values)}"
                raise ValueError(message)
            if values and values[WORK] >= _NUM_WORKS:
                message = f"changes: expected work below {_NUM_WORKS}, got {values[WORK]}"
                raise ValueError(message)
            self.state[row] = values or 0
