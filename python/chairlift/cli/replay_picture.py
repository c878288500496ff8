"""The first steps of a replay as a picture: the request in each row."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType

from chairlift.cli.picture import Cell, Work, draw, render_terminal
from chairlift.core.plan import PlanView
from chairlift.core.step_rows import RowWork, StepRows

_MAX_STEPS = 10_000
_WORK = {
    RowWork.PREFILL: Work.PREFILL,
    RowWork.DECODE: Work.DECODE,
    RowWork.VERIFY: Work.VERIFY,
}


class FirstSteps:
    """Notes the first steps of a replay; `note` is its `on_step`."""

    def __init__(self, tenants: Sequence[int]) -> None:
        """Start with no step.

        Args:
            tenants: Tenant of each request of the trace; colours show tenants if there are several.
        """
        self._tenants = tenants
        self._num_steps = 0
        self._cells: list[Cell] = []
        self._preempted: list[tuple[int, str]] = []

    def note(
        self, plan: PlanView, indices: NDArray[np.int64], done: StepRows, preempted: Sequence[int]
    ) -> None:
        """Note a step that ended.

        Args:
            plan: What it computed.
            indices: The requests of its rows, as indices in the trace.
            done: What its rows did.
            preempted: The requests that lost a row before it, as indices in the trace.
        """
        if self._num_steps == _MAX_STEPS:
            return
        self._num_steps += 1
        step = self._num_steps
        columns = (plan.rows, indices, plan.sampled(), done.work, done.finished)
        for row, index, sampled, work, finished in zip(*(c.tolist() for c in columns), strict=True):
            mark = Work.FINISH if finished else _WORK[work]
            self._cells.append(Cell(step, row, str(index), mark, sampled))
        self._preempted += [(step, str(index)) for index in preempted]

    def picture(self, num_steps: int, width: int) -> RenderableType:
        """Draw the first steps in a number of columns; rows that were never used are left out."""
        cells = [cell for cell in self._cells if cell.step <= num_steps]
        seen = sorted({int(cell.request_id) for cell in cells})
        is_shared = len(set(self._tenants)) > 1
        picture = draw(
            cells,
            {str(index): str(index + 1) for index in seen},
            1 + max((cell.row for cell in cells), default=0),
            preempted=[(step, lost) for step, lost in self._preempted if step <= num_steps],
            numbers={str(index): self._tenants[index] if is_shared else index for index in seen},
        )
        return render_terminal(picture, width)
