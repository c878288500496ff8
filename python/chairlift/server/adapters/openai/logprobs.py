"""Log probabilities in the shapes of the API."""

import functools
from collections.abc import Callable
from typing import Any, Final

from chairlift.v1 import generation_pb2 as pb

_LEAST: Final = -9999.0
"""JSON has no infinity; the API's own number for a token that cannot be."""


class TokenTexts:
    """The bytes of single tokens, which the API shows beside their probabilities."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """Keep the most recent of them.

        Args:
            token_bytes: Returns what a token contributes to a text.
        """
        self.bytes_of = functools.lru_cache(maxsize=4096)(token_bytes)

    def text_of(self, token_id: int) -> str:
        """Return a token's text; bytes that are no text by themselves become U+FFFD."""
        return self.bytes_of(token_id).decode(errors="replace")

    def content(self, tokens: pb.Tokens) -> list[dict[str, Any]]:
        """Return the entries of chat completions and responses."""
        chosen = zip(tokens.token_ids, tokens.logprobs.logprobs, strict=True)
        likeliest = candidates_of(tokens.logprobs)
        return [
            {
                **self._entry(token_id, logprob),
                "top_logprobs": [self._entry(*candidate) for candidate in candidates],
            }
            for (token_id, logprob), candidates in zip(chosen, likeliest, strict=True)
        ]

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self.bytes_of(token_id)
        return {
            "token": data.decode(errors="replace"),
            "logprob": max(logprob, _LEAST),
            "bytes": list(data),
        }


def candidates_of(given: pb.Logprobs) -> list[list[tuple[int, float]]]:
    """Return the likeliest ids of each token, and their log probabilities."""
    num = given.num_candidates
    pairs = list(zip(given.candidate_ids, given.candidate_logprobs, strict=True))
    return [pairs[i * num : (i + 1) * num] for i in range(len(given.logprobs))]


class LegacyLogprobs:
    """The parallel lists of text completions, whose offsets count on over an answer."""

    def __init__(self, texts: TokenTexts) -> None:
        """Start at the beginning of an answer."""
        self._texts = texts
        self._offset = 0

    def add(self, tokens: pb.Tokens | pb.Prompt) -> dict[str, list[Any]]:
        """Return the lists of the next tokens; the first one of a prompt has no probability."""
        texts = [self._texts.text_of(token_id) for token_id in tokens.token_ids]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        logprobs = [max(logprob, _LEAST) for logprob in tokens.logprobs.logprobs]
        candidates = [
            {self._texts.text_of(i): max(logprob, _LEAST) for i, logprob in likeliest}
            for likeliest in candidates_of(tokens.logprobs)
        ]
        without: list[Any] = [None] * (len(texts) - len(logprobs))
        return {
            "tokens": texts,
            "token_logprobs": without + logprobs,
            "top_logprobs": without + candidates,
            "text_offset": offsets,
        }
