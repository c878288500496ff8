"""What the rows of a step did, as the core recorded it."""

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from chairlift import _core


class RowWork(IntEnum):
    """What a row computed in a step."""

    PREFILL = 0
    """A chunk of its prompt, or again what a preemption or a failed step lost."""
    DECODE = 1
    """Its last sampled token."""
    VERIFY = 2
    """Its last sampled token and drafts behind it."""


class StepRows(NamedTuple):
    """The step that ended last; R rows computed tokens, in the order of its plan."""

    work: NDArray[np.int32]
    """`[R]` values of `RowWork`."""
    num_drafts: NDArray[np.int32]
    """`[R]` drafts that the row checked."""
    num_accepted: NDArray[np.int32]
    """`[R]` how many of them the answer took."""
    finished: NDArray[np.bool_]
    """`[R]` whether the step gave the row its last token, or failed it."""
    preempted: list[int]
    """Ids of the requests that lost a row before the step, one per answer."""

    @classmethod
    def of(cls, scheduler: "_core.Scheduler") -> "StepRows":
        """Read the record of the step that ended last."""
        packed, preempted = scheduler.last_step()
        columns = np.frombuffer(packed, dtype=np.int32).reshape(-1, 4).T
        work, num_drafts, num_accepted, finished = columns
        return cls(work, num_drafts, num_accepted, finished.astype(np.bool_), preempted)
