"""Frames from records of steps: spans, bands, sums, and what a slow reader misses."""

import json

import numpy as np
from chairlift.core.step_rows import RowWork, StepRows
from chairlift.engine.step import StepRecord, StepTimes
from chairlift.server.page.frame import Frame
from chairlift.server.page.spans import DECODE, LAST, PREFILL, VERIFY, Cells, spans_of
from chairlift.server.page.step_history import MAX_CELLS, StepHistory
from chairlift.server.page.subscriber import MAX_FRAMES, Subscriber

WORK = {"p": RowWork.PREFILL, "d": RowWork.DECODE, "v": RowWork.VERIFY, "D": RowWork.DECODE}
"""Letter of a cell's work; a capital letter ends its row."""


def step(*cells, preempted=(), number=1):
    """A record of cells (row, request, work, tokens, accepted)."""
    rows, requests, works, tokens, accepted = zip(*cells, strict=True) if cells else ((),) * 5
    done = StepRows(
        work=np.array([WORK[work] for work in works], dtype=np.int32),
        num_drafts=np.array(accepted, dtype=np.int32),
        num_accepted=np.array(accepted, dtype=np.int32),
        finished=np.array([work.isupper() for work in works], dtype=np.bool_),
        preempted=list(preempted),
    )
    return StepRecord(
        step=number,
        started_ns=number * 1_000_000,
        duration_s=0.001,
        times=StepTimes(0, 0, 0.001, 0, 0),
        num_waiting=0,
        row_numbers=np.array(rows, dtype=np.int32),
        request_ids=np.array(requests, dtype=np.int64),
        num_tokens=np.array(tokens, dtype=np.int32),
        sampled=np.array([work != "p" for work in works], dtype=np.bool_),
        done=done,
    )


def spans(*records, first=100, numbers=lambda ids: ids):
    return spans_of(Cells.of(records), first, numbers)


def test_consecutive_cells_of_a_row_are_one_span_with_the_sums_of_their_counts():
    found = spans(
        step((0, 7, "p", 16, 0), (2, 9, "d", 1, 0)),
        step((0, 7, "p", 8, 0), (2, 9, "d", 1, 0)),
        step((0, 7, "d", 1, 0), (2, 9, "v", 4, 2)),
        step((0, 7, "D", 1, 0), (2, 9, "v", 3, 1)),
    )
    assert found == [
        [0, 100, 2, 7, PREFILL, 24, 0],
        [0, 102, 1, 7, DECODE, 1, 0],
        [0, 103, 1, 7, LAST, 1, 0],
        [2, 100, 2, 9, DECODE, 2, 0],
        [2, 102, 2, 9, VERIFY, 7, 3],
    ]


def test_a_gap_and_another_request_begin_another_span():
    found = spans(
        step((1, 7, "d", 1, 0)),
        step((0, 8, "d", 1, 0)),
        step((1, 7, "d", 1, 0)),
        step((1, 8, "d", 1, 0)),
    )
    assert [span[:4] for span in found] == [
        [0, 101, 1, 8],
        [1, 100, 1, 7],
        [1, 102, 1, 7],
        [1, 103, 1, 8],
    ]


def test_the_cells_of_spans_are_the_cells_of_the_steps():
    random = np.random.default_rng(5)
    records = []
    for _ in range(40):
        rows = np.flatnonzero(random.random(64) < 0.7)
        cells = [(int(row), int(random.integers(1, 4)), "d", 1, 0) for row in rows]
        records.append(step(*cells))
    covered = {}
    for row, first, num, request, *_ in spans(*records, first=0):
        covered |= {(row, first + i): request for i in range(num)}
    assert covered == {
        (row, number): request
        for number, record in enumerate(records)
        for row, request, _, _ in record.rows
    }


def test_steps_without_rows_and_no_cells_at_all_have_sums_of_zero():
    cells = Cells.of([step(), step((3, 1, "p", 9, 0)), step()])
    assert cells.sums(3) == ([0, 9, 0], [0, 0, 0])
    assert spans_of(cells.of_rows(range(2)), 0, list) == []


def test_bands_count_every_row_and_step_once():
    cells = Cells.of([step((0, 1, "p", 9, 0), (4095, 2, "d", 1, 0)), step((4095, 2, "d", 1, 0))])
    bands = cells.bands(2, 4096)
    assert len(bands) == 64
    assert (bands[0], bands[1], bands[63]) == ([1, 0, 127], [0, 0, 128], [0, 2, 126])


def test_a_preempted_request_is_shown_in_the_row_that_it_had():
    history = StepHistory(4)
    history.add(step((0, 7, "d", 1, 0), (3, 9, "d", 1, 0)))
    history.add(step((0, 7, "d", 1, 0), preempted=[9, 55]))
    kept, first = history.since(0)
    assert (first, kept[1].preempted) == (0, [(3, 9), (-1, 55)])


def test_a_history_is_bounded_and_says_where_it_begins():
    history = StepHistory(4096)
    full = step(*[(row, 1, "d", 1, 0) for row in range(4096)])
    for _ in range(MAX_CELLS // 4096 + 3):
        history.add(full)
    kept, first = history.since(1)
    assert (len(kept), first) == (MAX_CELLS // 4096, 3)
    history.forget(history.end)
    assert history.since(0) == ([], history.end)


def frame(number):
    body = {"n": number, "start_us": [0, 1]}
    return Frame(body, new=[[number, "h", "r"]], known=[[1, "a", "x"], [number, "h", "r"]])


def decoded(data):
    return [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data")]


def test_a_reader_that_misses_frames_learns_how_many_steps_and_all_names():
    reader = Subscriber()
    reader.add_frame(frame(1))
    (first,) = decoded(reader.take())
    assert (first["n"], first["num_dropped"], len(first["new"])) == (1, 0, 2)
    for number in range(2, 4 + MAX_FRAMES):
        reader.add_frame(frame(number))
    after, last = decoded(reader.take())
    assert (after["n"], after["num_dropped"], len(after["new"])) == (4, 4, 2)
    assert (last["n"], last["num_dropped"], len(last["new"])) == (5, 0, 1)
    assert reader.take() == b""


def test_an_unsent_panel_gives_way_to_the_next_of_its_name():
    reader = Subscriber()
    for number in range(100):
        reader.add_panel("load", b"event: load\ndata: %d\n\n" % number)
    assert reader.take() == b"event: load\ndata: 99\n\n"
