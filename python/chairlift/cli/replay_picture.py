"""The first steps of a replay as a picture: the request in each row."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType

from chairlift.cli.picture import Cell, draw, render_terminal
from chairlift.core.plan import PlanView

_MOST_STEPS = 10_000


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

    def note(self, plan: PlanView, indices: NDArray[np.int64]) -> None:
        """Note a step: the plan, and the requests of its rows as indices in the trace."""
        if self._num_steps == _MOST_STEPS:
            return
        self._num_steps += 1
        columns = (plan.rows, indices, plan.num_tokens, plan.sampled())
        for row, index, num_tokens, sampled in zip(*(c.tolist() for c in columns), strict=True):
            self._cells.append(Cell(self._num_steps, row, str(index), num_tokens, sampled))

    def picture(self, num_steps: int, width: int) -> RenderableType:
        """Draw the first steps in a number of columns; rows that were never used are left out."""
        cells = [cell for cell in self._cells if cell.step <= num_steps]
        later = {cell.request_id for cell in self._cells if cell.step > num_steps}
        seen = sorted({int(cell.request_id) for cell in cells})
        is_shared = len(set(self._tenants)) > 1
        picture = draw(
            cells,
            {str(index): str(index + 1) for index in seen},
            1 + max((cell.row for cell in cells), default=0),
            running=later,
            numbers={str(index): self._tenants[index] if is_shared else index for index in seen},
        )
        return render_terminal(picture, width)
