"""Texts of `chairlift top`, fitted to a line."""

from collections.abc import Sequence

from chairlift.api.figures import format_value


def fitted(words: Sequence[str], width: int, between: str = ", ") -> str:
    """Join the first words that fit in a width; the first is always included."""
    text = words[0] if words else ""
    for number in range(2, len(words) + 1):
        longer = between.join(words[:number])
        if len(longer) > width:
            break
        text = longer
    return text


def shown(seconds: float) -> str:
    """Return a duration with three digits and its unit."""
    return format_value("_s", seconds)
