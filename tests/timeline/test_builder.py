"""Steps become spans: what a row did without a break, for one request."""

import pytest
from chairlift.timeline.builder import TimelineBuilder
from chairlift.timeline.values import Gap, Preemption, Span

from tests.timeline.steps import DECODE, FINISH, PREFILL, VERIFY, A, B, add, example


def test_a_span_is_one_kind_of_work_of_one_request_in_consecutive_steps() -> None:
    assert example().spans == (
        Span(0, 0, 2, 0, PREFILL, 25, 0),
        Span(0, 2, 1, 0, DECODE, 1, 0),
        Span(0, 5, 1, 0, PREFILL, 26, 0),
        Span(0, 6, 1, 0, FINISH, 1, 0),
        Span(1, 0, 1, 1, PREFILL, 4, 0),
        Span(1, 1, 1, 1, FINISH, 1, 0),
        Span(1, 2, 1, 2, PREFILL, 3, 0),
        Span(1, 3, 1, 2, VERIFY, 4, 2),
        Span(1, 4, 1, 2, FINISH, 1, 0),
    )


def test_a_preemption_names_the_last_step_in_which_the_request_had_the_row() -> None:
    assert example().preemptions == (Preemption(0, 2, 0),)


def test_runs_join_the_spans_of_a_request_that_follow_one_another() -> None:
    runs = [(run.row, run.request, run.first_step, run.end) for run in example().runs()]
    assert runs == [(0, 0, 0, 3), (0, 0, 5, 7), (1, 1, 0, 2), (1, 2, 2, 5)]


def test_utilization_is_used_cells_over_cells() -> None:
    assert example().utilization == pytest.approx(10 / 14)


def test_requests_are_in_the_order_of_their_numbers() -> None:
    assert [(r.number, r.label) for r in example().requests] == [
        (1, "a long prompt"),
        (2, "short & <sweet>"),
        (3, "late"),
    ]


def test_a_preempted_answer_marks_its_row_and_not_those_of_the_other_answers() -> None:
    builder = TimelineBuilder("", num_rows=3)
    add(builder, [(row, A, DECODE, 1, 0) for row in (0, 1, 2)])
    add(builder, [(0, A, FINISH, 1, 0), (2, A, DECODE, 1, 0)], preempted=[A])
    add(builder, [(2, A, FINISH, 1, 0), (1, A, FINISH, 1, 0)])
    timeline = builder.build()
    assert timeline.preemptions == (Preemption(1, 0, 0),)
    assert [(run.row, run.first_step, run.end) for run in timeline.runs()] == [
        (0, 0, 2),
        (1, 0, 1),
        (1, 2, 3),
        (2, 0, 3),
    ]


def test_a_row_that_another_request_takes_in_the_same_step_was_lost_before() -> None:
    builder = TimelineBuilder("", num_rows=1)
    add(builder, [(0, A, DECODE, 1, 0)])
    add(builder, [(0, B, PREFILL, 1, 0)], preempted=[A])
    assert builder.build().preemptions == (Preemption(0, 0, 0),)


def test_no_span_goes_on_over_steps_that_were_not_recorded() -> None:
    builder = TimelineBuilder("", num_rows=1)
    add(builder, [(0, A, DECODE, 1, 0)])
    builder.add_gap(5)
    add(builder, [(0, A, DECODE, 1, 0)])
    add(builder, [(0, A, DECODE, 1, 0)])
    timeline = builder.build()
    assert timeline.gaps == (Gap(1, 5),)
    assert [(span.first_step, span.num_steps) for span in timeline.spans] == [(0, 1), (1, 2)]


def test_nothing_recorded_is_an_empty_timeline() -> None:
    empty = TimelineBuilder("", num_rows=2).build()
    assert (empty.num_steps, empty.spans, empty.utilization, empty.seconds) == (0, (), 0.0, 0.0)


def test_rows_that_were_never_used_can_be_left_out() -> None:
    builder = TimelineBuilder("", num_rows=8)
    add(builder, [(1, A, DECODE, 1, 0)])
    assert builder.build(only_used_rows=True).num_rows == 2
