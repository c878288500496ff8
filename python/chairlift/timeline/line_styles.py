"""Lines of figures: a colour, dashes and a mark, so that no line is told by its colour alone."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from chairlift.timeline.shapes import QUIET, Area, Crosses, Dots, Line, Shape


class Mark(StrEnum):
    """The form of the mark at a point."""

    DISC = "disc"
    SQUARE = "square"
    DIAMOND = "diamond"
    FALL = "fall"
    PEAK = "peak"
    CROSS = "cross"
    DASH = "dash"


class LineStyle(NamedTuple):
    """How a line is drawn."""

    colour: str
    dashes: str = ""
    """Lengths of dashes and gaps, with a space between them."""
    mark: Mark = Mark.DISC
    width: float = 2.0


# Each is 3:1 at least on the light and on the dark page.
_POLICIES: Final[Mapping[str, LineStyle]] = {
    "no batching": LineStyle("#6b7280", "10 3 2 3", Mark.DASH),
    "padded": LineStyle("#a87900", "4 4", Mark.CROSS),
    "static": LineStyle("#d55e00", "7 3", Mark.DIAMOND),
    "dynamic": LineStyle("#cc79a7", "2 2", Mark.FALL),
    "unchunked": LineStyle("#009e73", "", Mark.DISC),
    "continuous": LineStyle("#0072b2", "", Mark.SQUARE),
    "cached": LineStyle("#7a5af0", "", Mark.PEAK),
}
BOUND: Final = LineStyle(QUIET, "4 4", Mark.DASH)
"""A line that is no result: a bound."""


def policy_style(name: str) -> LineStyle:
    """Return the line of a batching policy, the same on every figure; others are as unchunked."""
    return _POLICIES.get(name, _POLICIES["unchunked"])


def mark_shapes(style: LineStyle, x: float, y: float) -> Iterator[Shape]:
    """Yield the mark of a line at a point."""
    corners = {
        Mark.SQUARE: ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        Mark.DIAMOND: ((0, -5), (5, 0), (0, 5), (-5, 0)),
        Mark.FALL: ((-5, -4), (5, -4), (0, 5)),
        Mark.PEAK: ((-5, 4), (5, 4), (0, -5)),
    }
    if style.mark in corners:
        yield Area([(x + dx, y + dy) for dx, dy in corners[style.mark]], style.colour)
    elif style.mark is Mark.CROSS:
        yield Crosses([(x, y)], 4, style.colour)
    elif style.mark is Mark.DASH:
        yield Line([(x - 5, y), (x + 5, y)], style.colour, 3)
    else:
        yield Dots([(x, y)], 4, style.colour)
