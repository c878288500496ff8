"""Names for the sections of a plan buffer (layout: rust/chairlift-core/src/plan.rs).

    | header (16) | rows R | num_tokens R | input_ids T | draft_counts R | sample_rows S | ... |

The runner hands the buffer to `_core.apply_plan` unread; this view serves those who want to know
who took part in a step: the record of steps, and replay, which has no torch.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HEADER_LEN = 16
_ASSIGNED_WIDTH = 6
_RANGE_WIDTH = 3
_UPDATE_WIDTH = 4
_STATE_WIDTH = 3
_NUM_UPDATES, _NUM_COPIES, _NUM_SWAPS_IN, _NUM_SWAPS_OUT, _NUM_STATE_UPDATES = 5, 6, 7, 8, 9
"""Places in the header."""

LOAD_STATE, COPY_STATE, SAVE_STATE = 1, 2, 3
"""What is done with the recurrent state of a row: it comes from a snapshot, or from another row,
before the step; it goes to a snapshot after the step."""

Int32Array = NDArray[np.int32]

_NO_BLOCKS: Int32Array = np.empty((0, 2), dtype=np.int32)


class PlanView(NamedTuple):
    """The parts of a plan that tell who took part; views into the buffer until the next plan."""

    rows: Int32Array
    """`[R]` rows of the batch that compute tokens."""
    num_tokens: Int32Array
    """`[R]` how many."""
    input_ids: Int32Array
    """`[T]` the tokens; -1 is the row's last sampled one."""
    sample_rows: Int32Array
    """`[S]` indices into the step's tokens that sample."""
    assigned: Int32Array
    """`[., 6]` rows that get a new occupant: row, request slot, index, start, adapter, grammar."""

    @classmethod
    def of(cls, plan: Int32Array) -> "PlanView":
        """Read the header of a plan buffer and cut the sections."""
        num_rows, num_tokens, num_samples, num_ranges, num_assigned = plan[:5].tolist()
        rows_end = HEADER_LEN + num_rows
        input_ids = rows_end + num_rows
        ids_end = input_ids + num_tokens
        sample_rows = ids_end + num_rows
        ranges = sample_rows + num_samples
        assigned = ranges + _RANGE_WIDTH * num_ranges
        assigned_end = assigned + _ASSIGNED_WIDTH * num_assigned
        return cls(
            rows=plan[HEADER_LEN:rows_end],
            num_tokens=plan[rows_end:input_ids],
            input_ids=plan[input_ids:ids_end],
            sample_rows=plan[sample_rows:ranges],
            assigned=plan[assigned:assigned_end].reshape(num_assigned, _ASSIGNED_WIDTH),
        )

    def sampled(self) -> NDArray[np.bool_]:
        """Tell for each of `rows` whether it samples in this step, `[R]`."""
        sampled = np.zeros(len(self.rows), dtype=np.bool_)
        sampled[self.sampling()] = True
        return sampled

    def sampling(self) -> NDArray[np.intp]:
        """Return for each sample slot which of `rows` it samples for, `[S]`."""
        return np.searchsorted(np.cumsum(self.num_tokens), self.sample_rows, side="right")

    def num_prefill_tokens(self) -> int:
        """Tokens that are known before the step; the others are last sampled ones."""
        return int(np.count_nonzero(self.input_ids >= 0))


def block_copies(plan: Int32Array) -> Int32Array:
    """Return the blocks that are copied before the step writes anything, `[., 2]`: from, to."""
    num_copies = int(plan[_NUM_COPIES])
    if num_copies == 0:
        return _NO_BLOCKS
    start = _start_of_copies(plan)
    return plan[start : start + 2 * num_copies].reshape(num_copies, 2)


def block_swaps(plan: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Return the blocks that come from host memory and those that go there, `[., 2]`: from, to.

    Those that go are read before the others are written, and all of it before the copies.
    """
    num_in, num_out = int(plan[_NUM_SWAPS_IN]), int(plan[_NUM_SWAPS_OUT])
    if num_in == num_out == 0:
        return _NO_BLOCKS, _NO_BLOCKS
    start = _start_of_copies(plan) + 2 * int(plan[_NUM_COPIES])
    middle = start + 2 * num_in
    swap_in, swap_out = plan[start:middle], plan[middle : middle + 2 * num_out]
    return swap_in.reshape(num_in, 2), swap_out.reshape(num_out, 2)


def state_updates(plan: Int32Array) -> Int32Array:
    """Return what happens to recurrent states, `[., 3]`: row, what is done, snapshot or row."""
    num_updates = int(plan[_NUM_STATE_UPDATES])
    num_pairs = int(plan[_NUM_COPIES]) + int(plan[_NUM_SWAPS_IN]) + int(plan[_NUM_SWAPS_OUT])
    start = _start_of_copies(plan) + 2 * num_pairs
    return plan[start : start + _STATE_WIDTH * num_updates].reshape(num_updates, _STATE_WIDTH)


def _start_of_copies(plan: Int32Array) -> int:
    return plan_len(plan) + _UPDATE_WIDTH * int(plan[_NUM_UPDATES])


def plan_len(plan: Int32Array) -> int:
    """Integers of a plan up to the rows that it assigns, which is as far as `PlanView` reads."""
    num_rows, num_tokens, num_samples, num_ranges, num_assigned = map(int, plan[:5])
    fixed = HEADER_LEN + 3 * num_rows + num_tokens + num_samples + _RANGE_WIDTH * num_ranges
    return fixed + _ASSIGNED_WIDTH * num_assigned


def block_updates(plan: Int32Array) -> Int32Array:
    """Return the blocks that a plan puts into tables, `[., 4]`: KV group, row, column, block."""
    num_updates, start = int(plan[_NUM_UPDATES]), plan_len(plan)
    return plan[start : start + _UPDATE_WIDTH * num_updates].reshape(num_updates, _UPDATE_WIDTH)
