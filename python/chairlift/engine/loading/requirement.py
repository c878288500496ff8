"""What a setting must be where a model is to run."""

from collections.abc import Iterable
from typing import NamedTuple


class Requirement(NamedTuple):
    """A setting and what it must be."""

    setting: str
    expected: str
    got: object
    is_met: bool


def unmet(requirements: Iterable[Requirement], where: str) -> str | None:
    """Return what is wrong with the first setting that is not as it must be; None if all are.

    Args:
        requirements: In the order in which they are checked.
        where: What they hold for, behind what is expected.
    """
    for setting, expected, got, is_met in requirements:
        if not is_met:
            return f"{setting}: expected {expected} {where}, got {got}"
    return None
