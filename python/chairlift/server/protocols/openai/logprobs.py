"""Log probabilities in the shapes of the API."""

import codecs
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from chairlift.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from chairlift.text.token_table import Pieces

_LEAST: Final = -9999.0
"""JSON has no infinity; the API's own number for a token that cannot be."""


class Tokenizer(Protocol):
    """What this needs of a tokenizer."""

    pieces: "Pieces"

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token contributes to a text."""


class TokenTexts:
    """The bytes of single tokens, which the API shows beside their probabilities."""

    def __init__(self, tokenizer: Callable[[], Tokenizer]) -> None:
        """Keep the most recent of them.

        Args:
            tokenizer: Returns the tokenizer of the served model.
        """
        self.tokenizer = tokenizer
        self.bytes_of = functools.lru_cache(maxsize=4096)(self._bytes_of)
        self.piece_of = functools.lru_cache(maxsize=4096)(self._piece_of)

    def _bytes_of(self, token_id: int) -> bytes:
        return self.tokenizer().token_bytes(token_id)

    def _piece_of(self, token_id: int, is_first: bool, skip_special: bool) -> bytes | None:
        pieces = self.tokenizer().pieces
        return pieces.piece(token_id, is_first=is_first, skip_special=skip_special)

    def name_of(self, token_id: int) -> str:
        """Return the name of a token in a completion: its text, or bytes that are none alone.

        Each part of a character has a name of its own, as in the OpenAI API.
        """
        data = self.bytes_of(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

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


class _Place:
    """Where the tokens of a text begin, in characters; it decodes as the scheduler does."""

    def __init__(self, texts: TokenTexts, *, skip_special: bool) -> None:
        self._texts = texts
        self._skip_special = skip_special
        self.offset = 0
        self._restart()

    def _restart(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_tokens = self._has_text = False

    def next(self, token_id: int) -> int:
        """Return where the next token begins: amid a character at its beginning."""
        piece = self._texts.piece_of(token_id, not self._has_tokens, self._skip_special)
        if piece and not 0x80 <= piece[0] < 0xC0:
            # A character begins: the one before it stays incomplete.
            self._add(self._decoder.decode(b"", final=True))
        start = self.offset
        if piece is not None:
            self._has_tokens = True
            self._add(self._decoder.decode(piece))
        return start

    def _add(self, text: str) -> None:
        if text and not self._has_text:
            self._has_text = True
            if text[0] == " " and self._texts.tokenizer().pieces.strips_first_space:
                text = text[1:]
        self.offset += len(text)

    def end(self) -> None:
        """End a prompt: what follows is decoded as a text of its own."""
        self._add(self._decoder.decode(b"", final=True))
        self._restart()


class LegacyLogprobs:
    """The parallel lists of text completions, whose offsets count on over an answer."""

    def __init__(self, texts: TokenTexts, *, skip_special: bool) -> None:
        """Start at the beginning of an answer.

        Args:
            texts: Of the tokens.
            skip_special: The text leaves special tokens out.
        """
        self._texts = texts
        self._place = _Place(texts, skip_special=skip_special)
        self._is_prompt = False

    def add(self, tokens: pb.Tokens | pb.Prompt) -> dict[str, list[Any]]:
        """Return the lists of the next tokens; the first one of a prompt has no probability."""
        is_prompt = isinstance(tokens, pb.Prompt)
        if self._is_prompt and not is_prompt:
            self._place.end()
        self._is_prompt = is_prompt
        names = [self._texts.name_of(token_id) for token_id in tokens.token_ids]
        offsets = [self._place.next(token_id) for token_id in tokens.token_ids]
        logprobs = [max(logprob, _LEAST) for logprob in tokens.logprobs.logprobs]
        without: list[Any] = [None] * (len(names) - len(logprobs))
        chosen = zip(names[len(without) :], logprobs, strict=True)
        candidates = [
            self._named(likeliest, name, logprob)
            for likeliest, (name, logprob) in zip(
                candidates_of(tokens.logprobs), chosen, strict=True
            )
        ]
        return {
            "tokens": names,
            "token_logprobs": without + logprobs,
            "top_logprobs": without + candidates,
            "text_offset": offsets,
        }

    def _named(
        self, likeliest: list[tuple[int, float]], chosen: str, logprob: float
    ) -> dict[str, float]:
        """Return the candidates by their names, the chosen token among them."""
        named: dict[str, float] = {}
        for token_id, value in likeliest:
            # Of tokens with one name the likeliest is first.
            named.setdefault(self._texts.name_of(token_id), max(value, _LEAST))
        named.setdefault(chosen, logprob)
        return named
