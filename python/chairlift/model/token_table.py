"""What each token id contributes to text, read from the decoder of a tokenizer.

`tokenizers` decodes whole sequences. The decoders of byte-level BPE and of SentencePiece models
work token by token, but for open characters, byte runs and the start of a text, which the core
looks after. So a table of bytes per id can stand for them, and text streams without Python.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tokenizers

from chairlift import _core
from chairlift.errors import ModelError

# Decoders by the place in a sequence where a table can hold their effect.
_STAGES = {
    "Replace": 0,
    "Metaspace": 0,
    "ByteLevel": 1,
    "ByteFallback": 1,
    "Fuse": 2,
    "Strip": 3,
}
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A string that stands for another in every token."""

    old: str
    new: str
    new_in_first: str
    """In the first token of a text."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a decoder does to tokens."""

    replacements: tuple[Replacement, ...]
    byte_level: bool
    """Characters stand for bytes, by the alphabet of GPT-2."""
    byte_fallback: bool
    """`<0xNN>` is one byte."""
    strip_first_space: bool


def read_decoding(tokenizer: tokenizers.Tokenizer) -> Decoding:
    """Reads what the tokenizer's decoder does.

    Raises:
        ModelError: There is no decoder, or it does what a table cannot hold; the message names it.
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
    return Decoding(
        replacements=tuple(_replacement(step) for step in steps if _STAGES[step["type"]] == 0),
        byte_level="ByteLevel" in names,
        byte_fallback="ByteFallback" in names,
        strip_first_space=any(_strips_space(step) for step in steps if step["type"] == "Strip"),
    )


def build_token_table(
    tokenizer: tokenizers.Tokenizer, decoding: Decoding, width: int
) -> _core.TokenTable:
    """Builds the table of the ids below `width`; others than the tokenizer's are empty."""
    tokens: list[bytes] = []
    first_tokens: list[bytes] = []
    special_strings = {
        added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special
    }
    special: list[int] = []
    byte_fallback: list[int] = []
    for token_id in range(width):
        string = tokenizer.id_to_token(token_id) or ""
        if string in special_strings:
            special.append(token_id)
        first = string
        for replacement in decoding.replacements:
            string = string.replace(replacement.old, replacement.new)
            first = first.replace(replacement.old, replacement.new_in_first)
        if decoding.byte_fallback and (match := _BYTE_TOKEN.fullmatch(string)):
            byte_fallback.append(token_id)
            string_bytes = first_bytes = bytes.fromhex(match[1])
        elif decoding.byte_level:
            string_bytes, first_bytes = _byte_level(string), _byte_level(first)
        else:
            string_bytes, first_bytes = string.encode(), first.encode()
        tokens.append(string_bytes)
        first_tokens.append(first_bytes)
    return _core.TokenTable(
        tokens,
        special,
        byte_fallback=byte_fallback,
        strip_first_space=decoding.strip_first_space,
        first_tokens=first_tokens if first_tokens != tokens else (),
    )


def _flatten(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] == "Sequence":
        for inner in step["decoders"]:
            yield from _flatten(inner)
    else:
        yield step


def _replacement(step: dict[str, Any]) -> Replacement:
    if step["type"] == "Metaspace":
        # The space that encoding puts before a text is taken back, with all others of that token.
        in_first = " " if step["prepend_scheme"] == "never" else ""
        return Replacement(step["replacement"], " ", in_first)
    if "String" not in step["pattern"]:
        message = f"decoder Replace with pattern {step['pattern']} is not supported"
        raise ModelError(message)
    return Replacement(step["pattern"]["String"], step["content"], step["content"])


def _strips_space(step: dict[str, Any]) -> bool:
    if step["content"] != " " or step["start"] > 1 or step["stop"] > 0:
        message = f"decoder {step} is not supported (expected at most one leading space)"
        raise ModelError(message)
    return bool(step["start"])


def _gpt2_alphabet() -> dict[int, str]:
    """Maps the characters that stand for bytes to the character with that byte's number.

    Source: `bytes_to_unicode` of GPT-2: printable Latin-1 stands for itself, the other bytes for
    the characters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet.update({256 + i: chr(byte) for i, byte in enumerate(others)})
    return alphabet


_GPT2_ALPHABET = _gpt2_alphabet()
_GPT2_CHARACTERS = frozenset(map(chr, _GPT2_ALPHABET))


def _byte_level(string: str) -> bytes:
    # A token with any other character was added as text and stands for itself.
    if _GPT2_CHARACTERS.issuperset(string):
        return string.translate(_GPT2_ALPHABET).encode("latin-1")
    return string.encode()
