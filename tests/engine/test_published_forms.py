"""Decoders as they are published for vectors, against `transformers`."""

import json

import numpy as np
import pytest
import torch
from chairlift.api.errors import ModelError, Reason, RequestError
from chairlift.api.types import FinishReason, Pooling, Request, Sampling, Stopping
from chairlift.engine.embed_all import pool_all
from chairlift.engine.engine import Engine
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from tests.engine import tiny_model
from tests.model import families
from tests.model.family_table import FAMILIES

SETTINGS = {"dtype": "float32", "max_num_seqs": 4, "num_threads": 1, "kv_cache_memory": 1 << 22}
TEXT = "one chair lift up"
QWEN3 = "qwen3, tied, narrow heads"
LAST_TOKEN = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "pooling", "type": "sentence_transformers.models.Pooling"},
]


def published(folder, model, *, is_alone, architecture=None, **config):
    """Save a model; alone it is as AutoModel saves it: without a head, and without its names."""
    families.save(model, folder)
    tiny_model.write_tokenizer(folder, 300)
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), **config}
    if architecture is not None:
        values["architectures"] = [architecture]
    path.write_text(json.dumps(values))
    if is_alone:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        beginning = next(name.partition("layers.")[0] for name in tensors if "layers." in name)
        alone = {
            name.removeprefix(beginning): tensor
            for name, tensor in tensors.items()
            if name.startswith(beginning)
        }
        save_file(alone, file, metadata={"format": "pt"})
    return folder


def vector(engine, text=TEXT, **options):
    """Return the vector of a text, as it is."""
    request = Request(text, pooling=Pooling(normalize=False), **options)
    ((_, pooled),) = pool_all(engine, [request])
    return pooled.vector()


def expected(model, ids):
    with torch.no_grad():
        return model.base_model(torch.tensor([ids])).last_hidden_state[0, -1].numpy()


def reference(family, **sizes):
    if "vocab_size_per_layer_input" in FAMILIES[family][1]:
        sizes["vocab_size_per_layer_input"] = 320
    return families.build(family, vocab_size=320, **sizes)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_base_model_that_was_saved_alone_gives_the_vectors_of_transformers(tmp_path, family):
    model = reference(family)
    published(tmp_path, model, is_alone=True)
    ids = PreTrainedTokenizerFast.from_pretrained(tmp_path).encode(TEXT)
    with Engine(tmp_path, **SETTINGS) as engine:
        assert np.allclose(vector(engine), expected(model, ids), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_base_model_that_was_saved_alone_gives_text_where_its_head_is_the_embedding(
    tmp_path, is_tied
):
    model = reference(QWEN3, tie_word_embeddings=is_tied)
    published(tmp_path, model, is_alone=True)
    with Engine(tmp_path, **SETTINGS) as engine:
        assert len(vector(engine)) == model.config.hidden_size
        if is_tied:
            (answer,) = engine.generate(TEXT, Sampling(temperature=0), Stopping(max_tokens=2))
            assert len(answer.token_ids) == 2
        else:
            with pytest.raises(RequestError) as refused:
                engine.generate(TEXT)
            assert refused.value.reason is Reason.UNSUPPORTED


@pytest.mark.parametrize("is_alone", [True, False])
def test_an_architecture_without_a_head_gives_vectors_alone(tmp_path, is_alone):
    model = reference(QWEN3, tie_word_embeddings=True)
    published(tmp_path, model, is_alone=is_alone, architecture="Qwen3Model")
    ids = PreTrainedTokenizerFast.from_pretrained(tmp_path).encode(TEXT)
    with Engine(tmp_path, **SETTINGS) as engine:
        assert np.allclose(vector(engine), expected(model, ids), atol=2e-4)
        with pytest.raises(RequestError) as refused:
            engine.generate(TEXT)
        assert refused.value.reason is Reason.UNSUPPORTED


def without_head(folder, beginning="model."):
    file = folder / "model.safetensors"
    tensors = {
        beginning + name.removeprefix("model."): tensor
        for name, tensor in load_file(file).items()
        if name != "lm_head.weight"
    }
    save_file(tensors, file)


@pytest.mark.parametrize("beginning", ["model.", "_orig_mod.model.", "language_model.model."])
def test_a_model_of_text_whose_head_is_missing_is_refused(tmp_path, beginning):
    published(tmp_path, reference("llama", tie_word_embeddings=False), is_alone=False)
    without_head(tmp_path, beginning)
    with pytest.raises(ModelError, match=r"lm_head\.weight: missing"):
        Engine(tmp_path, **SETTINGS)


def test_a_model_of_sentence_transformers_needs_no_head(tmp_path):
    model = reference("llama", tie_word_embeddings=False)
    published(tmp_path, model, is_alone=False)
    without_head(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(LAST_TOKEN))
    (tmp_path / "pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True}
    (tmp_path / "pooling" / "config.json").write_text(json.dumps(pooling))
    with Engine(tmp_path, **SETTINGS) as engine:
        ids = engine.tokenizer.encode(TEXT)
        assert np.allclose(vector(engine), expected(model, ids), atol=2e-4)


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_eos_token": True}])
def test_a_vector_begins_and_ends_as_the_configuration_says(tmp_path, flags):
    model = reference("llama")
    published(tmp_path, model, is_alone=False)
    path = tmp_path / "tokenizer_config.json"
    values = json.loads(path.read_text()) | {"bos_token": "lift"} | flags
    path.write_text(json.dumps(values))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    plain = tokenizer.encode(TEXT, add_special_tokens=False)
    begin = [tokenizer.bos_token_id] if "add_bos_token" in flags else []
    end = [tokenizer.eos_token_id] if "add_eos_token" in flags else []
    with Engine(tmp_path, **SETTINGS) as engine:
        with_ends = expected(model, begin + plain + end)
        assert np.allclose(vector(engine), with_ends, atol=2e-4)
        assert list(engine.prepare(Request(TEXT)).prompt) == begin + plain + end
        without = vector(engine, add_special_tokens=False)
        assert np.allclose(without, expected(model, plain), atol=2e-4)


def test_every_end_that_a_file_names_ends_an_answer(tmp_path):
    published(tmp_path, reference("llama"), is_alone=False, eos_token_id=7)
    generation = {"eos_token_id": [8, 9], "top_k": -1}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "lift"}))
    with Engine(tmp_path, **SETTINGS) as engine:
        # <eos> of tokenizer_config.json is 0.
        ends = {7, 8, 9, 0, *engine.tokenizer.encode("lift")}
        assert set(engine.model_config.eos_token_ids) == ends
        for end in ends:
            sampling = Sampling(temperature=0, logit_bias={end: 100.0})
            (answer,) = engine.generate(TEXT, sampling, Stopping(max_tokens=3))
            assert answer.token_ids == [end]
            assert answer.reason is FinishReason.STOP


