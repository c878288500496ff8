"""The figure as an SVG file for a light and a dark page: no library, no script."""

from collections.abc import Iterator, Sequence
from html import escape

from chairlift.timeline.axis import Unit
from chairlift.timeline.figure import draw_figure
from chairlift.timeline.lanes import ALL_LANES, Lane
from chairlift.timeline.shapes import (
    DARK,
    LIGHT,
    Area,
    Box,
    Boxes,
    Clip,
    Crosses,
    Dots,
    Figure,
    Group,
    Line,
    Shape,
    Text,
)
from chairlift.timeline.values import Timeline

_FONT = "ui-sans-serif, system-ui, 'Helvetica Neue', Arial, sans-serif"
_LOOP_S = 8
_MOTION = f"""
.sweep{{transform-box:fill-box;transform-origin:0 0;animation:sweep {_LOOP_S}s linear infinite}}
@keyframes sweep{{from{{transform:scaleX(0)}}85%,to{{transform:scaleX(1)}}}}
@media (prefers-reduced-motion:reduce){{.sweep{{animation:none}}}}"""


def render_svg(
    timelines: Sequence[Timeline],
    title: str,
    *,
    unit: Unit = Unit.STEP,
    lanes: Sequence[Lane] = ALL_LANES,
    animated: bool = False,
) -> str:
    """Return the figure of timelines as one SVG document; see `draw_figure`.

    Args:
        timelines: From top to bottom.
        title: Above all of them.
        unit: What the axis counts.
        lanes: Below the rows.
        animated: Uncover the rows from left to right, again and again, unless the reader asked
            for reduced motion.
    """
    return svg_of(draw_figure(timelines, title, unit=unit, lanes=lanes), animated=animated)


def svg_of(figure: Figure, *, animated: bool = False) -> str:
    """Return a figure as one SVG document."""
    writer = _Writer(animated=animated)
    body = list(writer.shapes(figure.shapes))
    width, height = _number(figure.width), _number(figure.height)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{escape(_FONT)}" role="img">'
    )
    style = f"<style>{style_of(animated=animated)}</style>"
    title = f"<title>{escape(figure.title)}</title>"
    parts = [head, title, style, *writer.definitions(), *body, "</svg>"]
    return "\n".join(parts) + "\n"


def style_of(*, animated: bool) -> str:
    """Return the style sheet of a document, which holds its colours."""
    dark = _palette(DARK)
    return (
        f"{_palette(LIGHT)}\n@media (prefers-color-scheme:dark){{\n{dark}\n}}"
        f"{_MOTION if animated else ''}"
    )


def _palette(colours: dict[str, str]) -> str:
    return "".join(
        f".{name}{{fill:{colour}}}.{name}-line{{stroke:{colour}}}"
        for name, colour in colours.items()
    )


class _Writer:
    """Writes shapes, and notes the patterns and clips that they use."""

    def __init__(self, *, animated: bool) -> None:
        self._animated = animated
        self._patterns: dict[tuple[str, str], str] = {}
        self._clips: list[Box] = []

    def definitions(self) -> Iterator[str]:
        """Yield what the shapes refer to."""
        yield "<defs>"
        for (paint, pattern), name in self._patterns.items():
            yield _pattern(name, paint, pattern)
        for index, box in enumerate(self._clips):
            yield f'<clipPath id="clip{index}"><rect class="sweep" {_box(box)}/></clipPath>'
        yield "</defs>"

    def shapes(self, shapes: Sequence[Shape]) -> Iterator[str]:
        """Yield the elements of some shapes."""
        for shape in shapes:
            yield from self._shape(shape)

    def _shape(self, shape: Shape) -> Iterator[str]:
        match shape:
            case Group():
                yield f"<g><title>{escape(shape.title)}</title>"
                yield from self.shapes(shape.shapes)
                yield "</g>"
            case Clip():
                if self._animated:
                    yield f'<g clip-path="url(#clip{len(self._clips)})">'
                    self._clips.append(shape.box)
                    yield from self.shapes(shape.shapes)
                    yield "</g>"
                else:
                    yield from self.shapes(shape.shapes)
            case Boxes():
                yield self._boxes(shape)
            case Text():
                yield _text(shape)
            case Dots():
                yield from (
                    f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(shape.radius)}" '
                    f"{_fill(shape.paint)}/>"
                    for x, y in shape.centres
                )
            case Crosses():
                yield from _crosses(shape)
            case Line():
                dashes = f' stroke-dasharray="{shape.dashes}"' if shape.dashes else ""
                yield (
                    f'<polyline points="{_points(shape.points)}" fill="none" '
                    f'{_stroke(shape.paint)} stroke-width="{_number(shape.width)}"{dashes}/>'
                )
            case Area():
                yield f'<polygon points="{_points(shape.points)}" {_fill(shape.paint)}/>'

    def _boxes(self, shape: Boxes) -> str:
        fill = _fill(shape.paint)
        if shape.pattern:
            key = shape.paint, shape.pattern
            name = self._patterns.setdefault(key, f"{shape.pattern}{len(self._patterns)}")
            fill = f'fill="url(#{name})"'
        return f'<path d="{_path(shape.boxes)}" {fill}/>'


def _pattern(name: str, paint: str, pattern: str) -> str:
    """Return a definition: lines from corner to corner, or level ones."""
    if pattern == "hatch":
        turn, line = ' patternTransform="rotate(45)"', '<rect width="2" height="6" fill="#fff"'
        line += ' fill-opacity="0.4"/>'
    else:
        turn, line = "", '<rect width="6" height="2" fill="#111" fill-opacity="0.5"/>'
    return (
        f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse"{turn}>'
        f'<rect width="6" height="6" fill="{paint}"/>{line}</pattern>'
    )


def _path(boxes: Sequence[Box]) -> str:
    return "".join(
        f"M{_number(b.x)} {_number(b.y)}h{_number(b.width)}v{_number(b.height)}"
        f"h-{_number(b.width)}z"
        for b in boxes
    )


def _text(shape: Text) -> str:
    weight = ' font-weight="700"' if shape.is_bold else ""
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    return (
        f'<text x="{_number(shape.x)}" y="{_number(shape.y)}" {_fill(shape.paint)} '
        f'font-size="{shape.size}"{weight}{anchor}>{escape(shape.words)}</text>'
    )


def _crosses(shape: Crosses) -> Iterator[str]:
    r = shape.radius
    path = "".join(
        f"M{_number(x - r)} {_number(y - r)}l{_number(2 * r)} {_number(2 * r)}"
        f"M{_number(x - r)} {_number(y + r)}l{_number(2 * r)} -{_number(2 * r)}"
        for x, y in shape.centres
    )
    yield f'<path d="{path}" fill="none" stroke="#fff" stroke-width="3.5"/>'
    yield f'<path d="{path}" fill="none" {_stroke(shape.paint)} stroke-width="1.75"/>'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _box(box: Box) -> str:
    return (
        f'x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.width)}" '
        f'height="{_number(box.height)}"'
    )


def _fill(paint: str) -> str:
    return f'fill="{paint}"' if paint.startswith("#") else f'class="{paint}"'


def _stroke(paint: str) -> str:
    return f'stroke="{paint}"' if paint.startswith("#") else f'class="{paint}-line"'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
