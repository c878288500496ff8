"""The bytes that each token id contributes to text, read from the decoder of a tokenizer.

`tokenizers` decodes whole sequences. The decoders of byte-level BPE and of SentencePiece models
work token by token, except for incomplete characters, byte runs and the start of a text, which the
core handles. So a table of bytes per id replaces them, and text streams without Python.
"""

import json
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any, Final

import tokenizers

from chairlift import _core
from chairlift.api.errors import ModelError

# Decoders by the place in a sequence where a table can hold their effect.
_STAGES = {
    "Replace": 0,
    "Metaspace": 0,
    "ByteLevel": 1,
    "ByteFallback": 1,
    "Fuse": 2,
    "Strip": 3,
}
MAX_REPLACEMENTS: Final = 16
"""Steps of a decoder that replace: each is done for every token."""
MAX_TABLE_CHARACTERS: Final = 16 * 2**20
"""Characters of all tokens after each step; the largest vocabularies have some two million."""
MAX_GROWN_CHARACTERS: Final = 1024
"""Characters of a token that a step makes longer: `Detokenize` takes 131,072 tokens at once."""

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


Replacements = tuple[tuple[str, str], ...]
"""Strings that stand for others in a token, applied one after the other."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The transformations of a decoder.

    Attributes:
        replacements: In every token but the first of a text.
        first_replacements: In the first.
        byte_level: Characters stand for bytes, by the alphabet of GPT-2.
        byte_fallback: `<0xNN>` is one raw byte.
        strip_first_space: One leading space of the text goes.
    """

    replacements: Replacements
    first_replacements: Replacements
    byte_level: bool
    byte_fallback: bool
    strip_first_space: bool

    def is_raw_byte(self, form: str) -> bool:
        """Return whether a token is one raw byte, given its form after the replacements."""
        return self.byte_fallback and _BYTE_TOKEN.fullmatch(form) is not None

    def token_bytes(self, string: str) -> bytes:
        """What a token contributes amid a text, given its string in the vocabulary."""
        (form,) = _replace([string], self.replacements)
        return self.bytes_of(form)

    def piece(self, string: str, *, is_first: bool) -> bytes:
        """What a token contributes, by its place in a text."""
        (form,) = _replace([string], self.first_replacements if is_first else self.replacements)
        return self.bytes_of(form)

    def bytes_of(self, form: str) -> bytes:
        """What a token contributes, given its form after the replacements."""
        if self.byte_level:
            return _byte_level(form)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(form)):
            return bytes.fromhex(match[1])
        return form.encode()


class Pieces:
    """What tokens contribute to a text by their place in it, as the scheduler decodes them."""

    def __init__(
        self, backend: tokenizers.Tokenizer, decoding: Decoding, special: Set[str]
    ) -> None:
        """Keep the parts.

        Args:
            backend: Has the strings of tokens.
            decoding: The decoding of the tokenizer.
            special: Strings of its special tokens.
        """
        self._backend = backend
        self._decoding = decoding
        self._special = special

    @property
    def strips_first_space(self) -> bool:
        """Whether one leading space of a text is left out."""
        return self._decoding.strip_first_space

    def piece(self, token_id: int, *, is_first: bool, skip_special: bool) -> bytes | None:
        """Return what a token contributes; None for a special one that is left out."""
        string = self._backend.id_to_token(token_id) or ""
        if skip_special and string in self._special:
            return None
        return self._decoding.piece(string, is_first=is_first)


NO_DECODING: Final = Decoding((), (), False, False, False)
"""The decoding of a model that gives no text: tokens stand for themselves."""


