"""The record of one step: who sat in which row, and how long it took."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class StepTimes(NamedTuple):
    """Where the time of a step went, in seconds; the parts add up to the step."""

    schedule_s: float
    """The scheduler spends the budget and writes the plan."""
    inputs_s: float
    """The plan changes the row tables and becomes the inputs of the forward pass."""
    forward_s: float
    """The model, from token ids to logits; what a step that runs again in parts takes more, too."""
    sample_s: float
    """One draw per row that samples."""
    update_s: float
    """The scheduler takes the tokens: text, stops, ends, blocks."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, for `watch_steps` and the picture of the batch; R rows computed tokens."""

    step: int
    """Counts from 1."""
    started_ns: int
    """On the engine's monotonic clock."""
    duration_s: float
    times: StepTimes
    """The same by part."""
    num_waiting: int
    """Requests in the queue after the step."""
    row_numbers: NDArray[np.int32]
    """`[R]` their places in the batch."""
    request_ids: NDArray[np.int64]
    """`[R]`"""
    num_tokens: NDArray[np.int32]
    """`[R]` prompt tokens of a chunk, or 1."""
    sampled: NDArray[np.bool_]
    """`[R]` whether the row gave a new token."""

    @property
    def rows(self) -> list[tuple[int, int, int, bool]]:
        """The same as tuples (row, request_id, num_tokens, sampled)."""
        return list(
            zip(
                self.row_numbers.tolist(),
                self.request_ids.tolist(),
                self.num_tokens.tolist(),
                self.sampled.tolist(),
                strict=True,
            )
        )
