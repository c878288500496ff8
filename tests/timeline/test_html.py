"""The viewer: one file that loads nothing and says what it may run."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import unescape

from chairlift.timeline.axis import Unit
from chairlift.timeline.builder import TimelineBuilder
from chairlift.timeline.html import render_html
from chairlift.timeline.values import Timeline

from tests.timeline.steps import DECODE, add, example


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    decoded: dict[str, object] = json.loads(found[1])
    return decoded


def test_the_policy_names_every_style_and_script_of_the_page_and_nothing_else() -> None:
    page = render_html([example()], "one")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for name, pattern in (("script-src", "<script>(.*?)</script>"), ("style-src", "<style>(.*?)<")):
        texts = re.findall(pattern, page, re.DOTALL)
        hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in texts]
        assert rules[name].split() == [f"'sha256-{digest}'" for digest in hashes]
    assert not re.findall(r'\bstyle="|\bon\w+="', page)


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = render_html([example()], "one")
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert not re.findall(r"<(?:link|img|iframe)|\bsrc=|\bhref=|innerHTML|@import|\bfetch\(", page)


def test_a_label_cannot_end_the_element_that_holds_it() -> None:
    builder = TimelineBuilder("continuous", num_rows=1)
    builder.name_request(1, "</script><script>alert(1)</script>")
    add(builder, [(0, 1, DECODE, 1, 0)])
    page = render_html([builder.build()], "<b>&")
    assert len(re.findall("<script>", page)) == 1
    assert unescape(re.findall("<h1>(.*?)</h1>", page)[0]) == "<b>&"
    timeline: list[dict[str, object]] = data_of(page)["timelines"]  # type: ignore[assignment]
    assert timeline[0]["requests"] == [[1, "</script><script>alert(1)</script>"]]


def test_without_scripts_the_svg_is_there() -> None:
    page = render_html([example()], "one")
    before_script = page.partition("<script")[0]
    assert '<div id="still"><svg ' in before_script
    assert '<div id="viewer" hidden></div>' in before_script


def test_the_data_are_those_of_the_timeline() -> None:
    timeline = example()
    data = data_of(render_html([timeline, example("static")], "two", unit=Unit.TIME))
    assert data["unit"] == "time"
    first, second = data["timelines"]  # type: ignore[misc]
    assert (first["name"], second["name"]) == ("continuous", "static")
    assert first["spans"] == [[*span] for span in timeline.spans]
    assert first["preempted"] == [[0, 2, 0]]
    assert first["start_us"] == [0, 2000, 4000, 6000, 8000, 10000, 12000]
    assert first["parts_us"][0] == [100, 100, 500, 200, 100]
    assert first["num_used_blocks"] == [0, 2, 4, 6, 8, 10, 12]


def test_a_long_run_is_a_file_of_a_moderate_size() -> None:
    builder = TimelineBuilder("continuous", num_rows=64)
    for step in range(2000):
        add(builder, [(row, 64 * (step // 100) + row, DECODE, 1, 0) for row in range(64)])
    timeline: Timeline = builder.build()
    assert len(render_html([timeline], "long")) < 600_000
