"""Synthetic token ids of requests: equal where block names are equal."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chairlift.replay.trace import Request

VOCAB_SIZE = 2**31 - 1
"""All that an int32 allows, so that synthetic ids do not collide by chance."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def block_token_ids(names: NDArray[np.uint64], block_size: int) -> NDArray[np.int32]:
    """Derive the ids of blocks from their names, `[len(names) * block_size]` (SplitMix64)."""
    counters = np.arange(1, block_size + 1, dtype=np.uint64) * _GOLDEN
    mixed = (names[:, None] + counters).ravel()
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
    mixed ^= mixed >> np.uint64(31)
    token_ids: NDArray[np.int32] = (mixed % np.uint64(VOCAB_SIZE)).astype(np.int32)
    return token_ids


def prompt_token_ids(index: int, request: Request, block_size: int) -> list[int]:
    """Return the prompt of a request; tokens outside named blocks are its index, which is unique.

    Args:
        index: Index of the request in its trace.
        request: With the names of its first full blocks.
        block_size: Tokens per name.
    """
    names = request.blocks[: -(-request.num_prompt // block_size)]
    known: list[int] = block_token_ids(names, block_size)[: request.num_prompt].tolist()
    return known + [index] * (request.num_prompt - len(known))


class AnswerTokens:
    """The tokens of answers.

    Tokens in recorded blocks are the same in later prompts that repeat them, as conversations do;
    any other token is the index of its request.
    """

    def __init__(self, requests: Sequence[Request], block_size: int) -> None:
        self._start = np.zeros(len(requests), dtype=np.int64)
        self._len = np.zeros(len(requests), dtype=np.int64)
        parts = []
        for index, request in enumerate(requests):
            first, offset = divmod(request.num_prompt, block_size)
            if first < len(request.blocks):
                part = block_token_ids(request.blocks[first:], block_size)[offset:]
                self._len[index] = len(part)
                parts.append(part)
        self._start[:] = np.cumsum(self._len) - self._len
        self._tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def at(self, indices: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the next token of each request, given how many it has, `[len(indices)]`."""
        tokens = indices.astype(np.int32)
        if len(self._tokens):
            known = positions < self._len[indices]
            places = self._start[indices[known]] + positions[known]
            tokens[known] = self._tokens[places]
        return tokens
