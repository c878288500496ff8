"""KV memory as earlier systems reserved it: a request is admitted when all it may need is free.

```text
max   the longest sequence of the model          FasterTransformer, Orca (Max)
pow2  its own length, to the next power of two   Orca (Pow2)
own   its own length, known before               Orca (Oracle); text-generation-inference
none  blocks as it grows                         vLLM, Chairlift
```
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Reserve(StrEnum):
    """What is reserved for a request at its start."""

    MAX = "max"
    POW2 = "pow2"
    EXACT = "own"
    NONE = "none"

    def num_tokens(self, num_prompt: int, num_output: int, max_model_len: int) -> int:
        """Return the tokens to reserve.

        Args:
            num_prompt: Tokens of the prompt.
            num_output: Tokens of the answer.
            max_model_len: Longest sequence of the model.
        """
        length = min(num_prompt + num_output, max_model_len)
        if self is Reserve.MAX:
            return max_model_len
        if self is Reserve.POW2:
            return min(1 << (length - 1).bit_length(), max_model_len)
        return length


class Held(NamedTuple):
    """A request for which there was no room yet."""

    request: int
    """Index in the trace."""
    arrived: int
    """In nanoseconds."""


class ReservedMemory:
    """The reservations of live requests, and those that wait for theirs, in order of arrival.

    Attributes:
        num_used_blocks: Blocks that are reserved.
    """

    def __init__(self, num_tokens: Sequence[int], num_blocks: int, block_size: int) -> None:
        """Start with nothing reserved.

        Args:
            num_tokens: Tokens that each request reserves.
            num_blocks: Blocks of the pool.
            block_size: Tokens of a block.
        """
        self._sizes = [-(-count // block_size) for count in num_tokens]
        self._num_blocks = num_blocks
        self._held: deque[Held] = deque()
        self._live: set[int] = set()
        self.num_used_blocks = 0

    @property
    def num_held(self) -> int:
        """Return how many requests wait for a reservation."""
        return len(self._held)

    def hold(self, index: int, now: int) -> bool:
        """Queue a request; return False if the whole pool is too small for it."""
        if self._sizes[index] > self._num_blocks:
            return False
        self._held.append(Held(index, now))
        return True

    def next(self) -> Held | None:
        """Reserve for the request that waits first, and return it; None if it does not fit yet."""
        if not self._held:
            return None
        size = self._sizes[self._held[0].request]
        if self.num_used_blocks + size > self._num_blocks:
            return None
        held = self._held.popleft()
        self._live.add(held.request)
        self.num_used_blocks += size
        return held

    def release(self, index: int) -> None:
        """Return what an ended request had reserved; nothing if that was done."""
        if index in self._live:
            self._live.remove(index)
            self.num_used_blocks -= self._sizes[index]

    def drop(self, index: int) -> bool:
        """Forget a request that waits; return whether it was waiting."""
        held = next((held for held in self._held if held.request == index), None)
        if held is not None:
            self._held.remove(held)
        return held is not None
