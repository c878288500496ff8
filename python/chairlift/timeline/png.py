"""The figure as a PNG file, by matplotlib."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from chairlift.api.errors import ConfigError
from chairlift.timeline.shapes import (
    LIGHT,
    Area,
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PIXELS_PER_UNIT = 2
_UNITS_PER_INCH = 72
"""So that the points of a font are units of the figure."""
_HATCHES = {"hatch": ("/////", "#ffffff"), "stripe": ("-----", "#111111")}


def render_png(figure: Figure, colours: Mapping[str, str] = LIGHT) -> bytes:
    """Return a figure as a PNG file, two pixels for each of its units.

    Args:
        figure: What is drawn.
        colours: Those of the page, light or dark.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        message = "a .png file needs matplotlib: pip install 'chairlift[plot]'; .svg needs nothing"
        raise ConfigError(message) from None
    size = (figure.width / _UNITS_PER_INCH, figure.height / _UNITS_PER_INCH)
    canvas = Canvas(figsize=size, dpi=_UNITS_PER_INCH * _PIXELS_PER_UNIT)
    FigureCanvasAgg(canvas)
    axes = canvas.add_axes((0, 0, 1, 1), xlim=(0, figure.width), ylim=(figure.height, 0))
    axes.set_axis_off()
    _Painter(axes, colours).paint(figure.shapes)
    out = BytesIO()
    canvas.savefig(out, format="png", metadata={"Software": None, "Title": figure.title})
    return out.getvalue()


class _Painter:
    """Puts shapes onto axes, in their order."""

    def __init__(self, axes: "Axes", colours: Mapping[str, str]) -> None:
        self._axes, self._colours = axes, colours
        self._order = 0

    def paint(self, shapes: Sequence[Shape]) -> None:
        """Paint some shapes over those before."""
        for shape in shapes:
            self._order += 1
            match shape:
                case Group() | Clip():
                    self.paint(shape.shapes)
                case Boxes():
                    self._boxes(shape)
                case Text():
                    self._text(shape)
                case Dots():
                    self._marks(shape.centres, "o", 2 * shape.radius, self._colour(shape.paint), 0)
                case Crosses():
                    self._marks(shape.centres, "x", 2 * shape.radius, "#ffffff", 3.5)
                    self._marks(
                        shape.centres, "x", 2 * shape.radius, self._colour(shape.paint), 1.75
                    )
                case Line():
                    self._line(shape)
                case Area():
                    self._area(shape)

    def _boxes(self, shape: Boxes) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        vertices, codes = [], []
        for x, y, width, height in shape.boxes:
            right, bottom = x + width, y + height
            vertices += [(x, y), (right, y), (right, bottom), (x, bottom), (x, y)]
            codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
        more: dict[str, Any] = {"linewidth": 0}
        if shape.pattern:
            hatch, colour = _HATCHES[shape.pattern]
            more |= {"hatch": hatch, "edgecolor": f"{colour}66", "hatch_linewidth": 1.2}
        path = Path(vertices, codes)
        self._axes.add_patch(
            PathPatch(path, facecolor=self._colour(shape.paint), zorder=self._order, **more)
        )

    def _text(self, shape: Text) -> None:
        self._axes.text(
            shape.x,
            shape.y,
            shape.words,
            color=self._colour(shape.paint),
            fontsize=shape.size,
            fontweight="bold" if shape.is_bold else "normal",
            horizontalalignment={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
            verticalalignment="baseline",
            parse_math=False,
            zorder=self._order,
        )

    def _marks(
        self,
        centres: Sequence[tuple[float, float]],
        marker: str,
        size: float,
        colour: str,
        edge: float,
    ) -> None:
        xs, ys = [x for x, _ in centres], [y for _, y in centres]
        self._axes.plot(
            xs,
            ys,
            linestyle="none",
            marker=marker,
            markersize=size,
            color=colour,
            markeredgewidth=edge,
            zorder=self._order,
        )

    def _line(self, shape: Line) -> None:
        xs, ys = [x for x, _ in shape.points], [y for _, y in shape.points]
        (line,) = self._axes.plot(
            xs, ys, color=self._colour(shape.paint), linewidth=shape.width, zorder=self._order
        )
        if shape.dashes:
            # In units of the width of the line.
            line.set_linestyle((0, [float(n) / shape.width for n in shape.dashes.split()]))

    def _area(self, shape: Area) -> None:
        from matplotlib.patches import Polygon

        self._axes.add_patch(
            Polygon(
                shape.points, facecolor=self._colour(shape.paint), linewidth=0, zorder=self._order
            )
        )

    def _colour(self, paint: str) -> str:
        return self._colours.get(paint, paint)
