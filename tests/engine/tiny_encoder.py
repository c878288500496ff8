"""A BERT of a few thousand parameters with a tokenizer, written to a folder by `transformers`."""

import json
import random

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    PreTrainedTokenizerFast,
)

WORDS = ("lift", "chair", "snow", "slope", "ride", "stop", "go", "up", "one", "two", "three")
MAX_LENGTH = 96


def write(folder, *, num_labels=None, sentence=None, seed=0):
    """Write a checkpoint, of a classifier if it has labels, and return the reference model.

    Args:
        folder: That exists.
        num_labels: Of a classifier.
        sentence: Files of sentence-transformers, by name.
        seed: Of the weights.
    """
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=80,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_LENGTH,
        num_labels=num_labels or 2,
    )
    model = (BertForSequenceClassification if num_labels else BertModel)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    _save(model, folder, sentence)
    return model


def write_gemma(folder, sentence):
    """Write a tiny EmbeddingGemma, and return the reference model."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=80,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        max_position_embeddings=MAX_LENGTH,
        use_bidirectional_attention=True,
    )
    model = Gemma3TextModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    _save(model, folder, sentence)
    return model


def _save(model, folder, sentence):
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    for name, content in (sentence or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def tokenizer():
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=names, show_progress=False)
    draw = random.Random(0)
    backend.train_from_iterator((" ".join(draw.choices(WORDS, k=12)) for _ in range(50)), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def texts(num, seed=0):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.choice((1, 3, 9, 30, 70)))) for _ in range(num)]
