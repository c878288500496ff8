"""Timelines as one HTML file: a viewer that zooms, without a network, from a disk."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from chairlift.timeline.axis import Unit
from chairlift.timeline.colours import COLOURS
from chairlift.timeline.document import render_document
from chairlift.timeline.line_styles import policy_style
from chairlift.timeline.lists import to_lists
from chairlift.timeline.svg import render_svg, style_of
from chairlift.timeline.values import PARTS, Timeline

_STATIC = Path(__file__).parent / "static"


def render_html(timelines: Sequence[Timeline], title: str, *, unit: Unit = Unit.STEP) -> str:
    """Return the viewer of some timelines; without JavaScript it shows their SVG.

    Args:
        timelines: From top to bottom.
        title: Above all of them.
        unit: What the axis counts at first.
    """
    svg = render_svg(timelines, title, unit=unit)
    return render_document(
        title,
        f'<h1>{escape(title)}</h1>\n<div id="still">{svg}</div>\n<div id="viewer" hidden></div>',
        style=(_STATIC / "viewer.css").read_text(encoding="utf-8"),
        script=(_STATIC / "viewer.js").read_text(encoding="utf-8"),
        data={
            "unit": unit.value,
            "colours": COLOURS,
            "parts": PARTS,
            "timelines": [_viewed(timeline) for timeline in timelines],
        },
        inner_styles=[style_of(animated=False)],
    )


def _viewed(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as the viewer takes it: its lists, its words, and its line."""
    style = policy_style(timeline.name)
    return {
        **to_lists(timeline),
        "words": f"{timeline.describe()}; {timeline.describe_time()}",
        "colour": style.colour,
        "dashes": [int(length) for length in style.dashes.split()],
    }
