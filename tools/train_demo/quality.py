"""Measure what eight and four bits cost: `python -m tools.train_demo.quality [--documents 64]`.

Text that training never saw goes through the demo model with each kind of weights, keys and
values. Perplexity is that of each next token; agreement is the share of positions whose likeliest
next token equals that of the bfloat16 weights.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from chairlift.attention.cpu import CpuBackend
from chairlift.attention.cpu_int8 import Int8CpuBackend
from chairlift.attention.metadata import AttentionMetadata
from chairlift.config import KvCacheDtype, Quantize
from chairlift.demo import MODEL_DIR
from chairlift.model.config import ModelConfig
from chairlift.model.kv_cache import allocate_kv_cache
from chairlift.model.tokenizer import Tokenizer
from chairlift.model.transformer import Transformer
from chairlift.model.weights import load_weights
from torch import Tensor

from tools.train_demo.text import documents

SEED = 2_000_000_011
"""Of the held-out text; training draws from other seeds."""
MAX_TOKENS = 512
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Quality:
    """One kind of weights, keys and values."""

    quantize: str
    kv_cache_dtype: str
    perplexity: float
    agreement: float
    """Of the likeliest tokens with those of the unquantized weights."""
    num_tokens: int


KINDS = (
    *((quantize, KvCacheDtype.AUTO) for quantize in Quantize),
    (Quantize.NONE, KvCacheDtype.INT8),
    (Quantize.INT8, KvCacheDtype.INT8),
)


def measure(num_documents: int) -> Iterator[Quality]:
    """Return the quality of each kind, the unquantized first."""
    tokenizer = Tokenizer.load(MODEL_DIR)
    texts = itertools.islice(documents(SEED), num_documents)
    prompts = [torch.tensor(tokenizer.encode(text)[:MAX_TOKENS]).int() for text in texts]
    likeliest: list[Tensor] = []
    for quantize, kv in KINDS:
        config = ModelConfig.load(MODEL_DIR)
        weights = load_weights(MODEL_DIR, config, quantize=quantize)
        in_int8 = kv is KvCacheDtype.INT8
        backend = Int8CpuBackend(config.dtype) if in_int8 else CpuBackend()
        model = Transformer(config, weights, backend)
        loss, tokens, equal = 0.0, 0, 0
        for place, prompt in enumerate(prompts):
            logits = _logits(model, prompt)[:-1]
            targets = prompt[1:].long()
            loss += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            tokens += len(targets)
            if len(likeliest) == place:
                likeliest.append(logits.argmax(-1))
            equal += int((logits.argmax(-1) == likeliest[place]).sum())
        yield Quality(quantize.value, kv.value, math.exp(loss / tokens), equal / tokens, tokens)


def _logits(model: Transformer, prompt: Tensor) -> Tensor:
    """Return the logits `[T, vocab_size]` of one prompt alone."""
    num_groups, num_tokens = len(model.config.spec.kv_windows), len(prompt)
    columns = -(-num_tokens // BLOCK_SIZE)
    tables = 1 + torch.arange(num_groups * columns).int().view(num_groups, 1, columns)
    places = torch.arange(num_tokens)
    slots = tables[:, 0, places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
    metadata = AttentionMetadata(
        rows=torch.zeros(1).int(),
        query_start_loc=torch.tensor([0, num_tokens]).int(),
        seq_lens=torch.tensor([num_tokens]).int(),
        positions=places.int(),
        slot_mapping=slots.int(),
        block_tables=tables,
        block_size=BLOCK_SIZE,
    )
    cache = allocate_kv_cache(model.config, model.backend, 1 + tables.numel(), BLOCK_SIZE)
    return model.logits(model.forward(prompt, metadata, cache))


def main() -> None:
    """Print one JSON object per kind of weights."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=64)
    for quality in measure(parser.parse_args().documents):
        values = {name: getattr(quality, name) for name in quality.__slots__}
        sys.stdout.write(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
