"""Colours of requests and policies, which colour-blind readers tell apart on both pages."""

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Those of Okabe and Ito without grey, one per request in order of the numbers. From the seventh
request on the numbers tell."""


def colour_of(number: int) -> str:
    """Return the colour of a request by its number, which counts from 1: `#rrggbb`."""
    return COLOURS[(number - 1) % len(COLOURS)]


def ink(colour: str) -> str:
    """Return the colour of a number on one of `COLOURS`: white on blue only."""
    return "#ffffff" if colour == COLOURS[0] else "#111111"


def shade(colour: str, factor: float) -> str:
    """Return a darker `#rrggbb`: each part times factor."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part * factor):02x}" for part in parts)
