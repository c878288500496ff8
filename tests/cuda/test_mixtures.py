"""Small mixtures of experts on an emulated GPU, beside `transformers`."""

from dataclasses import replace

import pytest
from chairlift.engine.loading.devices import layer_unsupported_reason
from chairlift.model.config import ModelConfig
from transformers import (
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.cuda.small_models import (
    SIZES,
    assert_alone_is_as_crowded,
    assert_answers_are_those_of,
    make,
    write,
)

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""

MODELS = {
    # A dense layer; more experts than a decode has pairs, and an odd width.
    "qwen3": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **SIZES,
            moe_intermediate_size=40,
            num_experts=12,
            num_experts_per_tok=3,
            mlp_only_layers=[0],
            norm_topk_prob=True,
        ),
    ),
    "mixtral": (
        MixtralForCausalLM,
        MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=20),
    ),
    "granite": (
        GraniteMoeForCausalLM,
        GraniteMoeConfig(
            **SIZES,
            num_local_experts=5,
            num_experts_per_tok=2,
            attention_multiplier=0.1,
            residual_multiplier=0.5,
            embedding_multiplier=3.0,
            logits_scaling=2.0,
        ),
    ),
    # A dense layer, then a shared expert of another width and a bias of the choice.
    "ernie": (
        Ernie4_5_MoeForCausalLM,
        Ernie4_5_MoeConfig(
            **SIZES,
            moe_num_experts=6,
            moe_k=2,
            moe_intermediate_size=32,
            moe_num_shared_experts=2,
            pad_token_id=0,
        ),
    ),
    # Biases of the router and of the layers, clamped gates.
    "gpt-oss": (
        GptOssForCausalLM,
        GptOssConfig(
            **SIZES,
            num_local_experts=6,
            num_experts_per_tok=2,
            sliding_window=20,
            swiglu_limit=0.7,
            swiglu_alpha=1.3,
        ),
    ),
}


REFUSED = {
    "experts of no multiple of 8 numbers": {"intermediate_size": 36},
    "more than 2048 experts": {"num": 2049},
    "more than 32 of them for a token": {"num": 64, "top_k": 33},
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_and_log_probabilities_are_those_of_transformers(name, tmp_path):
    reference = write(tmp_path, MODELS[name])
    engine = make(tmp_path, device="cuda", dtype="float16")
    # Chunks of more and of fewer rows than a large tile has for each expert, and decodes.
    assert_answers_are_those_of(reference, engine, 0.01)


@pytest.mark.parametrize("name", ["qwen3", "ernie"])
def test_answers_do_not_depend_on_the_batch(name, tmp_path, monkeypatch):
    write(tmp_path, MODELS[name])
    assert_alone_is_as_crowded(tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", REFUSED)
def test_sizes_that_no_kernel_takes_are_refused_by_name(kind, tmp_path):
    model_class, config = MODELS["mixtral"]
    config.architectures = [model_class.__name__]
    config.save_pretrained(tmp_path)
    spec = ModelConfig.load(tmp_path).spec
    assert layer_unsupported_reason(spec) is None
    first, second = spec.layers
    experts = replace(second.feed_forward, **REFUSED[kind])
    other = replace(spec, layers=(first, replace(second, feed_forward=experts)))
    assert layer_unsupported_reason(other) == f"model: {kind} are not supported on a GPU"
