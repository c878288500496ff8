"""How much memory values take that a client sent, by a walk that is linear in them and bounded."""

import sys
from collections.abc import Iterable, Mapping
from itertools import chain
from types import NoneType
from typing import Any, Final, NamedTuple

_SINGLE: Final = frozenset((str, int, float, bool, NoneType))
"""Types that hold no others; that of a mapping is found out last, since that takes longest."""


class Size(NamedTuple):
    """The size of values with all that they hold."""

    num_characters: int
    """About, of their JSON text."""
    num_bytes: int
    """About, in memory."""


def size(values: list[Any], limit: int) -> Size:
    """Return the size of values that JSON can hold; the walk ends behind `limit` characters.

    A value that holds itself has more characters than any bound.
    """
    num_characters = num_bytes = 0
    # Level by level: a list of small lists costs no more than one long list.
    level = values
    while level and num_characters <= limit:
        # Each has a digit or a quote at least, and a comma or a bracket.
        num_characters += 2 * len(level)
        num_characters += sum(len(item) for item in level if type(item) is str)
        num_bytes += sum(map(memory, level))
        parts = [item for item in level if type(item) not in _SINGLE]
        level = list(chain.from_iterable(map(_inner, parts)))
    return Size(num_characters, num_bytes)


memory = sys.getsizeof
"""Returns the bytes of one value without those that it holds; a character takes one to four."""


def _inner(part: object) -> Iterable[Any]:
    if isinstance(part, list | tuple):
        return part
    if isinstance(part, dict | Mapping):
        return chain(part.keys(), part.values())
    return ()
