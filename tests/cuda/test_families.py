"""Small models with parts that not every family has, on an emulated GPU, beside `transformers`."""

import pytest
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from tests.cuda.small_models import (
    GEMMA4,
    KINDS,
    SIZES,
    assert_alone_is_as_crowded,
    assert_answers_are_those_of,
    make,
    write,
)
from tests.cuda.small_models import MODELS as SMALL_MODELS

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the emulation."""

WIDE = {**SIZES, "hidden_size": 256}
"""Heads are a part of it in some families."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS = {
    "gelu": (LlamaForCausalLM, LlamaConfig(**SIZES, hidden_act="gelu")),
    "gelu by tanh": (LlamaForCausalLM, LlamaConfig(**SIZES, hidden_act="gelu_pytorch_tanh")),
    # Norms of weights less 1 (also of heads), norms behind both halves, soft caps, windows.
    "gemma 2": (
        Gemma2ForCausalLM,
        Gemma2Config(
            **SIZES,
            sliding_window=20,
            layer_types=KINDS,
            query_pre_attn_scalar=48,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=30.0,
        ),
    ),
    "gemma 3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**SIZES, sliding_window=20, layer_types=KINDS, query_pre_attn_scalar=48),
    ),
    # Layer norms with biases, a feed-forward without a gate.
    "starcoder 2": (
        Starcoder2ForCausalLM,
        Starcoder2Config(**WIDE, sliding_window=20),
    ),
    # RoPE of a part of a head.
    "phi 3": (
        Phi3ForCausalLM,
        Phi3Config(
            **WIDE,
            sliding_window=20,
            pad_token_id=0,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.75,
            },
        ),
    ),
    # Norms over all heads.
    "olmo 2": (Olmo2ForCausalLM, Olmo2Config(**WIDE)),
    "olmo 3": (Olmo3ForCausalLM, Olmo3Config(**WIDE, sliding_window=20, layer_types=KINDS)),
    # RoPE of neighbours, layers without it, layer norms without biases, parallel halves.
    "cohere 2": (
        Cohere2ForCausalLM,
        Cohere2Config(
            **WIDE, sliding_window=20, layer_types=KINDS, logit_scale=0.4, pad_token_id=0
        ),
    ),
    # Queries by position.
    "ministral 3": (
        Ministral3ForCausalLM,
        Ministral3Config(**SIZES, rope_parameters={**YARN, "llama_4_scaling_beta": 0.3}),
    ),
    # Norms of values, inputs of each layer, factors behind layers; heads of one size alone.
    "gemma 4": (Gemma4ForCausalLM, Gemma4TextConfig(**GEMMA4, hidden_size_per_layer_input=24)),
    # Heads of two sizes in one pool, and layers that see the keys of an earlier one.
    "gemma 4, two sizes": SMALL_MODELS["gemma 4"],
    # As 31B and 26B-A4B: fewer heads, too, where all tokens are seen.
    "gemma 4, heads of two counts": (
        Gemma4ForCausalLM,
        Gemma4TextConfig(
            **{**GEMMA4, "global_head_dim": 128, "num_global_key_value_heads": 1},
            hidden_size_per_layer_input=0,
            attention_k_eq_v=True,
        ),
    ),
    # Keys that are values where all tokens are seen.
    "gemma 4, keys as values": (
        Gemma4ForCausalLM,
        Gemma4TextConfig(**GEMMA4, hidden_size_per_layer_input=0, attention_k_eq_v=True),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_and_log_probabilities_are_those_of_transformers(name, tmp_path):
    reference = write(tmp_path, MODELS[name])
    engine = make(tmp_path, device="cuda", dtype="float16")
    assert_answers_are_those_of(reference, engine, 0.03)


@pytest.mark.parametrize("name", ["starcoder 2", "olmo 2", "cohere 2", "gemma 4, two sizes"])
def test_answers_do_not_depend_on_the_batch(name, tmp_path, monkeypatch):
    write(tmp_path, MODELS[name])
    assert_alone_is_as_crowded(tmp_path, monkeypatch)
