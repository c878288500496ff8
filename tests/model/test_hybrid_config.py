"""Hybrids whose config.json asks for what is not computed are refused by the name of the field."""

import json
from dataclasses import replace

import pytest
from chairlift.api.errors import ModelError
from chairlift.model.config import ModelConfig
from chairlift.model.weights.layers import load_weights
from transformers import OlmoHybridConfig

from tests.model.families import build

SIZES = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
NEMOTRON = {
    **SIZES,
    "architectures": ["NemotronHForCausalLM"],
    "head_dim": 16,
    "hybrid_override_pattern": "ME*-",
    "n_routed_experts": 8,
}
FALCON = {
    **SIZES,
    "architectures": ["FalconH1ForCausalLM"],
    "num_hidden_layers": 2,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 3,
    "mamba_d_head": 32,
}
OLMO = {
    **SIZES,
    "architectures": ["OlmoHybridForCausalLM"],
    "num_hidden_layers": 3,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 32,
}
REFUSED = {
    "more heads than numbers": (FALCON, {"num_attention_heads": 128}, "num_attention_heads: expec"),
    "a letter": (NEMOTRON, {"hybrid_override_pattern": "M*X"}, r"M, \*, -, E alone, .*got"),
    "a pattern that is a list": (NEMOTRON, {"hybrid_override_pattern": ["M", "*"]}, "at most 4096"),
    "no attention": (NEMOTRON, {"hybrid_override_pattern": "MM-"}, "one of them attention"),
    "a name": (NEMOTRON, {"layers_block_type": ["attention", "rnn"]}, "layers_block_type: expec"),
    "a name that is a list": (NEMOTRON, {"layers_block_type": [["moe"]]}, "layers_block_type"),
    "many blocks": (NEMOTRON, {"layers_block_type": ["attention"] * 4097}, "at most 4096 blocks"),
    "groups of experts": (NEMOTRON, {"n_group": 2}, "n_group: expected 1, got 2"),
    "shared experts": (NEMOTRON, {"n_shared_experts": 2}, "n_shared_experts: expected 1, got 2"),
    "latent experts": (NEMOTRON, {"moe_latent_size": 32}, "moe_latent_size: expected null, got 32"),
    "more chosen than there are": (NEMOTRON, {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    "groups of heads": (NEMOTRON, {"n_groups": 3}, "n_groups: expected a divisor of 128, got 3"),
    "an activation": (NEMOTRON, {"mlp_hidden_act": "relu"}, "mlp_hidden_act: expected silu"),
    "of the scan": (NEMOTRON, {"mamba_hidden_act": "gelu"}, "mamba_hidden_act: expected silu"),
    "time steps": (NEMOTRON, {"time_step_limit": [0.0, 1.0]}, "time_step_limit: expected 0 to inf"),
    "a window": (NEMOTRON, {"sliding_window": 20}, "sliding_window: expected null"),
    "a norm before a gate": (
        FALCON,
        {"mamba_rms_norm": True},
        "mamba_norm_before_gate: expected",
    ),
    "four factors": (
        FALCON,
        {"ssm_multipliers": [1.0] * 4},
        "ssm_multipliers: expected a list of",
    ),
    "a factor as text": (FALCON, {"mlp_multipliers": [1.0, "2"]}, "mlp_multipliers: expected"),
    "another bias": (
        FALCON,
        {"projectors_bias": True},
        "projectors_bias: expected false, as mam",
    ),
    "a factor before a bias": (
        FALCON,
        {"attention_bias": True, "attention_in_multiplier": 2.0},
        "attention_bias: expected false beside an attention_in_multiplier",
    ),
    "the same of the scan": (
        FALCON,
        {"mamba_proj_bias": True, "ssm_in_multiplier": 2.0},
        "mamba_proj_bias: expected false beside an ssm_in_multiplier",
    ),
    "heads of another size": (FALCON, {"mamba_d_head": 48}, "mamba_d_head: expected 32"),
    "a kind of layer": (
        OLMO,
        {"layer_types": ["sliding_attention"] * 3},
        "layer_types: expected",
    ),
    "heads that share no keys": (
        OLMO,
        {"linear_num_value_heads": 6},
        "linear_num_key_heads: exp",
    ),
    "narrow values": (OLMO, {"linear_value_head_dim": 20}, "value_dim: expected a multiple of 16"),
    "a wide stream": (NEMOTRON, {"residual_in_fp32": True}, "residual_in_fp32: expected null or"),
}


@pytest.fixture
def load(tmp_path):
    def load(values):
        (tmp_path / "config.json").write_text(json.dumps(values))
        return ModelConfig.load(tmp_path)

    return load


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_hybrid_asks_for_and_is_not_computed_is_named(load, case, tmp_path):
    values, changes, pattern = REFUSED[case]
    with pytest.raises(ModelError, match=pattern) as error:
        load({**values, **changes})
    message = str(error.value)
    assert message.startswith(f"{tmp_path / 'config.json'}: ")
    assert "\n" not in message


def test_blocks_have_letters_or_names(load):
    spec = load(NEMOTRON).spec
    for names in (
        ["mamba", "moe", "attention", "mlp"],
        ["linear_attention", "moe", "full_attention", "mlp"],
    ):
        assert load({**NEMOTRON, "layers_block_type": names}).spec == spec
    first, second, third, fourth = spec.layers
    assert first.attention is None
    assert third.recurrent is None
    assert third.attention.rope is None
    assert first.feed_forward is third.feed_forward is None
    assert (second.mixers, fourth.mixers) == ((), ())
    assert second.experts.multiplier == 1.0
    assert spec.layer_groups == (None, None, 0, None)


def test_a_layer_with_attention_and_a_state_has_keys_and_is_a_hybrid(load):
    spec = load(FALCON).spec
    assert spec.layer_groups == (0, 0)
    assert spec.has_state
    assert [len(layer.mixers) for layer in spec.layers] == [2, 2]
    normed = replace(spec.layers[0], norm_after=True)
    assert normed.unsupported_reason() == "norm_after: expected one mixer"


ROPE = [
    ({}, True),
    ({"rope_theta": None}, False),
    ({"rope_theta": 5e5}, True),
    ({"rope_parameters": {"rope_theta": None}}, False),
    ({"rope_parameters": {"rope_theta": None}, "rope_theta": 5e5}, False),
    ({"rope_parameters": None, "rope_theta": None}, False),
    ({"rope_parameters": {"rope_type": "default"}}, True),
]


@pytest.mark.parametrize(("changes", "has_rope"), ROPE)
def test_olmo_hybrid_has_rope_where_its_theta_is_not_null(load, changes, has_rope):
    spec = load({**OLMO, **changes}).spec
    assert [layer.attention is None for layer in spec.layers] == [True, True, False]
    assert (spec.layers[-1].attention.rope is not None) == has_rope
    reference = OlmoHybridConfig(**{**OLMO, **changes}).rope_parameters
    assert (reference.get("rope_theta") is not None) == has_rope


def test_an_olmo_hybrid_that_transformers_saved_is_refused(tmp_path):
    build("olmo hybrid, no rope, heads that share keys").save_pretrained(tmp_path)
    config = ModelConfig.load(tmp_path)
    with pytest.raises(ModelError, match=r"input_layernorm\.weight: missing"):
        load_weights(tmp_path, config)


def test_code_of_a_family_that_we_compute_is_not_run(load):
    assert load({**NEMOTRON, "auto_map": {"AutoModel": "modeling.Model"}}).spec.has_state


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_parallel_halves_are_two(load, part):
    layer = load({**NEMOTRON, "layers_block_type": ["attention", "mlp"]}).spec.layers[0]
    whole = replace(layer, feed_forward=load(NEMOTRON).spec.layers[3].feed_forward, parallel=True)
    assert whole.unsupported_reason() is None
    expected = "parallel: expected two halves, with a norm before them alone"
    assert replace(whole, **{part: None}).unsupported_reason() == expected
