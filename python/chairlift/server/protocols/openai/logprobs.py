"""Log probabilities in the shapes of the API, as JSON: an answer has thousands of entries."""

import codecs
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from chairlift.server.http.json_pieces import array, quoted, to_json
from chairlift.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from chairlift.text.token_table import Pieces

_MIN_LOGPROB: Final = -9999.0
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
        self._frame_of = functools.lru_cache(maxsize=4096)(self._frame)
        self.name_of = functools.lru_cache(maxsize=4096)(self._name)
        self.piece_of = functools.lru_cache(maxsize=4096)(self._piece_of)

    def _bytes_of(self, token_id: int) -> bytes:
        return self.tokenizer().token_bytes(token_id)

    def _piece_of(self, token_id: int, is_first: bool, skip_special: bool) -> bytes | None:
        pieces = self.tokenizer().pieces
        return pieces.piece(token_id, is_first=is_first, skip_special=skip_special)

    def _name(self, token_id: int) -> bytes:
        """Return the name of a token in a completion: its text, or bytes that are none alone.

        Each part of a character has a name of its own, as in the OpenAI API.
        """
        data = self.bytes_of(token_id)
        try:
            return quoted(data.decode())
        except UnicodeDecodeError:
            return quoted("bytes:" + "".join(f"\\x{byte:02x}" for byte in data))

    def content(self, tokens: pb.Tokens) -> bytes:
        """Return the run of entries of chat completions and responses."""
        chosen = zip(tokens.token_ids, tokens.logprobs.logprobs, strict=True)
        likeliest = candidates_of(tokens.logprobs)
        return b",".join(
            [
                b'%b,"top_logprobs":[%b]}'
                % (
                    self._entry(token_id, logprob),
                    b",".join([b"%b}" % self._entry(other, value) for other, value in candidates]),
                )
                for (token_id, logprob), candidates in zip(chosen, likeliest, strict=True)
            ]
        )

    def _entry(self, token_id: int, logprob: float) -> bytes:
        """Return an entry without its end."""
        before, after = self._frame_of(token_id)
        return before + number(logprob) + after

    def _frame(self, token_id: int) -> tuple[bytes, bytes]:
        """Return what stands before and after the log probability in the entry of a token."""
        data = self.bytes_of(token_id)
        before = b'{"token":%b,"logprob":' % quoted(data.decode(errors="replace"))
        return before, b',"bytes":' + to_json(list(data))


def number(logprob: float) -> bytes:
    """Return a log probability as JSON."""
    return b"%r" % max(logprob, _MIN_LOGPROB)


def candidates_of(given: pb.Logprobs) -> list[list[tuple[int, float]]]:
    """Return the likeliest ids of each token, and their log probabilities."""
    num = given.num_candidates
    pairs = list(zip(given.candidate_ids, given.candidate_logprobs, strict=True))
    return [pairs[i * num : (i + 1) * num] for i in range(len(given.logprobs))]


class _TextOffset:
    """Where the tokens of a text begin, in characters; it decodes as the scheduler does."""

    def __init__(self, texts: TokenTexts, *, skip_special: bool, offset: int) -> None:
        self._texts = texts
        self._skip_special = skip_special
        self.offset = offset
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

    def end(self) -> int:
        """End the text: what follows is decoded as a text of its own; return its offset."""
        self._add(self._decoder.decode(b"", final=True))
        return self.offset


class Lists:
    """Parallel lists of an answer, in runs: values that are encoded, with commas between them.

    The answers to a prompt share its runs.
    """

    def __init__(self, *names: bytes, after: bytes = b"}") -> None:
        """Start without values.

        Args:
            names: Names of the lists in their object.
            after: The end of the object.
        """
        self._runs: dict[bytes, list[bytes]] = {name: [] for name in names}
        self._after = after

    def add(self, runs: tuple[bytes, ...]) -> None:
        """Add a run to each list."""
        for values, run in zip(self._runs.values(), runs, strict=True):
            if run:
                values.append(run)

    def object(self) -> list[bytes]:
        """Return the pieces of the object."""
        pieces: list[bytes] = []
        for name, values in self._runs.items():
            pieces += [b'%b"%b":' % (b"," if pieces else b"{", name), *array(values)]
        return [*pieces, self._after]


class LegacyLogprobs:
    """What fills the lists of an answer, whose offsets count on over its prompt."""

    def __init__(self, texts: TokenTexts, *, skip_special: bool, offset: int = 0) -> None:
        """Start at the beginning of a text.

        Args:
            texts: Texts of single tokens.
            skip_special: The text leaves special tokens out.
            offset: Characters before it.
        """
        self._texts = texts
        self._offset = _TextOffset(texts, skip_special=skip_special, offset=offset)

    def end(self) -> int:
        """Return how many characters there are, where no token follows."""
        return self._offset.end()

    def add(self, tokens: pb.Tokens | pb.Prompt) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the runs of the next tokens; the first one of a prompt has no probability.

        Returns:
            Names, log probabilities, candidates and offsets.
        """
        names = [self._texts.name_of(token_id) for token_id in tokens.token_ids]
        offsets = [b"%d" % self._offset.next(token_id) for token_id in tokens.token_ids]
        logprobs = [number(logprob) for logprob in tokens.logprobs.logprobs]
        without = [b"null"] * (len(names) - len(logprobs))
        chosen = zip(names[len(without) :], logprobs, strict=True)
        candidates = [
            self._named(pairs, name, logprob)
            for pairs, (name, logprob) in zip(candidates_of(tokens.logprobs), chosen, strict=True)
        ]
        return (
            b",".join(names),
            b",".join(without + logprobs),
            b",".join(without + candidates),
            b",".join(offsets),
        )

    def _named(self, likeliest: list[tuple[int, float]], chosen: bytes, logprob: bytes) -> bytes:
        """Return the candidates by their names, the chosen token among them."""
        named: dict[bytes, bytes] = {}
        for token_id, value in likeliest:
            # Several tokens may have one name: the likeliest is first.
            named.setdefault(self._texts.name_of(token_id), number(value))
        named.setdefault(chosen, logprob)
        return b"{%b}" % b",".join([b"%b:%b" % pair for pair in named.items()])
