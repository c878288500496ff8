"""Decoders published for their vectors, by the engine, against `transformers`."""

import json

import numpy as np
import pytest
import torch
from chairlift.engine.engine import Engine
from chairlift.engine.pooling.embed_all import pool_all
from chairlift.errors import RequestError
from chairlift.types import Pooling, Request, Sampling, Stopping
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors
from transformers import AutoModel, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from tests.engine import tiny_model

TEXTS = ["lift chair snow", "Ärger", "one two three " * 9]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    """Qwen3-Embedding: no `model.` before names, no head, an end token by the post-processor."""
    folder = tmp_path_factory.mktemp("embedding")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=tiny_model.VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=request.param,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    save_file(
        {name: tensor.contiguous() for name, tensor in model.model.state_dict().items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    tiny_model.write_tokenizer(folder, tiny_model.VOCAB_SIZE - 10)
    path = folder / "tokenizer.json"
    backend = Tokenizer.from_file(str(path))
    end = [("<eos>", tiny_model.EOS)]
    after = processors.TemplateProcessing(single="$A <eos>", special_tokens=end)
    backend.post_processor = processors.Sequence([processors.ByteLevel(), after])
    backend.save(str(path))
    return folder, request.param


def token_of(folder, number):
    return Tokenizer.from_file(str(folder / "tokenizer.json")).id_to_token(number)


def vectors(engine, inputs):
    results = dict(pool_all(engine, [Request(text, pooling=Pooling()) for text in inputs]))
    return [results[place].vector() for place in range(len(inputs))]


def test_vectors_equal_those_of_transformers(folder):
    folder, _ = folder
    reference = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with Engine(folder, dtype="float32") as engine:
        for text, vector in zip(TEXTS, vectors(engine, TEXTS), strict=True):
            inputs = tokenizer(text, return_tensors="pt")
            assert inputs["input_ids"][0, -1] == tiny_model.EOS
            with torch.inference_mode():
                last = reference(inputs["input_ids"]).last_hidden_state[0, -1]
            exact = torch.nn.functional.normalize(last, dim=0).numpy()
            np.testing.assert_allclose(vector, exact, atol=2e-6)


def test_a_model_without_a_head_gives_no_text(folder):
    folder, is_tied = folder
    request = Request("lift", Sampling(temperature=0.0), Stopping(max_tokens=2))
    with Engine(folder, dtype="float32") as engine:
        if is_tied:
            engine.prepare(request)
            return
        with pytest.raises(RequestError, match="this model generates no text"):
            engine.prepare(request)


@pytest.mark.parametrize("ends", [("bos",), ("eos",), ("bos", "eos")])
def test_a_text_has_the_same_tokens_around_it_for_a_vector_and_for_an_answer(tmp_path, ends):
    tiny_model.write(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    tokens = {"bos_token": token_of(tmp_path, 9), "eos_token": "<eos>"}
    config = json.loads(path.read_text()) | tokens
    config |= {f"add_{name}_token": True for name in ends}
    path.write_text(json.dumps(config))
    with Engine(tmp_path, dtype="float32") as engine:
        prompt = list(engine.prepare(Request("snow slope")).prompt)
        inner = engine.tokenizer.encode("snow slope", add_special_tokens=False)
        assert len(prompt) == len(inner) + len(ends)
        by_text, by_ids = vectors(engine, ["snow slope", prompt])
    assert np.array_equal(by_text, by_ids)


def test_an_answer_ends_at_the_end_token_of_the_tokenizer_too(tmp_path):
    tiny_model.write(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"eos_token": token_of(tmp_path, 9)}
    path.write_text(json.dumps(config))
    with Engine(tmp_path, dtype="float32") as engine:
        assert set(engine.model_config.eos_token_ids) == {tiny_model.EOS, 5, 9}
        prepared = engine.prepare(Request("lift", sampling=Sampling(top_k=-1)))
        assert set(prepared.stop_token_ids) >= {tiny_model.EOS, 5, 9}