def test_a_token_of_a_list_that_the_model_has_no_embedding_for_is_text(tmp_path):
    published(tmp_path, families.build("llama", vocab_size=310), is_alone=False)
    listed = [f"<extra {number}>" for number in range(250)]
    path = tmp_path / "tokenizer_config.json"
    values = json.loads(path.read_text()) | {"extra_special_tokens": listed}
    path.write_text(json.dumps(values))
    with Engine(tmp_path, **SETTINGS) as engine:
        assert len(engine.tokenizer.encode("<extra 0>")) == 1
        ids = engine.prepare(Request("a <extra 249>")).prompt
        assert len(ids) > 3
        assert max(ids) < 310
        assert len(vector(engine, "<extra 249>")) == engine.model_config.spec.hidden_size


@pytest.mark.parametrize("pooling", [None, Pooling()])
def test_a_token_of_the_file_that_the_model_has_no_embedding_for_is_refused(tmp_path, pooling):
    published(tmp_path, families.build("llama", vocab_size=310), is_alone=False)
    path = str(tmp_path / "tokenizer.json")
    backend = Backend.from_file(path)
    backend.add_special_tokens([f"<extra {number}>" for number in range(250)])
    backend.save(path)
    with Engine(tmp_path, **SETTINGS) as engine:
        assert engine.tokenizer.encode("<extra 249>")[0] >= 310
        with pytest.raises(
            RequestError, match="token that the model has no embedding for"
        ) as refused:
            engine.prepare(Request("a <extra 249>", pooling=pooling))
        assert refused.value.reason is Reason.BAD_PARAMETER
        assert refused.value.field == ("prompt" if pooling is None else "input")
        engine.prepare(Request("a <extra 0>", pooling=pooling))
        # A word with it is in no answer.
        banned = Sampling(temperature=0, bad_words=("<extra 249>",))
        engine.generate(TEXT, banned, Stopping(max_tokens=2))
