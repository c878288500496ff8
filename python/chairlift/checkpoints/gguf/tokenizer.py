"""The tokenizer and the chat templates that the metadata of a GGUF file describes.

Source of the splitters and the defaults: `src/llama-vocab.cpp` of llama.cpp.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import Fields, either, one_line
from chairlift.checkpoints.gguf.reader import GgufHeader

_PREFIX: Final = "tokenizer.ggml."
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands for a space in the pieces of SentencePiece."""
_CONTROL, _USER_DEFINED = 3, 4
"""Kinds of tokens that a text is searched for before it is split."""

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BY_THREE_DIGITS: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}"
)
_BY_ONE_DIGIT: Final = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION}"
_WITH_MARKS: Final = _BY_ONE_DIGIT.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)
_BY_LINE: Final = _BY_ONE_DIGIT.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WITH_CONTRACTIONS: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class _Splitter(NamedTuple):
    """How a text is split before byte pairs are merged."""

    patterns: tuple[str, ...]
    """Applied one after the other."""
    ignores_merges: bool = False
    """A whole word that is a token is that token, whatever the merges give."""
    adds_bos: bool = False
    """Unless the metadata says otherwise."""


_WORDS: Final = _Splitter((_GPT2,))
_DIGITS: Final = _Splitter((r"\p{N}", _GPT2))
_THREE_DIGITS: Final = _Splitter((_BY_THREE_DIGITS,), ignores_merges=True, adds_bos=True)
_ONE_DIGIT: Final = _Splitter((_BY_ONE_DIGIT,))
_SPLITTERS: Final[Mapping[str, _Splitter]] = {
    "gpt-2": _WORDS,
    "a.x-4.0": _WORDS,
    "granite-docling": _WORDS,
    "mellum": _WORDS,
    "trillion": _WORDS,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "minerva-7b": _DIGITS,
    "command-r": _DIGITS,
    "llama-bpe": _THREE_DIGITS,
    "llama3": _THREE_DIGITS,
    "llama-v3": _THREE_DIGITS,
    "falcon3": _THREE_DIGITS,
    "pixtral": _THREE_DIGITS,
    "midm-2.0": _THREE_DIGITS,
    "falcon-h1": _THREE_DIGITS,
    "lfm2": _THREE_DIGITS,
    "dbrx": _Splitter((_BY_THREE_DIGITS,)),
    "smaug-bpe": _Splitter((_BY_THREE_DIGITS,)),
    "qwen2": _ONE_DIGIT,
    "deepseek-r1-qwen": _ONE_DIGIT,
    "megrez": _ONE_DIGIT,
    "kormo": _ONE_DIGIT,
    "f2llmv2": _ONE_DIGIT,
    "qwen35": _Splitter((_WITH_MARKS,)),
    "seed-coder": _Splitter((_BY_LINE,)),
    "deepseek-coder": _Splitter(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u0800-\u9fa5\uac00-\ud7ff]+", r"\p{N}")
    ),
    "gpt-4o": _Splitter((_WITH_CONTRACTIONS,)),
    "tekken": _Splitter((_TEKKEN,), ignores_merges=True, adds_bos=True),
}
"""By `tokenizer.ggml.pre`."""

_SPECIAL_NAMES: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # spelt so in GGUF
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}


class TokenizerParts(NamedTuple):
    """What a tokenizer is made of."""

    backend: tokenizers.Tokenizer
    special_tokens: dict[str, str]
    """By name: `bos_token`, ..."""
    chat_templates: dict[str, str]
    """By name; `default` is the one."""
    adds_bos: bool
    adds_eos: bool


def read_tokenizer(header: GgufHeader) -> TokenizerParts:
    """Build the tokenizer of a model.

    Raises:
        ModelError: A value is missing, of a wrong type, or asks for something unsupported.
    """
    metadata = Fields(header.path, header.metadata)
    build = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _with_merges}
    kind = metadata.values.get(f"{_PREFIX}model")
    if not isinstance(kind, str) or kind not in build:
        metadata.fail(f"{_PREFIX}model", either(build))
    tokens = _tokens(metadata)
    kinds = _numbers(metadata, "token_type", len(tokens), "iu")
    try:
        backend, adds_bos = build[kind](metadata, tokens)
        # Tokens of the vocabulary keep their ids.
        backend.add_special_tokens(_added(tokens, kinds, _CONTROL))
        backend.add_tokens(_added(tokens, kinds, _USER_DEFINED))
    except (KeyboardInterrupt, SystemExit, ModelError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        message = f"{header.path}: {_PREFIX}merges: not a tokenizer: {one_line(str(error))}"
        raise ModelError(message) from error
    special = {name: _token(metadata, key, tokens) for name, key in _SPECIAL_NAMES.items()}
    if f"{_PREFIX}add_bos_token" in metadata.values:
        adds_bos = metadata.flag(f"{_PREFIX}add_bos_token")
        if adds_bos and special["bos_token"] is None:
            metadata.fail(f"{_PREFIX}bos_token_id", "a token's id")
    adds_eos = metadata.flag(f"{_PREFIX}add_eos_token")
    if adds_eos and special["eos_token"] is None:
        metadata.fail(f"{_PREFIX}add_eos_token", "false without an eos_token_id")
    return TokenizerParts(
        backend,
        {name: token for name, token in special.items() if token},
        _chat_templates(metadata),
        adds_bos,
        adds_eos,
    )


def _byte_level(metadata: Fields, tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    """Build a byte-level BPE tokenizer, as GPT-2 has it."""
    name = metadata.values.get(f"{_PREFIX}pre")
    if not isinstance(name, str) or name not in _SPLITTERS:
        metadata.fail(f"{_PREFIX}pre", either(_SPLITTERS))
    splitter = _SPLITTERS[name]
    vocabulary, pairs = _vocabulary(metadata, tokens), _stored_merges(metadata)
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, pairs, ignore_merges=splitter.ignores_merges)
    )
    splits: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in splitter.patterns
    ]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend, splitter.adds_bos


