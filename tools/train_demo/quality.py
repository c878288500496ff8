"""Measure what eight and four bits cost: `python -m tools.train_demo.quality [--documents 64]`.

Text that training never saw goes through the demo model with each kind of weights, keys and
values, each document as a window of its own. The reference is the model in bfloat16.
`chairlift bench quality` measures the same of any model on a file.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from chairlift.api.config import KvCacheDtype, Quantize
from chairlift.bench.quality import ModelFormat, Quality, WindowModel, measure_quality
from chairlift.demo import MODEL_DIR
from chairlift.text.tokenizer import Tokenizer

from tools.train_demo.text import documents

SEED = 2_000_000_011
"""Of the held-out text; training draws from other seeds."""
MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class KindQuality:
    """One kind of weights, keys and values."""

    quantize: str
    kv_cache_dtype: str
    quality: Quality


KINDS = (
    *((quantize, KvCacheDtype.AUTO) for quantize in Quantize),
    (Quantize.NONE, KvCacheDtype.INT8),
    (Quantize.INT8, KvCacheDtype.INT8),
)


def measure(num_documents: int) -> Iterator[KindQuality]:
    """Yield the quality of each kind, the unquantized first."""
    tokenizer = Tokenizer.load(MODEL_DIR)
    texts = itertools.islice(documents(SEED), num_documents)
    windows = [torch.tensor(tokenizer.encode(text)[:MAX_TOKENS]).int() for text in texts]
    name = str(MODEL_DIR)
    reference = WindowModel(ModelFormat.of(name), MAX_TOKENS)
    for quantize, kv in KINDS:
        kind = ModelFormat.of(name, quantize=quantize, kv_cache_dtype=kv)
        quality, _ = measure_quality(windows, WindowModel(kind, MAX_TOKENS), reference)
        yield KindQuality(quantize.value, kv.value, quality)


def main() -> None:
    """Print one JSON object per kind of weights."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=64)
    for kind in measure(parser.parse_args().documents):
        values = asdict(kind)
        sys.stdout.write(json.dumps(values | values.pop("quality")) + "\n")


if __name__ == "__main__":
    main()
