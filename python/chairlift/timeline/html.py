"""Timelines as one HTML file: a viewer that zooms, without a network, from a disk."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from chairlift.timeline.axis import Unit
from chairlift.timeline.colours import COLOURS
from chairlift.timeline.lanes import policy_style
from chairlift.timeline.svg import render_svg, style_of
from chairlift.timeline.values import PARTS, Timeline

_STATIC = Path(__file__).parent / "static"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<div id="still">{svg}</div>
<div id="viewer" hidden></div>
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def render_html(timelines: Sequence[Timeline], title: str, *, unit: Unit = Unit.STEP) -> str:
    """Return the viewer of some timelines; without JavaScript it shows their SVG.

    Args:
        timelines: From top to bottom.
        title: Above all of them.
        unit: What the axis counts at first.
    """
    style = (_STATIC / "viewer.css").read_text(encoding="utf-8")
    script = (_STATIC / "viewer.js").read_text(encoding="utf-8")
    styles = " ".join(_hash(text) for text in (style, style_of(animated=False)))
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {styles}; img-src data:"
    return _PAGE.format(
        policy=policy,
        title=escape(title),
        style=style,
        svg=render_svg(timelines, title, unit=unit),
        data=_json(_data(timelines, unit)),
        script=script,
    )


def _hash(text: str) -> str:
    digest = b64encode(sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _json(value: object) -> str:
    # No text of a request can end the element that holds it.
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _data(timelines: Sequence[Timeline], unit: Unit) -> dict[str, Any]:
    return {
        "unit": unit.value,
        "colours": COLOURS,
        "parts": PARTS,
        "timelines": [_timeline(timeline) for timeline in timelines],
    }


def _timeline(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as lists; spans and times are those of the live page's feed."""
    steps = timeline.steps
    first = int(steps.start_ns[0]) if timeline.num_steps else 0
    colour, dashes = policy_style(timeline.name)
    return {
        "name": timeline.name,
        "words": f"{timeline.describe()}; {timeline.describe_time()}",
        "colour": colour,
        "dashes": [int(length) for length in dashes.split()],
        "num_rows": timeline.num_rows,
        "num_blocks": timeline.num_blocks,
        "start_us": ((steps.start_ns - first) // 1000).tolist(),
        "duration_us": (steps.duration_ns // 1000).tolist(),
        "parts_us": (steps.parts_ns // 1000).tolist() if steps.parts_ns.shape[1] else [],
        "num_waiting": steps.num_waiting.tolist(),
        "num_used_blocks": steps.num_used_blocks.tolist(),
        "num_tokens": steps.num_tokens.tolist(),
        "spans": [[*span[:4], int(span.work), *span[5:]] for span in timeline.spans],
        "preempted": [list(lost) for lost in timeline.preemptions],
        "requests": [[request.number, request.label] for request in timeline.requests],
        "gaps": [list(gap) for gap in timeline.gaps],
    }
