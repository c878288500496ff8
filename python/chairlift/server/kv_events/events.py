"""Events of the prefix cache as values, from those of the core."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chairlift import _core


class Stored(NamedTuple):
    """Blocks that follow each other are in the cache."""

    handles: list[int]
    """Random names below 2^63, that hold until the engine restarts."""
    parent: int | None
    """The block before the first; None is the beginning of a prompt."""
    tokens: list[int]
    """The tokens of all blocks, which have equally many."""
    adapter: str | None
    adapter_load: int | None
    """The number of the adapter's load."""


class Removed(NamedTuple):
    """Blocks are in the cache no more."""

    handles: list[int]


class Cleared(NamedTuple):
    """No block is in the cache."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one tenant, of one step or of a snapshot; immutable."""

    number: int
    """Rises by one from batch to batch."""
    time_s: float
    """Since 1970."""
    place: int
    """The tenant's place among those that are reported."""
    is_cleared: bool
    """It begins with `Cleared`."""
    blocks: _core.BlockEvents | None
    adapters: Mapping[int, str]
    """Names by slot."""

    @property
    def num_bytes(self) -> int:
        """Return about how much memory it takes."""
        return 128 + (0 if self.blocks is None else self.blocks.num_bytes)

    def events(self) -> Iterator[Event]:
        """Yield its events; takes time that grows with the tokens: not for the engine's thread."""
        if self.is_cleared:
            yield Cleared()
        if self.blocks is None:
            return
        for handles, parent, (slot, load), tokens in self.blocks.changes(self.place):
            if tokens is None:
                yield Removed(handles)
            elif slot == 0:
                yield Stored(handles, parent, tokens, None, None)
            else:
                yield Stored(handles, parent, tokens, self.adapters.get(slot, str(load)), load)
