"""Names for the sections of a plan buffer (layout: rust/chairlift-core/src/plan.rs).

    | header (16) | rows R | num_tokens R | input_ids T | draft_counts R | sample_rows S | ... |

The runner hands the buffer to `_core.apply_plan` unread; this view serves those who want to know
who took part in a step.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

HEADER_LEN = 16
_ASSIGNED_WIDTH = 6

Int32Array = NDArray[np.int32]


class PlanView(NamedTuple):
    """The parts of a plan that tell who took part; views into the buffer until the next plan."""

    rows: Int32Array
    """`[R]` rows of the batch that compute tokens."""
    num_tokens: Int32Array
    """`[R]` how many."""
    sample_rows: Int32Array
    """`[S]` indices into the step's tokens that sample."""
    assigned: Int32Array
    """`[., 6]` rows that get a new occupant: row, request slot, index, start, adapter, grammar."""

    @classmethod
    def of(cls, plan: Tensor) -> "PlanView":
        """Reads the header of an int32 plan buffer and cuts the sections."""
        buffer = plan.numpy()
        num_rows, num_tokens, num_samples, num_ranges, num_assigned = buffer[:5].tolist()
        rows_end = HEADER_LEN + num_rows
        input_ids = rows_end + num_rows
        sample_rows = input_ids + num_tokens + num_rows
        ranges = sample_rows + num_samples
        assigned = ranges + 2 * num_ranges
        assigned_end = assigned + _ASSIGNED_WIDTH * num_assigned
        return cls(
            rows=buffer[HEADER_LEN:rows_end],
            num_tokens=buffer[rows_end:input_ids],
            sample_rows=buffer[sample_rows:ranges],
            assigned=buffer[assigned:assigned_end].reshape(num_assigned, _ASSIGNED_WIDTH),
        )

    def sampled(self) -> NDArray[np.bool_]:
        """Tells for each of `rows` whether it samples in this step, `[R]`."""
        ends = np.cumsum(self.num_tokens)
        sampled = np.zeros(len(self.rows), dtype=np.bool_)
        sampled[np.searchsorted(ends, self.sample_rows, side="right")] = True
        return sampled