def read_decoding(tokenizer: tokenizers.Tokenizer) -> Decoding:
    """Read the transformations of the tokenizer's decoder.

    Raises:
        ModelError: There is no decoder, or a table cannot express one; the message names it.
    """
    if tokenizer.decoder is None:
        message = "the tokenizer has no decoder"
        raise ModelError(message)
    # The state of a decoder is its part of tokenizer.json.
    steps = list(_flatten(json.loads(tokenizer.decoder.__getstate__())))
    names = [step["type"] for step in steps]
    stages = [_STAGES.get(name, -1) for name in names]
    fused = "Fuse" in names or "ByteLevel" in names
    if (
        min(stages, default=-1) < 0
        or stages != sorted(stages)
        or stages.count(1) > 1
        or ("Strip" in names and not fused)
    ):
        message = (
            f"decoder {', '.join(names)} is not supported (expected Replace or Metaspace, then"
            " ByteLevel or ByteFallback, then Fuse, then Strip, or a part of that)"
        )
        raise ModelError(message)
    per_token = [step for step in steps if _STAGES[step["type"]] == 0]
    if len(per_token) > MAX_REPLACEMENTS:
        message = f"the decoder has {len(per_token)} steps, expected at most {MAX_REPLACEMENTS}"
        raise ModelError(message)
    return Decoding(
        replacements=tuple(_replacement(step) for step in per_token),
        first_replacements=tuple(_replacement(step, first=True) for step in per_token),
        byte_level="ByteLevel" in names,
        byte_fallback="ByteFallback" in names,
        strip_first_space=any(_strips_space(step) for step in steps if step["type"] == "Strip"),
    )


def build_token_table(
    tokenizer: tokenizers.Tokenizer, decoding: Decoding, width: int
) -> _core.TokenTable:
    """Build the table of the ids below `width`; others than the tokenizer's are empty.

    Raises:
        ModelError: The tokens become too long.
    """
    strings = [tokenizer.id_to_token(token_id) or "" for token_id in range(width)]
    forms = _replace(strings, decoding.replacements)
    first_tokens: list[bytes] = []
    if decoding.first_replacements != decoding.replacements:
        first_forms = _replace(strings, decoding.first_replacements)
        first_tokens = [decoding.bytes_of(form) for form in first_forms]
    added = tokenizer.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    return _core.TokenTable(
        [decoding.bytes_of(form) for form in forms],
        [token_id for token_id, string in enumerate(strings) if string in special],
        byte_fallback=[i for i, form in enumerate(forms) if decoding.is_raw_byte(form)],
        strip_first_space=decoding.strip_first_space,
        first_tokens=first_tokens,
    )


def _replace(strings: list[str], replacements: Replacements) -> list[str]:
    for old, new in replacements:
        growth = len(new) - len(old)
        if growth > 0:
            _check_growth(strings, old, growth)
        strings = [string.replace(old, new) for string in strings]
    return strings


def _check_growth(strings: list[str], old: str, growth: int) -> None:
    """Refuse a replacement that makes tokens too long, before it is done."""
    lengths = [(len(string), growth * string.count(old)) for string in strings]
    longest = max((length + more for length, more in lengths if more), default=0)
    total = sum(map(sum, lengths))
    for num, limit, what in (
        (longest, MAX_GROWN_CHARACTERS, "a token has"),
        (total, MAX_TABLE_CHARACTERS, "all tokens have"),
    ):
        if num > limit:
            message = (
                f"tokenizer.json: the decoder replaces so that {what} {num} characters,"
                f" expected at most {limit}"
            )
            raise ModelError(message)


def _flatten(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] == "Sequence":
        for inner in step["decoders"]:
            yield from _flatten(inner)
    else:
        yield step


def _replacement(step: dict[str, Any], *, first: bool = False) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        # Encoding puts a space before a text; decoding drops every space of the first token for it.
        drops = first and step["prepend_scheme"] != "never"
        return step["replacement"], "" if drops else " "
    if "String" not in step["pattern"]:
        message = f"decoder Replace with pattern {step['pattern']} is not supported"
        raise ModelError(message)
    return step["pattern"]["String"], step["content"]


def _strips_space(step: dict[str, Any]) -> bool:
    if step["content"] != " " or step["start"] > 1 or step["stop"] > 0:
        message = f"decoder {step} is not supported (expected at most one leading space)"
        raise ModelError(message)
    return bool(step["start"])


def _gpt2_alphabet() -> dict[int, str]:
    """Map the characters that stand for bytes to the character with that byte's number.

    Source: `bytes_to_unicode` of GPT-2: printable Latin-1 stands for itself, the other bytes for
    the characters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet.update({256 + i: chr(byte) for i, byte in enumerate(others)})
    return alphabet


_GPT2_ALPHABET = _gpt2_alphabet()
GPT2_CHARACTERS = frozenset(map(chr, _GPT2_ALPHABET))


def _byte_level(string: str) -> bytes:
    # A token with any other character was added as text and stands for itself.
    if GPT2_CHARACTERS.issuperset(string):
        return string.translate(_GPT2_ALPHABET).encode("latin-1")
    return string.encode()
