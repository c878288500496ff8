"""How a rank meets the others amid a layer, where it needs what all of them computed."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from chairlift.kernels import Kernels


class Gather(Protocol):
    """What puts the parts of all ranks side by side; see `_core.RankGroup.gather`."""

    def gather(self, x: Tensor, out: Tensor, widths: list[int]) -> None:
        """Write `out` `[T, sum(widths)]` from the `x` `[T, widths[rank]]` of all ranks."""

    def scratch(self, num_numbers: int, dtype: torch.dtype, *, is_input: bool) -> Tensor:
        """Return memory `[num_numbers]`, which the next layer writes over."""


def scratch(gather: Gather, rows: int, width: int, dtype: torch.dtype, *, is_input: bool) -> Tensor:
    """Return memory `[rows, width]`, which the next layer writes over."""
    return gather.scratch(rows * width, dtype, is_input=is_input).view(rows, width)


class WholeRows:
    """Rows of which each rank has some columns, and that an operation needs whole."""

    def __init__(self, gather: Gather, widths: list[int], columns: slice, kernels: Kernels) -> None:
        """Take what says where the columns of each rank are.

        Args:
            gather: Meets the other ranks.
            widths: Columns of each rank.
            columns: Those of this rank.
            kernels: Copy them.
        """
        self._gather = gather
        self._widths = widths
        self._columns = columns
        self._kernels = kernels

    def change(self, part: Tensor, operation: Callable[[Tensor], None]) -> None:
        """Compute an operation on whole rows, and write the columns of this rank to `part`.

        Args:
            part: `[T, widths[rank]]`; rows may be strided.
            operation: Changes rows `[T, sum(widths)]` in place.
        """
        whole = self.of(part, is_input=True)
        operation(whole)
        every = torch.arange(len(part), dtype=torch.int32, device=part.device)
        self._kernels.select_rows(whole[:, self._columns], every, part)

    def of(self, part: Tensor, *, is_input: bool) -> Tensor:
        """Return the whole rows `[T, sum(widths)]`; see `change`, and `Gather.scratch`."""
        width = sum(self._widths)
        whole = scratch(self._gather, len(part), width, part.dtype, is_input=is_input)
        self._gather.gather(part, whole, self._widths)
        return whole


class LayerGathers(NamedTuple):
    """What a layer needs whole amid its mixer; None where this rank has all that it needs."""

    queries: WholeRows | None = None
    """Where one norm is over all heads."""
    keys: WholeRows | None = None
    mixed: WholeRows | None = None
    """Results of heads with a state, where ranks share a group that is normed."""
