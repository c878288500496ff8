"""What a figure consists of, for writers of vectors and of pixels; lengths in pixels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

PAGE, IDLE, GRID, INK, QUIET = "page", "idle", "grid", "ink", "quiet"
"""Paints that depend on the page, light or dark; every other paint is a `#rrggbb`."""

LIGHT = {PAGE: "#ffffff", IDLE: "#f2f4f7", GRID: "#d0d5dd", INK: "#1d2939", QUIET: "#5b6577"}
DARK = {PAGE: "#0d1117", IDLE: "#1c2128", GRID: "#373e47", INK: "#d0d7de", QUIET: "#9198a1"}


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Boxes:
    """Rectangles of one paint."""

    boxes: Sequence[Box]
    paint: str
    pattern: str = ""
    """`hatch` or `stripe` over the paint, or none."""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text; y is its base line."""

    x: float
    y: float
    words: str
    paint: str = INK
    size: int = 13
    is_bold: bool = False
    anchor: str = "start"
    """`start`, `middle` or `end`."""


@dataclass(frozen=True, slots=True)
class Dots:
    """Discs of one paint."""

    centres: Sequence[tuple[float, float]]
    radius: float
    paint: str


@dataclass(frozen=True, slots=True)
class Crosses:
    """Diagonal crosses on a light edge, so that they are seen on every colour."""

    centres: Sequence[tuple[float, float]]
    radius: float
    paint: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    points: Sequence[tuple[float, float]]
    paint: str
    width: float = 1.5
    dashes: str = ""
    """Lengths of dashes and gaps, with a space between them."""


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon."""

    points: Sequence[tuple[float, float]]
    paint: str


@dataclass(frozen=True, slots=True)
class Group:
    """Shapes with one explanation."""

    title: str
    shapes: "Sequence[Shape]"


@dataclass(frozen=True, slots=True)
class Clip:
    """Shapes that an animation uncovers from left to right."""

    box: Box
    shapes: "Sequence[Shape]"


Shape = Boxes | Text | Dots | Crosses | Line | Area | Group | Clip


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and its size."""

    width: float
    height: float
    title: str
    shapes: Sequence[Shape]


def text_width(words: str, size: int) -> float:
    """Return about how wide a text is: fonts differ, so it is a little too much."""
    return 0.6 * size * len(words)
