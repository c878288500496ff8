"""The real MiniLM against `transformers`, as sentence-transformers pools it."""

import numpy as np
import pytest
import torch
from chairlift.api.types import Pooling, Request
from chairlift.checkpoints.files.folder import resolve_model
from chairlift.engine.embed_all import pool_all
from chairlift.engine.engine import Engine

from tests.minilm import needs_minilm

TEXTS = (
    "A chair lift never stops for its riders.",
    "How do I get to the top of the mountain?",
    "The scheduler admits a waiting request when a row is free.",
    "Zażółć gęślą jaźń — 日本語 🎿",
    "word " * 240,
)


@pytest.fixture(scope="module")
def expected():
    from transformers import AutoModel, AutoTokenizer

    folder = resolve_model("minilm")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    vectors = []
    for text in TEXTS:
        with torch.inference_mode():
            inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
            mean = model(**inputs).last_hidden_state[0].float().mean(0)
        vectors.append(torch.nn.functional.normalize(mean, dim=0).numpy())
    return vectors


@needs_minilm
@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"dtype": "float32"}, 0.99999),
        ({}, 0.9995),
        ({"dtype": "float32", "quantize": "int8"}, 0.995),
        ({"quantize": "int8"}, 0.995),
    ],
)
def test_vectors_of_minilm_are_those_of_sentence_transformers(expected, settings, least):
    with Engine("minilm", **settings) as engine:
        requests = [Request(text, pooling=Pooling(truncate_end=True)) for text in TEXTS]
        results = dict(pool_all(engine, requests))
    for place, vector in enumerate(expected):
        ours = results[place].vector()
        assert abs(np.linalg.norm(ours) - 1) < 1e-6
        assert float(ours @ vector) > least
