"""Documents to training sequences."""

import random
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer

from tools.train_demo.text import END_OF_TEXT, documents
from tools.train_demo.tokenizer import token_id

_DOCUMENTS_AT_ONCE = 64


class Packer:
    """Fill batches of token ids with documents.

    Every sequence starts where a document starts, because that is what position 0 of a prompt
    looks like:

        | story <end> question <end> counting <end> chat ... |   the last one is cut at the edge
        | chat ... <end> question <end> ...                  |   and starts the next one, whole
    """

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._end = token_id(tokenizer, END_OF_TEXT)
        self._documents = self._encode(seed)
        self._cut: list[int] = []

    def batch(self, rows: int, length: int) -> torch.Tensor:
        """Return the next batch, int64 [rows, length]."""
        return torch.tensor([self._row(length) for _ in range(rows)])

    def _row(self, length: int) -> list[int]:
        # Some callers put the begin token before a prompt and some do not: the model sees both.
        row = [self._end] if self._rng.random() < 0.3 else []
        document: list[int] = []
        while len(row) < length:
            document = self._cut or next(self._documents)
            self._cut = []
            row += document
        # A document that no row of this length can hold is not tried again.
        if len(row) > length > len(document):
            self._cut = document
        return row[:length]

    def _encode(self, seed: int) -> Iterator[list[int]]:
        stream = documents(seed)
        while True:
            texts = [next(stream) for _ in range(_DOCUMENTS_AT_ONCE)]
            for encoding in self._tokenizer.encode_batch_fast(texts):
                yield [*encoding.ids, self._end]
