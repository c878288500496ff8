"""The request in each row of some steps, as spans of consecutive steps."""

from collections.abc import Iterable
from typing import Final

from chairlift.core.step_rows import RowWork
from chairlift.engine.step import StepRecord

LETTERS: Final = {RowWork.PREFILL: "p", RowWork.DECODE: "d", RowWork.VERIFY: "v"}
FINISH: Final = "f"
PREEMPTED: Final = "x"

Span = tuple[int, int, int, str]
"""Row, first step from 0 on, number of the request from 1 on, a letter for each step."""


def spans_of(records: Iterable[StepRecord]) -> list[Span]:
    """Return what each row did; requests are numbered in the order in which they appear."""
    numbers: dict[int, int] = {}
    running: dict[int, tuple[int, int, list[str]]] = {}
    spans: list[Span] = []

    def close(row: int) -> None:
        first, request_id, work = running.pop(row)
        spans.append((row, first, numbers[request_id], "".join(work)))

    for step, record in enumerate(records):
        _mark_preempted(running, record.done.preempted)
        rows, done = record.row_numbers.tolist(), record.done
        request_ids = record.request_ids.tolist()
        for row in running.keys() - set(rows):
            close(row)
        columns = (rows, request_ids, done.work.tolist(), done.finished.tolist())
        for row, request_id, work, finished in zip(*columns, strict=True):
            numbers.setdefault(request_id, len(numbers) + 1)
            if row in running and running[row][1] != request_id:
                close(row)
            span = running.setdefault(row, (step, request_id, []))
            span[2].append(FINISH if finished else LETTERS[RowWork(work)])
    for row in list(running):
        close(row)
    return sorted(spans)


def _mark_preempted(
    running: dict[int, tuple[int, int, list[str]]], preempted: Iterable[int]
) -> None:
    """Mark the last step of rows that lost their request."""
    for lost in preempted:
        for _, request_id, work in running.values():
            if request_id == lost:
                work[-1] = PREEMPTED
