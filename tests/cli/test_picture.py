"""The picture of recorded steps: two rows, three requests, one of them preempted."""

import xml.etree.ElementTree as ElementTree

import pytest
from chairlift.cli.picture import Cell, Picture, RowSpan, Work, draw, render_terminal
from chairlift.cli.picture_svg import render_svg
from rich.console import Console

SVG = "{http://www.w3.org/2000/svg}"
LABELS = {"a": "a long prompt", "b": "short & <sweet>", "c": "late"}
PREFILL, DECODE, VERIFY = Work.PREFILL, Work.DECODE, Work.VERIFY
FINISH, PREEMPTED = Work.FINISH, Work.PREEMPTED


def cells() -> list[Cell]:
    """Step 12 did not run; the requests of others have no label."""
    return [
        Cell(10, 0, "a", PREFILL, sampled=False),
        Cell(10, 1, "b", PREFILL, sampled=True),
        Cell(11, 0, "a", PREFILL, sampled=True),
        Cell(11, 1, "b", FINISH, sampled=True),
        Cell(13, 0, "a", DECODE, sampled=True),
        Cell(13, 1, "c", PREFILL, sampled=True),
        Cell(14, 1, "c", VERIFY, sampled=True),
        Cell(15, 1, "c", FINISH, sampled=True),
        Cell(15, 0, "unlabelled", DECODE, sampled=True),
        # Computed again after it lost its row.
        Cell(16, 0, "a", PREFILL, sampled=True),
        Cell(17, 0, "a", FINISH, sampled=True),
    ]


@pytest.fixture
def picture() -> Picture:
    return draw(reversed(cells()), LABELS, num_rows=2, preempted=[(14, "a")])


def test_runs_are_stretches_of_one_request_in_one_row(picture: Picture) -> None:
    assert picture.num_steps == 7
    assert picture.runs == (
        RowSpan(0, "a", 0, (PREFILL, PREFILL, PREEMPTED)),
        RowSpan(0, "a", 5, (PREFILL, FINISH)),
        RowSpan(1, "b", 0, (PREFILL, FINISH)),
        RowSpan(1, "c", 2, (PREFILL, VERIFY, FINISH)),
    )


def test_a_preempted_answer_marks_its_row_and_not_those_of_the_other_answers() -> None:
    first = [Cell(1, row, "a", DECODE, sampled=True) for row in (0, 1, 2)]
    later = [Cell(2, 0, "a", FINISH, sampled=True), Cell(2, 2, "a", DECODE, sampled=True)]
    last = [Cell(3, 2, "a", FINISH, sampled=True), Cell(3, 1, "a", FINISH, sampled=True)]
    drawn = draw([*first, *later, *last], LABELS, num_rows=3, preempted=[(2, "a")])
    assert drawn.runs == (
        RowSpan(0, "a", 0, (DECODE, FINISH)),
        RowSpan(1, "a", 0, (PREEMPTED,)),
        RowSpan(1, "a", 2, (FINISH,)),
        RowSpan(2, "a", 0, (DECODE, DECODE, FINISH)),
    )


def test_utilization_is_used_cells_over_cells(picture: Picture) -> None:
    assert picture.utilization == pytest.approx(10 / 14)


def test_nothing_recorded_is_an_empty_picture() -> None:
    empty = draw([], LABELS, num_rows=2)
    assert (empty.num_steps, empty.runs, empty.utilization) == (0, (), 0.0)
    ElementTree.fromstring(render_svg(empty, "nothing"))
    assert "row 1" in text_of(empty, 80)


def text_of(picture: Picture, width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(render_terminal(picture, width))
    return capture.get()


def test_terminal_shows_rows_numbers_and_ends(picture: Picture) -> None:
    rows = text_of(picture, 80).splitlines()[:2]
    assert rows == ["row 0 1╱\N{MULTIPLICATION SIGN}··1●", "row 1 2●3═●··"]


@pytest.mark.parametrize("num_steps", [5, 60, 1000])
def test_terminal_picture_fits_and_keeps_the_end(num_steps: int) -> None:
    long = [Cell(step, 0, "a", DECODE, sampled=True) for step in range(num_steps - 1)]
    long.append(Cell(num_steps, 0, "a", FINISH, sampled=True))
    row = text_of(draw(long, LABELS, num_rows=1), 60).splitlines()[0]
    assert len(row) <= 60
    assert row.endswith("●")


def test_svg_has_one_rectangle_per_row_and_step(picture: Picture) -> None:
    root = ElementTree.fromstring(render_svg(picture, "three & more"))
    cells_of = [len(group.findall(f"{SVG}rect")) for group in root.iter(f"{SVG}g")]
    assert cells_of == [3, 2, 2, 3]
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"three & more", "short & <sweet>", "row 0", "row 1"} <= set(words)
    assert any("cross: preempted" in (text or "") for text in words)
