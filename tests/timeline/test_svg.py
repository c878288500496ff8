"""The figure as SVG: complete, readable, and without a hidden end."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from chairlift.timeline.axis import Unit
from chairlift.timeline.builder import TimelineBuilder
from chairlift.timeline.lanes import Lane
from chairlift.timeline.svg import render_svg
from chairlift.timeline.values import Timeline

from tests.timeline.steps import DECODE, FINISH, PREFILL, Row, add, example

SVG = "{http://www.w3.org/2000/svg}"


def parsed(*timelines: Timeline, unit: Unit = Unit.STEP, **options: object) -> ElementTree.Element:
    return ElementTree.fromstring(render_svg(timelines, "three & more", unit=unit, **options))  # type: ignore[arg-type]


def words_of(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def busy(num_requests: int, num_rows: int = 1) -> Timeline:
    """Return rows that are never idle: each request takes three steps."""
    builder = TimelineBuilder("continuous", num_rows)
    for request in range(num_requests):
        for work in (PREFILL, DECODE, FINISH):
            rows: list[Row] = [(r, request * num_rows + r, work, 1, 0) for r in range(num_rows)]
            add(builder, rows)
    return builder.build()


def test_each_run_is_a_group_that_says_what_it_is() -> None:
    titles = [group.findtext(f"{SVG}title") for group in parsed(example()).iter(f"{SVG}g")]
    assert titles == [
        "a long prompt: row 0, steps 0 to 2, 26 tokens computed",
        "a long prompt: row 0, steps 5 to 6, 27 tokens computed",
        "short & <sweet>: row 1, steps 0 to 1, 5 tokens computed",
        "late: row 1, steps 2 to 4, 8 tokens computed",
    ]


def test_wide_steps_are_drawn_one_by_one() -> None:
    group = next(iter(parsed(example()).iter(f"{SVG}g")))
    paths = [path.get("d", "") for path in group.iter(f"{SVG}path")]
    # Two steps of the prompt, one token; a number on top.
    assert [path.count("M") for path in paths[:2]] == [2, 1]


def test_the_marks_of_each_kind_of_work_are_explained() -> None:
    words = words_of(parsed(example()))
    assert {"prompt", "one token", "checks drafts", "last token", "preempted", "idle"} <= {*words}
    assert "preempted" not in words_of(parsed(busy(3)))


@pytest.mark.parametrize("unit", [Unit.STEP, Unit.TIME])
@pytest.mark.parametrize("num_requests", [5, 1000])
def test_no_end_is_hidden_however_many_steps_share_a_column(num_requests: int, unit: Unit) -> None:
    root = parsed(busy(num_requests), unit=unit)
    centres = {(circle.get("cx"), circle.get("cy")) for circle in root.iter(f"{SVG}circle")}
    in_key = 1
    assert len(centres) == num_requests + in_key


def test_the_policies_share_one_axis_that_ends_with_the_longest() -> None:
    root = parsed(busy(40), busy(10))
    rows = [p for p in root.iter(f"{SVG}path") if p.get("class") == "idle"]
    long, short = (float(re.findall(r"h([\d.]+)", row.get("d", ""))[0]) for row in rows[:2])
    assert long == pytest.approx(4 * short)


def test_lanes_show_what_is_known() -> None:
    assert {"waiting", "KV used", "step", "forward"} <= {*words_of(parsed(example()))}
    assert "max 60 %" in words_of(parsed(example()))
    assert "KV used" not in words_of(parsed(busy(3)))
    assert "waiting" not in words_of(parsed(example(), lanes=[Lane.STEP]))


@pytest.mark.parametrize(("step_ms", "words"), [(999, "max 999 ms"), (1250, "max 1.25 s")])
def test_the_longest_step_is_named_without_an_exponent(step_ms: int, words: str) -> None:
    builder = TimelineBuilder("continuous", num_rows=1)
    add(builder, [(0, 1, PREFILL, 1, 0)], duration_ns=step_ms * 1_000_000)
    assert words in words_of(parsed(builder.build()))


def test_rows_beyond_the_figure_are_counted() -> None:
    words = words_of(parsed(busy(2, num_rows=70)))
    assert any("drawn: rows 0 to 63" in line for line in words)


def test_nothing_recorded_is_an_empty_figure() -> None:
    assert "row 1" in words_of(parsed(TimelineBuilder("static", num_rows=2).build()))


def test_an_animation_stands_still_for_those_who_want_it() -> None:
    still, moving = render_svg([example()], ""), render_svg([example()], "", animated=True)
    assert "@keyframes" not in still
    assert "@media (prefers-reduced-motion:reduce){.sweep{animation:none}}" in moving
    assert len(re.findall("<clipPath", moving)) == 1


def test_the_figure_loads_nothing_and_runs_nothing() -> None:
    text = render_svg([example()], "")
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.findall(r"<script|\bon\w+=|\bhref", text)
