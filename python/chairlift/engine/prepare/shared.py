"""What several requests of one call have in common, computed once."""

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Shared(Generic[_T]):
    """Values that belong to objects, each kept as long as its object; any thread may use it.

    The prompts of a body share one `Sampling` and one `Stopping`: what these cost is paid once, not
    for each prompt. An object of equal value is another one, so that no tenant learns from a fast
    answer what another has asked for.
    """

    def __init__(self) -> None:
        """Start without values."""
        self._by_id: dict[int, tuple[weakref.ref[object], _T]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def of(self, owner: object, compute: Callable[[], _T]) -> _T:
        """Return the value of an object; raise what computing it raises."""
        key = id(owner)
        known = self._by_id.get(key)
        if known is not None and known[0]() is owner:
            return known[1]
        value = compute()
        self._by_id[key] = (weakref.ref(owner, lambda ref: self._forget(key, ref)), value)
        return value

    def _forget(self, key: int, owner: weakref.ref[object]) -> None:
        known = self._by_id.get(key)
        if known is not None and known[0] is owner:
            del self._by_id[key]
