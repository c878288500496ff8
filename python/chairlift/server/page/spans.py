"""What rows did in a few steps, as spans: consecutive steps of one row, request and kind of work.

A batch of 64 rows that decode has 1,280 cells in 20 steps and 64 spans. Everything that grows with
cells is numpy's.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift.core.step_rows import RowWork

if TYPE_CHECKING:
    from chairlift.engine.step import StepRecord

NUM_BANDS: Final = 64

PREFILL, DECODE, LAST, VERIFY = range(4)
"""Kinds of work of a span; the last token of a decode has its own, for it ends the request."""

_KINDS: Final = np.zeros(len(RowWork), dtype=np.int64)
_KINDS[[RowWork.PREFILL, RowWork.DECODE, RowWork.VERIFY]] = PREFILL, DECODE, VERIFY

Integers = NDArray[np.int64]


class Cells(NamedTuple):
    """The rows of S steps that computed tokens, one after another: N cells."""

    step: Integers
    """`[N]` from 0 on."""
    row: Integers
    """`[N]`"""
    request: Integers
    """`[N]` by the engine's ids."""
    kind: Integers
    """`[N]`"""
    num_tokens: Integers
    """`[N]`"""
    num_accepted: Integers
    """`[N]` drafts that the answers took."""
    sampled: NDArray[np.bool_]
    """`[N]` whether a new token came."""

    @classmethod
    def of(cls, records: "Sequence[StepRecord]") -> "Cells":
        """Put the rows of records one after another."""

        def joined(columns: list[NDArray[np.int32]]) -> Integers:
            return np.concatenate(columns).astype(np.int64)

        kind = _KINDS[joined([record.done.work for record in records])]
        finished = np.concatenate([record.done.finished for record in records])
        kind[finished & (kind != PREFILL)] = LAST
        lengths = [len(record.row_numbers) for record in records]
        return cls(
            step=np.repeat(np.arange(len(records)), lengths),
            row=joined([record.row_numbers for record in records]),
            request=np.concatenate([record.request_ids for record in records]),
            kind=kind,
            num_tokens=joined([record.num_tokens for record in records]),
            num_accepted=joined([record.done.num_accepted for record in records]),
            sampled=np.concatenate([record.sampled for record in records]),
        )

    def of_rows(self, rows: range) -> "Cells":
        """Return the cells of some rows."""
        chosen = (self.row >= rows.start) & (self.row < rows.stop)
        return Cells(
            self.step[chosen],
            self.row[chosen],
            self.request[chosen],
            self.kind[chosen],
            self.num_tokens[chosen],
            self.num_accepted[chosen],
            self.sampled[chosen],
        )

    def sums(self, num_steps: int) -> tuple[list[int], list[int]]:
        """Return the tokens computed by each step, and the tokens that came of it."""
        num_tokens = np.bincount(self.step, self.num_tokens, minlength=num_steps)
        num_sampled = np.bincount(self.step, self.sampled, minlength=num_steps)
        return num_tokens.astype(np.int64).tolist(), num_sampled.astype(np.int64).tolist()

    def bands(self, num_steps: int, num_rows: int) -> list[list[int]]:
        """Return for each of 64 bands of rows how many cells are prefill, decode and idle."""
        band = self.row * NUM_BANDS // num_rows
        counts = np.bincount(2 * band + (self.kind != PREFILL), minlength=2 * NUM_BANDS)
        busy = counts.reshape(NUM_BANDS, 2)
        rows_of_band = np.bincount(np.arange(num_rows) * NUM_BANDS // num_rows)
        idle = rows_of_band * num_steps - busy.sum(axis=1)
        bands: list[list[int]] = np.column_stack((busy, idle)).tolist()
        return bands


def spans_of(
    cells: Cells, first_step: int, numbers: Callable[[list[int]], list[int]]
) -> list[list[int]]:
    """Return the spans of cells, by row and then by step.

    Args:
        cells: At most one of each row and step.
        first_step: Number of the first step.
        numbers: Returns what the feed calls requests, by the engine's ids.

    Returns:
        Of each span: row, first step, steps, request, kind, tokens, accepted drafts.
    """
    if not len(cells.row):
        return []
    order = np.argsort(cells.row, kind="stable")
    step, row, request, kind, num_tokens, num_accepted, _ = (column[order] for column in cells)
    begins = np.ones(len(row), dtype=np.bool_)
    begins[1:] = (row[1:] != row[:-1]) | (step[1:] != step[:-1] + 1)
    begins[1:] |= (request[1:] != request[:-1]) | (kind[1:] != kind[:-1])
    starts = np.flatnonzero(begins)
    different, index = np.unique(request[starts], return_inverse=True)
    columns = (
        row[starts],
        step[starts] + first_step,
        np.diff(np.append(starts, len(row))),
        np.array(numbers(different.tolist()), dtype=np.int64)[index],
        kind[starts],
        np.add.reduceat(num_tokens, starts),
        np.add.reduceat(num_accepted, starts),
    )
    spans: list[list[int]] = np.column_stack(columns).tolist()
    return spans
