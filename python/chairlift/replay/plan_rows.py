"""Follows plans without a model: who sits in which row, and what a step costs.

The layout of a plan is that of rust/chairlift-core/src/plan.rs.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_HEADER_LEN = 16
_ASSIGNED_WIDTH = 6

Int32Array = NDArray[np.int32]


class Work(NamedTuple):
    """What one step computes; arrays are not written again."""

    num_rows: int
    num_tokens: int
    num_context: int
    """Tokens of the rows after the step."""
    sampled_rows: Int32Array
    """`[S]` rows that sample a token, in the order of the sample slots."""
    is_repeat: bool
    """The very rows of the step before decode again, with the same requests in them."""


class PlanRows:
    """Request slot and computed tokens of each row, as the plans so far say.

    Attributes:
        slot: int32 `[max_num_seqs]`, the request slot in each row.
    """

    def __init__(self, num_rows: int) -> None:
        self.slot = np.zeros(num_rows, dtype=np.int32)
        self._computed = np.zeros(num_rows, dtype=np.int64)
        # The last step if all of its rows sampled, and how often it was repeated since `_computed`
        # was up to date.
        self._last: Work | None = None
        self._last_rows = b""
        self._num_repeats = 0

    def apply(self, plan: Int32Array) -> Work:
        """Follows one plan; takes a time that grows with the rows only inside numpy."""
        num_rows, num_tokens, num_samples, num_ranges, num_assigned = plan[:5].tolist()
        rows_end = _HEADER_LEN + num_rows
        is_decode = num_rows == num_tokens == num_samples
        row_bytes = plan[_HEADER_LEN:rows_end].tobytes()
        if is_decode and not num_assigned and self._last and row_bytes == self._last_rows:
            self._num_repeats += 1
            num_context = self._last.num_context + num_rows
            sampled = self._last.sampled_rows
            self._last = Work(num_rows, num_rows, num_context, sampled, is_repeat=True)
            return self._last
        self._settle()
        input_ids = rows_end + num_rows
        sample_rows = input_ids + num_tokens + num_rows
        if num_assigned:
            start = sample_rows + num_samples + 2 * num_ranges
            end = start + _ASSIGNED_WIDTH * num_assigned
            assigned = plan[start:end].reshape(num_assigned, _ASSIGNED_WIDTH)
            self.slot[assigned[:, 0]] = assigned[:, 1]
            self._computed[assigned[:, 0]] = assigned[:, 3]
        rows = plan[_HEADER_LEN:rows_end]
        counts = plan[rows_end:input_ids]
        computed = self._computed[rows] + counts
        self._computed[rows] = computed
        if num_samples < num_rows:
            samples = plan[sample_rows : sample_rows + num_samples]
            sampled = rows[np.searchsorted(np.cumsum(counts), samples, side="right")]
        else:
            sampled = rows.copy()
        num_context = int(np.add.reduce(computed))
        work = Work(num_rows, num_tokens, num_context, sampled, is_repeat=False)
        self._last, self._last_rows = (work, row_bytes) if num_samples == num_rows else (None, b"")
        return work

    def _settle(self) -> None:
        if self._last and self._num_repeats:
            self._computed[self._last.sampled_rows] += self._num_repeats
            self._num_repeats = 0


def num_prefill_tokens(plan: Int32Array) -> int:
    """Tokens of a plan that are known before the step; the others are last sampled ones."""
    num_rows, num_tokens = map(int, plan[:2])
    start = _HEADER_LEN + 2 * num_rows
    return int(np.count_nonzero(plan[start : start + num_tokens] >= 0))


def plan_len(plan: Int32Array) -> int:
    """Integers of a plan up to the rows that it assigns, which is as far as this file reads."""
    num_rows, num_tokens, num_samples, num_ranges, num_assigned = map(int, plan[:5])
    fixed = _HEADER_LEN + 3 * num_rows + num_tokens + num_samples + 2 * num_ranges
    return fixed + _ASSIGNED_WIDTH * num_assigned
