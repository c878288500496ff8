"""Random files of sentence-transformers against a plain twin, and what is refused by name."""

import json
import random

import numpy as np
import pytest
from chairlift.api.errors import ModelError, RequestError
from chairlift.api.types import Pooling, Request
from chairlift.engine.embed_all import pool_all
from chairlift.engine.engine import Engine
from chairlift.engine.pooling.ranking import ranking, rerank_requests
from chairlift.model.encoders.sentence import load_sentence_config

from tests.engine import sentence_twin, tiny_encoder, tiny_model

TEXTS = ["LIFT chair Snow", "go up one two Three", " ".join(["slope ride"] * 30)]
SENTENCE = {
    "modules.json": [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
}


def write_cased(folder):
    """Write an encoder whose tokenizer keeps the case of letters."""
    tiny_encoder.write(folder)
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    values["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(values))


def vectors(engine, texts, **pooling):
    requests = [Request(text, pooling=Pooling(truncate_end=True, **pooling)) for text in texts]
    results = dict(pool_all(engine, requests))
    return [results[place].vector() for place in range(len(texts))]


@pytest.mark.parametrize("seed", range(12))
def test_random_modules_give_the_vectors_of_their_twin(tmp_path, seed):
    write_cased(tmp_path)
    default, _ = sentence_twin.write_random_modules(tmp_path, random.Random(seed), 64)
    with Engine(tmp_path, dtype="float32", max_num_seqs=4) as engine:
        is_scaled = engine.pooling.normalize
        for name in (None, "query", "plain"):
            prompt = sentence_twin.PROMPTS.get(name or default, "")
            ours = vectors(engine, TEXTS, prompt_name=name)
            for text, vector in zip(TEXTS, ours, strict=True):
                exact = sentence_twin.vector(tmp_path, text, prompt).numpy()
                if is_scaled:
                    # A truncated vector is scaled again here.
                    exact = exact / np.linalg.norm(exact)
                np.testing.assert_allclose(vector, exact, atol=2e-5 * max(1, np.abs(exact).max()))


def write(folder, files, **changes):
    for name, content in {**files, **changes}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def stack(*kinds):
    """Return the modules behind a transformer, each with a folder of its own."""
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    return modules + [
        {"path": f"{place}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds, start=1)
    ]


GENERAL, SIZES = "config_sentence_transformers.json", "sentence_bert_config.json"
DENSE = {"in_features": 64, "out_features": 32}
REFUSED = {
    "layers": ({"modules.json": stack("Pooling", "CNN")}, "type: expected Pooling, .*, got CNN"),
    "tasks": ({"modules.json": stack("Router")}, "type: expected Pooling, .*, got Router"),
    "many layers": ({"modules.json": stack("WeightedLayerPooling")}, "got WeightedLayerPooling"),
    "two poolings": ({"modules.json": stack("Pooling", "Pooling")}, "type: .*, got Pooling"),
    "a pooling at the end": (
        {"modules.json": stack("Normalize", "Pooling")},
        "type: .*, got Pooling",
    ),
    "no transformer": ({"modules.json": stack("Pooling")[1:]}, "type: .*, got Pooling"),
    "code": (
        {"modules.json": [{"path": "", "type": "custom_st.Transformer"}]},
        "type: expected a class of sentence_transformers",
    ),
    "a transformer elsewhere": (
        {"modules.json": [{**stack()[0], "path": "0_Transformer"}]},
        "path: expected the folder of the model itself",
    ),
    "arguments of a module": (
        {"modules.json": [{**stack()[0], "kwargs": ["task"]}]},
        "kwargs: expected none",
    ),
    "two modes": (
        {"1_Pooling/config.json": {"pooling_mode": ["cls", "mean"]}},
        "pooling_mode: expected lasttoken, cls, mean, max or last",
    ),
    "a field of pooling": (
        {"1_Pooling/config.json": {"pooling_weights": 1}},
        "pooling_weights: expected no such field",
    ),
    "a size of pooling": (
        {"1_Pooling/config.json": {"embedding_dimension": 32}},
        "expected vectors of 64 numbers, got 32",
    ),
    "an activation": (
        {
            "modules.json": stack("Pooling", "Dense"),
            "2_Dense/config.json": {**DENSE, "activation_function": "torch.nn.Softmax"},
        },
        "activation_function: expected identity, tanh, .* of torch.nn, got",
    ),
    "a residual": (
        {
            "modules.json": stack("Pooling", "Dense"),
            "2_Dense/config.json": {**DENSE, "use_residual": True},
        },
        "use_residual: expected false",
    ),
    "inputs of a dense layer": (
        {
            "modules.json": stack("Pooling", "Dense"),
            "2_Dense/config.json": {**DENSE, "module_input_name": "token_embeddings"},
        },
        "module_input_name: expected sentence_embedding",
    ),
    "a dense layer that does not fit": (
        {
            "modules.json": stack("Pooling", "Dense"),
            "2_Dense/config.json": {**DENSE, "in_features": 32},
        },
        "expected vectors of 64 numbers, got 32",
    ),
    "tokens that are scaled": (
        {
            "modules.json": stack("Pooling", "Normalize"),
            "2_Normalize/config.json": {"module_input_name": "token_embeddings"},
        },
        "module_input_name: expected sentence_embedding",
    ),
    "another model": ({GENERAL: {"model_type": "SparseEncoder"}}, "model_type: expected Sentence"),
    "a similarity": ({GENERAL: {"similarity_fn_name": "maxsim"}}, "similarity_fn_name: expected"),
    "a default without a prompt": (
        {GENERAL: {"default_prompt_name": "query"}},
        "default_prompt_name: expected the name of a prompt",
    ),
    "more numbers than there are": (
        {GENERAL: {"truncate_dim": 65}},
        "truncate_dim: expected at most 64, got 65",
    ),
    "a head": ({SIZES: {"transformer_task": "fill-mask"}}, "transformer_task: expected feature"),
    "arguments": (
        {SIZES: {"model_args": {"num_hidden_layers": 1}}},
        "model_args: expected none but",
    ),
    "a chat": ({SIZES: {"modality_config": {"message": {}}}}, "modality_config: expected text"),
    "queries of a length": ({SIZES: {"query_length": 32}}, "query_length: expected none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_is_refused_by_the_name_of_the_field(tmp_path, case):
    changes, pattern = REFUSED[case]
    write(tmp_path, SENTENCE, **changes)
    with pytest.raises(ModelError, match=pattern) as error:
        load_sentence_config(tmp_path).vector_size(tmp_path, 64)
    assert str(error.value).startswith(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sentence_xlnet_config.json": {"max_seq_length": 30}}, 30),
        ({"tokenizer_config.json": {"model_max_length": 31}}, 31),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, None),
        ({SIZES: {"tokenizer_args": {"model_max_length": 32}, "max_seq_length": 33}}, 32),
        (
            {SIZES: {"max_seq_length": 34}, "tokenizer_config.json": {"model_max_length": 31}},
            34,
        ),
    ],
)
def test_the_longest_text_is_in_one_of_several_files(tmp_path, files, expected):
    write(tmp_path, SENTENCE, **files)
    assert load_sentence_config(tmp_path).max_length == expected


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_a_ranking_is_by_the_similarity_of_the_model(tmp_path, similarity):
    files = {**SENTENCE, GENERAL: {"similarity_fn_name": similarity}}
    tiny_encoder.write(tmp_path, sentence=files)
    with Engine(tmp_path, dtype="float32") as engine:
        requests = rerank_requests("lift", TEXTS, engine.pooling, truncate_end=True)
        results = dict(pool_all(engine, requests))
        ranked = ranking([results[place] for place in range(4)], engine.pooling)
        query, *others = vectors(engine, ["lift", *TEXTS], normalize=similarity == "cosine")
    scores = {
        "euclidean": [-np.linalg.norm(query - other) for other in others],
        "manhattan": [-np.abs(query - other).sum() for other in others],
    }.get(similarity, [query @ other for other in others])
    assert [index for index, _, _ in ranked] == list(np.argsort(np.negative(scores)))
    np.testing.assert_allclose([score for _, score, _ in ranked], sorted(scores)[::-1], rtol=1e-5)


def test_a_request_names_more_numbers_than_the_files_do(tmp_path):
    tiny_encoder.write(tmp_path, sentence={**SENTENCE, GENERAL: {"truncate_dim": 10}})
    with Engine(tmp_path, dtype="float32") as engine:
        (short,), (long,) = vectors(engine, ["lift"]), vectors(engine, ["lift"], dimensions=64)
        with pytest.raises(RequestError, match="dimensions: expected"):
            vectors(engine, ["lift"], dimensions=65)
    assert np.array_equal(short, long[:10])
    assert len(long) == 64


def test_a_decoder_refuses_lower_case_by_name(tmp_path):
    tiny_model.write(tmp_path)
    pooling = {"1_Pooling/config.json": {"pooling_mode_lasttoken": True}}
    write(tmp_path, {**SENTENCE, **pooling}, **{SIZES: {"do_lower_case": True}})
    with pytest.raises(ModelError, match="pooling last of a decoder, got do_lower_case"):
        Engine(tmp_path)
