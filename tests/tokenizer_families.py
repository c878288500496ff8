"""Small tokenizers of the families that models use, trained on a few lines of text."""

import json
from collections.abc import Callable

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The chairlift never stops for its riders: they step on a moving chair.",
    "Each of them steps off at the top, on their own. It's snowing, isn't it?",
    "def ride(chair):\n    return chair.next()  # no stops\n\n\n",
    "Der Sessellift hält nie an; die Gäste steigen während der Fahrt ein.",
    "缆车从不为乘客停下。他们踏上移动的椅子。",
    "Подъёмник никогда не останавливается. 🚡🏔️ ⛷️",
    '{"row": 3, "name": "Ada", "tokens": [1, 2, 3]}',
] * 4

TEXTS = [
    *CORPUS[:7],
    "",
    " ",
    "   three spaces, and a tab\t and\r\nnew lines\n",
    "never seen: ñandú, ὀδύσσεια, ไทย, 👩‍👩‍👧‍👦, 🇨🇭, \x00\x7f\u2028\ufffd, ▁▁, <0x41>, <s>",
    "ends in the middle of nothing 🚡",
]


def byte_level_bpe() -> Tokenizer:
    """GPT-2, Llama 3, Qwen: bytes as characters of an alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Added tokens of each kind: a space is outside the alphabet, é inside it.
    tokenizer.add_tokens(["<tool call>", "éà", "缆车"])
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def byte_fallback_bpe(decoder: decoders.Decoder | None = None) -> Tokenizer:
    """Llama 2, Mistral, Gemma: pieces of text, and bytes for what has no piece."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    # 40 characters of the alphabet leave the rarer ones to the bytes.
    trainer = trainers.BpeTrainer(vocab_size=300, limit_alphabet=40, show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(dict.fromkeys(tokens))},
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoder or decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False), "▁▁a▁"])
    return tokenizer


def gemma_bpe() -> Tokenizer:
    """Gemma: as Llama 2, and the first space stays."""
    return byte_fallback_bpe(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    )


def metaspace_byte_fallback_bpe() -> Tokenizer:
    """A Metaspace decoder before byte fallback."""
    return byte_fallback_bpe(
        decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    )


def unigram(prepend_scheme: str = "always") -> Tokenizer:
    """T5, XLM-R, ALBERT: a unigram model between Metaspaces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=220,
        special_tokens=["<unk>", "<s>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<tool call>", "▁▁a▁"])
    return tokenizer


def unigram_without_prefix() -> Tokenizer:
    """The same where a text begins as it is."""
    return unigram("never")


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    family.__name__: family
    for family in (
        byte_level_bpe,
        byte_fallback_bpe,
        gemma_bpe,
        metaspace_byte_fallback_bpe,
        unigram,
        unigram_without_prefix,
    )
}
