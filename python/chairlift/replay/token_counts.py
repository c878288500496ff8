"""Counts the tokens of requests, and notes their times."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

NEVER: Final = -1

Int64Array = NDArray[np.int64]


class TokenCounts:
    """Tokens and times of every request, by index, `[num_requests]`; times in nanoseconds.

    Steps in which the same requests decode again are counted together, when something changes:
    they are most of the steps, and each costs no array operation.

    Attributes:
        target: Tokens of the complete answer.
        first_token: Time of the first token, or NEVER.
        ended: Time of the request's end, or NEVER.
    """

    def __init__(self, num_requests: int) -> None:
        self.target = np.zeros(num_requests, dtype=np.int64)
        self.first_token = np.full(num_requests, NEVER, dtype=np.int64)
        self.ended = np.full(num_requests, NEVER, dtype=np.int64)
        self._num_output = np.zeros(num_requests, dtype=np.int64)
        self._last_token = np.full(num_requests, NEVER, dtype=np.int64)
        self._gaps: list[Int64Array] = []
        # Gaps of repeated steps, and how many requests had each.
        self._even_gaps: list[int] = []
        self._even_counts: list[int] = []
        # The last step, and how often it has been repeated since the arrays were up to date.
        self._indices = np.zeros(0, dtype=np.int64)
        self._now = 0
        self._num_repeats = 0
        self._num_left = 0

    def num_output(self, indices: Int64Array, *, is_repeat: bool) -> Int64Array:
        """Return the tokens so far.

        Args:
            indices: Indices of the requests.
            is_repeat: Whether the requests are those of the last `count`.
        """
        if not is_repeat:
            # The repeats are of the requests of the last step alone.
            self._settle()
        return self._num_output[indices] + self._num_repeats

    def count(self, indices: Int64Array, now: int, *, is_repeat: bool) -> int:
        """Count one new token for each request.

        Args:
            indices: Indices of the requests.
            now: Time of the tokens.
            is_repeat: Whether the requests are those of the last call.

        Returns:
            The number of answers that are complete now.
        """
        if is_repeat:
            self._even_gaps.append(now - self._now)
            self._even_counts.append(len(indices))
            self._now = now
            self._num_repeats += 1
            self._num_left -= 1
            return 0 if self._num_left else self._settle()
        self._settle()
        self._indices, self._now = indices, now
        before = self._last_token[indices]
        is_first = before == NEVER
        # `count_nonzero` costs a tenth of `any`.
        if np.count_nonzero(is_first):
            self.first_token[indices[is_first]] = now
            before = before[~is_first]
        self._gaps.append(now - before)
        self._last_token[indices] = now
        self._num_output[indices] += 1
        return self._complete()

    def num_output_tokens(self) -> int:
        """Return the number of tokens of all requests."""
        self._settle()
        return int(self._num_output.sum())

    def times_per_token(self) -> NDArray[np.float64]:
        """Return the nanoseconds for each token behind the first, of answers that ended."""
        self._settle()
        known = (self.ended != NEVER) & (self.first_token != NEVER) & (self._num_output > 1)
        times: NDArray[np.float64] = (self.ended - self.first_token)[known] / (
            self._num_output[known] - 1
        )
        return times

    def gaps(self) -> Int64Array:
        """Return the nanoseconds between the tokens of each answer, the shortest first."""
        even = np.repeat(
            np.array(self._even_gaps, dtype=np.int64), np.array(self._even_counts, dtype=np.int64)
        )
        return np.sort(np.concatenate([*self._gaps, even]))

    def _settle(self) -> int:
        """Bring the arrays up to date; return how many answers are complete."""
        if not self._num_repeats:
            return 0
        self._num_output[self._indices] += self._num_repeats
        self._last_token[self._indices] = self._now
        self._num_repeats = 0
        return self._complete()

    def _complete(self) -> int:
        if not len(self._indices):
            return 0
        left = self.target[self._indices] - self._num_output[self._indices]
        self._num_left = int(np.minimum.reduce(left))
        if self._num_left > 0:
            return 0
        complete = self._indices[left <= 0]
        self.ended[complete] = self._now
        return len(complete)
