"""Marks of the picture from the steps of a watched server."""

from collections.abc import Iterator

from chairlift.cli.picture import Work
from chairlift.v1 import server_pb2 as pb

_WORK = {
    pb.ROW_WORK_PREFILL: Work.PREFILL,
    pb.ROW_WORK_DECODE: Work.DECODE,
    pb.ROW_WORK_VERIFY: Work.VERIFY,
}


def watched_cells(step: pb.Step) -> Iterator[tuple[pb.StepRow, Work]]:
    """Yield the rows of a step with their marks; an end counts before the kind of work.

    A kind that only newer servers know is drawn as a decode.
    """
    for row in step.rows:
        yield row, Work.FINISH if row.finished else _WORK.get(row.work, Work.DECODE)
