"""Words of `chairlift top`, as many as a line holds."""

from collections.abc import Sequence

from chairlift.cli.bench.report import format_value


def fitted(words: Sequence[str], width: int, between: str = ", ") -> str:
    """Join as many of the words, from the first on, as fit; the first is always there."""
    text = words[0] if words else ""
    for number in range(2, len(words) + 1):
        longer = between.join(words[:number])
        if len(longer) > width:
            break
        text = longer
    return text


def shown(seconds: float) -> str:
    """A duration with three digits and its unit."""
    return format_value("_s", seconds)
