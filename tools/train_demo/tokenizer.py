"""The byte-level BPE tokenizer of the demo model."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.train_demo.text import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS

VOCAB_SIZE: Final = 2048
MAX_LENGTH: Final = 2048

# A word keeps the space before it. Digits stand alone, so that a number the text never showed is
# still made of known tokens and counting past the seen range has a chance.
_WORDS: Final = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Return a tokenizer trained on the texts; every byte is in its alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and the ``tokenizer_config.json`` that transformers reads."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that the tokenizer is known to have."""
    found = tokenizer.token_to_id(token)
    if found is None:
        msg = f"expected a tokenizer with the token {token}, got one without it"
        raise ValueError(msg)
    return int(found)
