"""Names for the sections of a plan buffer, whose layout `_core` gives.

    | header | rows R | num_tokens R | input_ids T | draft_counts R | sample_rows S | ... |

The runner hands the buffer to `_core.apply_plan` unread. The view tells which rows a step computes,
and which blocks and states it copies.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift._core import PLAN_HEADER_LEN, PLAN_SECTIONS

Int32Array = NDArray[np.int32]

_EMPTY: dict[int, Int32Array] = {
    width: np.empty((0, width), dtype=np.int32) for _, width, _ in PLAN_SECTIONS
}


class PlanView(NamedTuple):
    """The sections of a plan; views into the buffer until the next plan.

    Blocks that go to the host are read before any is written, blocks that come from it are written
    next, and then the copies are done.
    """

    rows: Int32Array
    """`[R]` rows of the batch that compute tokens."""
    num_tokens: Int32Array
    """`[R]` how many."""
    input_ids: Int32Array
    """`[T]` the tokens; -1 is the row's last sampled one."""
    draft_counts: Int32Array
    """`[R]` how many of the tokens are drafts."""
    sample_rows: Int32Array
    """`[S]` indices into the step's tokens that sample."""
    score_ranges: Int32Array
    """`[., 3]` tokens of prompts that are scored: the first, how many, the token after the last."""
    assigned: Int32Array
    """`[., 5]` rows that get a new occupant: row, request slot, index, start, adapter."""
    block_updates: Int32Array
    """`[., 4]` blocks that are put into tables: KV group, row, column, block."""
    copies: Int32Array
    """`[., 2]` blocks that are copied before the step writes anything: from, to."""
    swap_in: Int32Array
    """`[., 2]` blocks that come from host memory: host block, block."""
    swap_out: Int32Array
    """`[., 2]` blocks that go to host memory: block, host block."""
    state_updates: Int32Array
    """`[., 3]` what happens to recurrent states: row, what is done, snapshot or row."""

    @classmethod
    def of(cls, plan: Int32Array) -> "PlanView":
        """Read the header of a plan buffer and cut the sections."""
        header, end = plan[:PLAN_HEADER_LEN].tolist(), PLAN_HEADER_LEN
        sections = []
        for _, width, length in PLAN_SECTIONS:
            start, end = end, end + width * header[length]
            if width == 1:
                sections.append(plan[start:end])
            else:
                entries = plan[start:end].reshape(-1, width) if end > start else _EMPTY[width]
                sections.append(entries)
        return cls(*sections)

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


def plan_len(plan: Int32Array) -> int:
    """Return how many integers of a buffer are its plan."""
    header: list[int] = plan[:PLAN_HEADER_LEN].tolist()
    return PLAN_HEADER_LEN + sum(width * header[length] for _, width, length in PLAN_SECTIONS)
