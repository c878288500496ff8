"""The picture as an SVG file: no library, and it scales in a README."""

from xml.sax.saxutils import escape

from chairlift.cli.picture import Picture, RowSpan, Work, describe_use, ink, shade

_LEFT, _TOP, _RIGHT = 64, 64, 24
_ROW_HEIGHT, _GAP = 34, 6
_LEGEND_LINE = 22
_STYLE = """<style>
.page{fill:#ffffff}.idle{fill:#f2f4f7}.ink{fill:#344054}.quiet{fill:#667085}
@media (prefers-color-scheme:dark){
.page{fill:#0d1117}.idle{fill:#1c2128}.ink{fill:#d0d7de}.quiet{fill:#9198a1}}
</style>"""
_FONT = "ui-sans-serif, system-ui, 'Helvetica Neue', Arial, sans-serif"


def render_svg(picture: Picture, title: str) -> str:
    """Return the figure as one SVG document, for a light and a dark page."""
    step_width = max(4.0, min(24.0, 900 / max(1, picture.num_steps)))
    width = max(560.0, _LEFT + picture.num_steps * step_width + _RIGHT)
    rows_end = _TOP + picture.num_rows * (_ROW_HEIGHT + _GAP)
    height = rows_end + 64 + _LEGEND_LINE * len(picture.labels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="{_FONT}" font-size="13">',
        _STYLE,
        *_hatches(picture),
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" class="page"/>',
        _text(_LEFT, 28, title, size=17, weight=600),
        _text(_LEFT, 47, describe_use(picture), tone="quiet"),
        *_cells(picture, step_width),
        *_axis(picture, step_width, rows_end),
        *_legend(picture, rows_end + 66),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _hatches(picture: Picture) -> list[str]:
    """Return a hatched pattern per request for its prompt, and a striped one for drafts."""
    parts = ["<defs>"]
    for i, request_id in enumerate(picture.labels):
        colour = shade(picture.colour(request_id), 0.72)
        parts.append(
            f'<pattern id="prompt{i}" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{colour}"/>'
            '<rect width="2" height="6" fill="#ffffff" fill-opacity="0.35"/></pattern>'
        )
        colour = picture.colour(request_id)
        parts.append(
            f'<pattern id="drafts{i}" width="6" height="6" patternUnits="userSpaceOnUse">'
            f'<rect width="6" height="6" fill="{colour}"/>'
            f'<rect width="6" height="2" fill="{ink(colour)}" fill-opacity="0.55"/></pattern>'
        )
    return [*parts, "</defs>"]


def _cells(picture: Picture, step_width: float) -> list[str]:
    parts = []
    for row in range(picture.num_rows):
        y = _TOP + row * (_ROW_HEIGHT + _GAP)
        length = picture.num_steps * step_width
        parts.append(_text(_LEFT - 10, y + _ROW_HEIGHT / 2 + 4.5, f"row {row}", anchor="end"))
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_ROW_HEIGHT}" rx="4" '
            'class="idle"/>'
        )
    for run in picture.runs:
        parts += _run(picture, run, step_width)
    return parts


def _run(picture: Picture, run: RowSpan, step_width: float) -> list[str]:
    """Draw consecutive cells: one rectangle per step, so that steps can be counted."""
    y = _TOP + run.row * (_ROW_HEIGHT + _GAP)
    number = picture.number(run.request_id)
    colour = picture.colour(run.request_id)
    label = escape(f"{picture.labels[run.request_id]}: steps {run.first} to ")
    parts = [f"<g><title>{label}{run.first + len(run.work) - 1}</title>"]
    gap = 1.5 if step_width >= 8 else 0.75
    for i, work in enumerate(run.work):
        x = _LEFT + (run.first + i) * step_width
        patterns = {Work.PREFILL: f"url(#prompt{number})", Work.VERIFY: f"url(#drafts{number})"}
        paint = patterns.get(work, colour)
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{step_width - gap:.1f}" height="{_ROW_HEIGHT}" '
            f'rx="2" fill="{paint}"/>'
        )
        if work is Work.FINISH:
            middle, radius = x + (step_width - gap) / 2, min(5.0, step_width / 2 - gap / 2)
            parts.append(
                f'<circle cx="{middle:.1f}" cy="{y + _ROW_HEIGHT / 2}" r="{radius:.1f}" '
                f'fill="{ink(colour)}"/>'
            )
        if work is Work.PREEMPTED:
            parts.append(_cross(x, y, step_width - gap, ink(colour)))
    middle = _LEFT + (run.first + len(run.work) / 2) * step_width
    if len(run.work) * step_width >= 24:
        # As high as the bar, so that no gap between cells crosses the number.
        parts.append(f'<path d="M{middle - 10:.1f} {y}h20v{_ROW_HEIGHT}h-20z" fill="{colour}"/>')
        parts.append(
            _text(
                middle,
                y + _ROW_HEIGHT / 2 + 5,
                str(number + 1),
                fill=ink(colour),
                size=14,
                weight=700,
                anchor="middle",
            )
        )
    return [*parts, "</g>"]


def _cross(x: float, y: float, width: float, colour: str) -> str:
    middle, radius = y + _ROW_HEIGHT / 2, width / 2 - 1
    left, right = x + width / 2 - radius, x + width / 2 + radius
    up, down = middle - radius, middle + radius
    return (
        f'<path d="M{left:.1f} {up:.1f}L{right:.1f} {down:.1f}M{left:.1f} {down:.1f}'
        f'L{right:.1f} {up:.1f}" stroke="{colour}" stroke-width="2"/>'
    )


def _axis(picture: Picture, step_width: float, y: float) -> list[str]:
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if n * step_width >= 40)
    marks = [
        _text(_LEFT + (step + 0.5) * step_width, y + 12, str(step), tone="quiet", anchor="middle")
        for step in range(0, picture.num_steps, every)
    ]
    return [*marks, _text(_LEFT - 10, y + 12, "step", tone="quiet", anchor="end")]


def _legend(picture: Picture, y: float) -> list[str]:
    parts = []
    for i, (request_id, label) in enumerate(picture.labels.items()):
        middle = y + i * _LEGEND_LINE
        parts.append(
            f'<circle cx="{_LEFT + 9}" cy="{middle - 4.5}" r="9" '
            f'fill="{picture.colour(request_id)}"/>'
        )
        parts.append(
            _text(
                _LEFT + 9,
                middle,
                str(i + 1),
                fill=ink(picture.colour(request_id)),
                weight=700,
                anchor="middle",
            )
        )
        parts.append(_text(_LEFT + 28, middle, label))
    words = "hatched: prompt · plain: one token · striped: checks drafts · dot: the last token"
    if any(Work.PREEMPTED in run.work for run in picture.runs):
        words += " · cross: preempted"
    parts.append(_text(_LEFT, y - 30, words, tone="quiet", size=12))
    return parts


def _text(
    x: float,
    y: float,
    words: str,
    *,
    tone: str = "ink",
    fill: str | None = None,
    size: int = 13,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    paint = f'class="{tone}"' if fill is None else f'fill="{fill}"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {paint} font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )
