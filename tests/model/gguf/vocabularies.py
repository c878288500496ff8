"""Tokenizers of the splitters of `tokenizer.ggml.pre`, and what GGUF files store of them."""

import json
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from tests.model.gguf.written import (
    BYTE,
    CONTROL,
    NORMAL,
    TEXT,
    UNKNOWN,
    USER_DEFINED,
    pieces_by_id,
)
from tests.tokenizer_families import byte_fallback_bpe

BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES_ALONE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SEED_CODER = QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Digits(individual_digits=True)


def split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, BYTES_ALONE])


DEEPSEEK_CODER = pre_tokenizers.Sequence(
    [
        *(
            pre_tokenizers.Split(Regex(pattern), behavior="isolated")
            for pattern in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+")
        ),
        digits(),
        BYTES_ALONE,
    ]
)
GPT2 = BYTE_LEVEL, False, False
SMOLLM = pre_tokenizers.Sequence([digits(), BYTE_LEVEL]), False, False
SPLITTERS = {
    **dict.fromkeys(("gpt-2", "a.x-4.0", "mellum", "trillion", "granite-docling"), GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "minerva-7b", "command-r"), SMOLLM),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "falcon-h1", "lfm2"),
        (split(LLAMA3), True, True),
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx"), (split(LLAMA3), False, False)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"), (split(QWEN2), False, False)
    ),
    "qwen35": (split(QWEN35), False, False),
    "seed-coder": (split(SEED_CODER), False, False),
    "deepseek-coder": (DEEPSEEK_CODER, False, False),
    "gpt-4o": (split(O200K), False, False),
    "tekken": (split(TEKKEN), True, True),
}
"""By `tokenizer.ggml.pre`: the splitter of tokenizer.json, whether a word that is a token is that
token, and whether the begin token is added."""
KINDS = list({id(entry[0]): name for name, entry in reversed(SPLITTERS.items())}.values())
"""One name of each splitter."""


@cache
def byte_level(pre: str) -> Backend:
    """Train a tokenizer; some words are tokens that no merges make."""
    pre_tokenizer, ignores_merges, _ = SPLITTERS[pre]
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator([TEXT], trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = model["vocab"]
    words = sorted({word for word, _ in pre_tokenizer.pre_tokenize_str(TEXT)} - set(vocabulary))
    vocabulary |= {word: len(vocabulary) + i for i, word in enumerate(words[::3])}
    backend = Backend(
        models.BPE(
            vocabulary,
            [tuple(pair) for pair in model["merges"]],
            ignore_merges=ignores_merges,
        )
    )
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|begin|>", "<|end|>", "<|im_end|>"])
    backend.add_tokens([AddedToken("<tool call>", normalized=False)])
    return backend


def stored(backend: Backend) -> dict[str, Any]:
    """Return what a GGUF file stores of a byte-level tokenizer."""
    added = backend.get_added_tokens_decoder()
    tokens = pieces_by_id(backend.get_vocab())
    kinds = [
        NORMAL if i not in added else CONTROL if added[i].special else USER_DEFINED
        for i in range(len(tokens))
    ]
    merges = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    return {"tokens": tokens, "token_type": kinds, "merges": merges, "bos_token_id": 0}


llama2 = cache(byte_fallback_bpe)


@cache
def pieces() -> dict[str, Any]:
    """Return what a GGUF file stores of a SentencePiece model with bytes."""
    model = json.loads(llama2().to_str())["model"]
    tokens = pieces_by_id(model["vocab"])
    ranks = {"".join(pair): -float(rank) for rank, pair in reversed([*enumerate(model["merges"])])}
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 259)]
    scores = [*[0.0] * 259, *(ranks.get(token, -1e4 - i) for i, token in enumerate(tokens[259:]))]
    return {
        "tokens": [*tokens, "<tool call>"],
        "token_type": [*kinds, USER_DEFINED],
        "scores": [*scores, 0.0],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
