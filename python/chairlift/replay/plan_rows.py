"""Follows plans without a model: the request in each row, and the cost of each step."""

from typing import NamedTuple

import numpy as np

from chairlift.core.plan import Int32Array, PlanView


class Work(NamedTuple):
    """What one step computes; arrays are not written again."""

    num_rows: int
    num_tokens: int
    num_context: int
    """Tokens of the rows after the step."""
    sampled_rows: Int32Array
    """`[S]` rows that sample a token, in the order of the sample slots."""
    is_repeat: bool
    """Whether the rows of the step before decode again, with the same requests."""


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
        """Follow one plan; only numpy's part of the time grows with the rows."""
        view = PlanView.of(plan)
        rows, num_tokens, num_samples = view.rows, len(view.input_ids), len(view.sample_rows)
        num_rows, has_assigned, row_bytes = len(rows), len(view.assigned) > 0, rows.tobytes()
        is_decode = num_rows == num_tokens == num_samples
        if is_decode and not has_assigned and self._last and row_bytes == self._last_rows:
            self._num_repeats += 1
            num_context = self._last.num_context + num_rows
            sampled = self._last.sampled_rows
            self._last = Work(num_rows, num_rows, num_context, sampled, is_repeat=True)
            return self._last
        self._settle()
        if has_assigned:
            self.slot[view.assigned[:, 0]] = view.assigned[:, 1]
            self._computed[view.assigned[:, 0]] = view.assigned[:, 3]
        computed = self._computed[rows] + view.num_tokens
        self._computed[rows] = computed
        sampled = rows[view.sampling()] if num_samples < num_rows else rows.copy()
        num_context = int(np.add.reduce(computed))
        work = Work(num_rows, num_tokens, num_context, sampled, is_repeat=False)
        self._last, self._last_rows = (work, row_bytes) if num_samples == num_rows else (None, b"")
        return work

    def _settle(self) -> None:
        if self._last and self._num_repeats:
            self._computed[self._last.sampled_rows] += self._num_repeats
            self._num_repeats = 0
