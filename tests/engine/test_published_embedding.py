"""Decoders published for their vectors, by the engine, against `transformers`."""

import json

import numpy as np
import pytest
import torch
from chairlift.api.errors import RequestError
from chairlift.api.types import Pooling, Request, Sampling, Stopping
from chairlift.engine.embed_all import pool_all
from chairlift.engine.engine import Engine
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors
from transformers import AutoModel, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from tests.engine import sentence_twin, tiny_model
from tests.model.gguf.files import small_model, write_model
from tests.model.gguf.vocabularies import byte_level, stored

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


@pytest.mark.parametrize(
    ("ends", "pooling_type"), [({"add_eos_token": True}, 3), ({"add_eos_token": False}, 3), ({}, 0)]
)
@pytest.mark.parametrize("types", ["F32", "Q8_0"])
def test_a_gguf_file_gives_the_vectors_of_the_model_that_it_holds(
    tmp_path, ends, pooling_type, types
):
    backend = byte_level("qwen2")
    values = stored(backend)
    end = backend.token_to_id("<|end|>")

    def extra(writer):
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(values["tokens"])
        writer.add_token_types(values["token_type"])
        writer.add_token_merges(values["merges"])
        writer.add_eos_token_id(end)
        writer.add_add_bos_token(False)
        writer.add_uint32("qwen3.pooling_type", pooling_type)
        for key, value in ends.items():
            writer.add_bool(f"tokenizer.ggml.{key}", value)

    # The file has no output.weight.
    model = small_model("qwen3", vocab_size=len(values["tokens"]), tie_word_embeddings=True)
    path = write_model(tmp_path / "m.gguf", model, types, extra=extra)
    with Engine(path, dtype="float32") as engine:
        for text, vector in zip(TEXTS, vectors(engine, TEXTS), strict=True):
            ids = backend.encode(text).ids + [end] * ends.get("add_eos_token", False)
            with torch.inference_mode():
                last = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
            exact = torch.nn.functional.normalize(last, dim=0).numpy()
            np.testing.assert_allclose(vector, exact, atol=5e-6)


def modules(folder, *, include_prompt):
    """Write the files that sentence-transformers has beside a decoder."""
    package = "sentence_transformers.models"
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    pooling = {
        "word_embedding_dimension": 64,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_lasttoken": True,
        "include_prompt": include_prompt,
    }
    files = {
        "modules.json": [
            {"idx": place, "name": str(place), "path": path, "type": f"{package}.{kind}"}
            for place, (path, kind) in enumerate(kinds)
        ],
        "1_Pooling/config.json": pooling,
        "2_Normalize/config.json": {},
        "sentence_roberta_config.json": {"max_seq_length": 14, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": sentence_twin.PROMPTS,
            "default_prompt_name": None,
            "truncate_dim": None,
            "similarity_fn_name": "cosine",
        },
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("flags", [("eos",), ("bos", "eos"), ()])
def test_the_files_of_sentence_transformers_beside_ends_of_a_text(tmp_path, flags, include_prompt):
    """The plain twin reads a folder whose tokenizer.json adds what the flags ask for."""
    ours, plain = tmp_path / "ours", tmp_path / "plain"
    for folder in (ours, plain):
        folder.mkdir()
        tiny_model.write(folder)
        modules(folder, include_prompt=include_prompt)
    path = ours / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {"bos_token": token_of(ours, 9), "eos_token": "<eos>"}
    config |= {f"add_{name}_token": True for name in flags}
    path.write_text(json.dumps(config))
    backend = Tokenizer.from_file(str(plain / "tokenizer.json"))
    begin, end = {"bos": (token_of(plain, 9), 9), "eos": ("<eos>", tiny_model.EOS)}.values()
    pieces = [begin[0]] * ("bos" in flags) + ["$A"] + [end[0]] * ("eos" in flags)
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(pieces), special_tokens=[begin, end]
    )
    backend.save(str(plain / "tokenizer.json"))
    with Engine(ours, dtype="float32") as engine:
        for name in (None, "query", "plain"):
            prompt = sentence_twin.PROMPTS.get(name, "")
            asked = Pooling(truncate_end=True, prompt_name=name)
            results = dict(pool_all(engine, [Request(text, pooling=asked) for text in TEXTS]))
            for place, text in enumerate(TEXTS):
                exact = sentence_twin.vector(plain, text, prompt).numpy()
                np.testing.assert_allclose(results[place].vector(), exact, atol=2e-5)
