"""How many bytes of a text one token can stand for, where that has a bound.

A text of `n` bytes then has at least `n / longest` tokens, which is known without encoding it. The
bound holds where no step of the tokenizer shortens or drops text, and each character that the
vocabulary does not know becomes tokens of its own. Of anything else the answer is that there is no
bound: Unicode normalization shortens text, and some tokenizers give a whole word one unknown token.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import tokenizers

from chairlift.api.errors import ModelError
from chairlift.text.token_table import GPT2_CHARACTERS

MAX_GROWTH: Final = 64
"""Times as many bytes as a text has that a normalizer or decoder may make of it."""

_MAX_CHARACTER_BYTES = 4
"""Bytes of one character in UTF-8, at most."""

_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_SPLITTERS = frozenset(
    ("ByteLevel", "Digits", "FixedLength", "Metaspace", "Punctuation", "Split", "UnicodeScripts")
)


def longest_token_bytes(backend: tokenizers.Tokenizer) -> int | None:
    """Return the most bytes of a text that one token stands for; None where there is no bound."""
    normalizers = list(_steps(backend.normalizer, "normalizers"))
    splitters = list(_steps(backend.pre_tokenizer, "pretokenizers"))
    added = backend.get_added_tokens_decoder().values()
    if (
        not isinstance(backend.model, tokenizers.models.BPE)
        or not all(map(_keeps_length, normalizers))
        or not all(map(_keeps_text, splitters))
        # These take the whitespace beside them, however much there is.
        or any(token.lstrip or token.rstrip for token in added)
    ):
        return None
    model, vocab = backend.model, backend.get_vocab(with_added_tokens=False)
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    longest_added = max((len(token.content.encode()) for token in added), default=0)
    if splitters and splitters[-1]["type"] == "ByteLevel" and vocab.keys() >= GPT2_CHARACTERS:
        # Each character of a token stands for one byte.
        return max(longest_added, *map(len, vocab))
    longest = max(longest_added, *(len(token.encode()) for token in vocab))
    if model.byte_fallback and vocab.keys() >= _BYTE_TOKENS:
        return longest
    if model.unk_token in vocab and not model.fuse_unk:
        return max(longest, _MAX_CHARACTER_BYTES)
    return None


def check_growth(backend: tokenizers.Tokenizer, *, decodes: bool) -> None:
    """Check that no text becomes much longer before it is encoded, or as it is decoded.

    Args:
        backend: What `tokenizer.json` describes.
        decodes: Its decoder makes texts; that of a model that gives text is a table of its own.

    Raises:
        ModelError: The replacements of the normalizer or decoder may multiply a text without bound.
    """
    _check_steps(_steps(backend.normalizer, "normalizers"), "normalizer")
    if decodes:
        _check_steps(_steps(backend.decoder, "decoders"), "decoder")


def _check_steps(steps: Iterable[dict[str, Any]], what: str) -> None:
    growth = 1.0
    for step in steps:
        if step["type"] == "Replace":
            # A pattern may match any character, or none.
            old = max(len(step["pattern"].get("String", "").encode()), 1)
            growth *= max(len(step["content"].encode()) / old, 1.0)
        elif step["type"] == "Prepend":
            growth *= max(len(step["prepend"].encode()) / MAX_GROWTH, 1.0)
        if growth > MAX_GROWTH:
            message = (
                f"the replacements of the {what} make texts more than {MAX_GROWTH} times as long"
            )
            raise ModelError(message)


def _steps(
    component: tokenizers.normalizers.Normalizer
    | tokenizers.pre_tokenizers.PreTokenizer
    | tokenizers.decoders.Decoder
    | None,
    inner: str,
) -> Iterator[dict[str, Any]]:
    """Return the steps of a part of a tokenizer, as tokenizer.json describes them."""
    if component is not None:
        yield from _flat(json.loads(component.__getstate__()), inner)


def _flat(step: dict[str, Any], inner: str) -> Iterator[dict[str, Any]]:
    if step["type"] == "Sequence":
        for part in step[inner]:
            yield from _flat(part, inner)
    else:
        yield step


def _keeps_length(step: dict[str, Any]) -> bool:
    """Return whether a normalizer makes no text shorter."""
    if step["type"] == "Replace":
        old = step["pattern"].get("String")
        return old is not None and len(old.encode()) <= len(step["content"].encode())
    return step["type"] in ("Prepend", "ByteLevel")


def _keeps_text(step: dict[str, Any]) -> bool:
    """Return whether a pre-tokenizer drops nothing."""
    return step["type"] in _SPLITTERS and step.get("behavior") != "Removed"