def _stored_merges(metadata: Fields) -> list[tuple[str, str]]:
    merges = metadata.values.get(f"{_PREFIX}merges")
    if not isinstance(merges, list):
        metadata.fail(f"{_PREFIX}merges", "a list of pairs")
    if wrong := next((merge for merge in merges if " " not in merge), None):
        Fields(metadata.path, {f"{_PREFIX}merges": wrong}).fail(f"{_PREFIX}merges", "two tokens")
    parted = (merge.partition(" ") for merge in merges)
    return [(left, right) for left, _, right in parted]


def _with_merges(metadata: Fields, tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    """Build the tokenizer of Gemma 4: pieces with byte fallback, whose merges are stored."""
    return _pieces(
        metadata, tokens, _vocabulary(metadata, tokens), _stored_merges(metadata), adds_space=False
    )


def _sentence_piece(metadata: Fields, tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    """Build a SentencePiece BPE tokenizer with byte fallback, as Llama 2 has it.

    Its merges are not stored: two pieces merge if their concatenation is a piece, that of the
    highest score first.
    """
    scores = _numbers(metadata, "scores", len(tokens), "fiu")
    if not np.isfinite(scores).all():
        got = scores[~np.isfinite(scores)][0]
        message = (
            f"{metadata.path}: {_PREFIX}scores: expected {len(tokens)} finite numbers, got {got}"
        )
        raise ModelError(message)
    vocabulary = _vocabulary(metadata, tokens)
    return _pieces(
        metadata, tokens, vocabulary, _merges(vocabulary, scores.tolist()), adds_space=True
    )


def _pieces(
    metadata: Fields,
    tokens: list[str],
    vocabulary: dict[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    adds_space: bool,
) -> tuple[tokenizers.Tokenizer, bool]:
    """Build a tokenizer of pieces with byte fallback, in which a space is part of a piece."""
    unknown = _token(metadata, "unknown_token_id", tokens) or tokens[0]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocabulary,
            merges,
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    key = f"{_PREFIX}add_space_prefix"
    adds_space = metadata.flag(key) if key in metadata.values else adds_space
    prepend = [normalizers.Prepend(_SPACE)] if adds_space else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", left=1)] if adds_space else []
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *strip,
        ]
    )
    return backend, True


def _merges(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that make a piece, in the order in which they merge.

    Source of the method: the extractor of merges of `transformers` (`convert_slow_tokenizer`).
    """
    merges: list[tuple[float, int, int, int, str]] = []
    for piece, token_id in vocabulary.items():
        halves = [
            (vocabulary[piece[:cut]], vocabulary[piece[cut:]], cut)
            for cut in range(1, len(piece))
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary
        ]
        merges.extend((-scores[token_id], *half, piece) for half in sorted(halves))
    merges.sort(key=lambda merge: merge[0])
    return [(piece[:cut], piece[cut:]) for _, _, _, cut, piece in merges]


def _tokens(metadata: Fields) -> list[str]:
    key = f"{_PREFIX}tokens"
    tokens = metadata.values.get(key)
    if not isinstance(tokens, list) or not tokens:
        metadata.fail(key, "a list of tokens")
    return tokens


def _added(tokens: list[str], kinds: NDArray[Any], kind: int) -> list[AddedToken]:
    """Return the tokens of a kind that a text is searched for."""
    ids = np.flatnonzero(kinds == kind).tolist()
    return [AddedToken(tokens[i], special=kind == _CONTROL, normalized=False) for i in ids]


def _vocabulary(metadata: Fields, tokens: list[str]) -> dict[str, int]:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocabulary[token] != i)
        expected = "expected different tokens"
        message = f"{metadata.path}: {_PREFIX}tokens: {expected}, got {one_line(twice)} twice"
        raise ModelError(message)
    return vocabulary


def _numbers(metadata: Fields, name: str, length: int, kinds: str) -> NDArray[Any]:
    """Read an array of one number per token, of one of NumPy's kinds."""
    values = metadata.values.get(f"{_PREFIX}{name}")
    if (
        not isinstance(values, np.ndarray)
        or len(values) != length
        or values.dtype.kind not in kinds
    ):
        if not isinstance(values, np.ndarray | list):
            metadata.fail(f"{_PREFIX}{name}", f"{length} numbers")
        kind = "strings" if isinstance(values, list) else f"values of {values.dtype}"
        message = (
            f"{metadata.path}: {_PREFIX}{name}: expected {length} numbers, got {len(values)} {kind}"
        )
        raise ModelError(message)
    return values


def _token(metadata: Fields, name: str, tokens: list[str]) -> str | None:
    """Read the token that an id stands for; files pad with ids that no token has."""
    key = f"{_PREFIX}{name}"
    token_id = metadata.optional_integer(key, minimum=0)
    if token_id is None or token_id >= len(tokens):
        return None
    return tokens[token_id]


def _chat_templates(metadata: Fields) -> dict[str, str]:
    """Read `tokenizer.chat_template`, and those with a name after it."""
    key = "tokenizer.chat_template"
    templates = {}
    for name, template in metadata.values.items():
        if name != key and not name.startswith(f"{key}."):
            continue
        if not isinstance(template, str):
            metadata.fail(name, "a string")
        templates[name.removeprefix(key).removeprefix(".") or "default"] = template
    return templates
