"""Fields that `transformers` reads in its own way: read as there, or refused by name."""

import json

import pytest
from chairlift.api.errors import ModelError
from chairlift.model.config import ModelConfig

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 112,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 131,
}


@pytest.fixture
def load(tmp_path):
    """Return `load(**changes)`: the configuration of CONFIG with changes."""

    def get(**changes):
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        return ModelConfig.load(tmp_path)

    return get


def test_a_length_beside_the_object_of_rope_counts_before_the_one_in_it(load):
    rope = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32}
    outer = load(rope_scaling=rope, original_max_position_embeddings=64)
    assert outer == load(rope_scaling={**rope, "original_max_position_embeddings": 64})
    assert outer != load(rope_scaling=rope)
    del rope["original_max_position_embeddings"]
    assert load(rope_scaling=rope).spec.ropes[0].scaling.original_max_position_embeddings == 256


@pytest.mark.parametrize("architecture", ["Ministral3", "GptOss"])
def test_null_rope_parameters_are_the_default_of_the_class(load, architecture):
    changes = {"architectures": [f"{architecture}ForCausalLM"]}
    config = load(rope_parameters=None, head_dim=16, **changes)
    assert config == load(head_dim=16, **changes)
    assert all(type(rope.scaling).__name__ == "YarnScaling" for rope in config.spec.ropes)


@pytest.mark.parametrize(
    ("names", "ours"),
    [
        (("silu", "swish"), "silu"),
        (("gelu", "gelu_python"), "gelu"),
        (("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh"), "gelu_tanh"),
    ],
)
def test_an_activation_has_several_names(load, names, ours):
    assert {load(hidden_act=name).spec.layers[0].feed_forward.activation for name in names} == {
        ours
    }


REFUSED = {
    "half a head in llama": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        r"rope_parameters\.partial_rotary_factor: expected 1 for this architecture",
    ),
    "another half in bamba": (
        {"architectures": ["BambaForCausalLM"], "attn_layer_indices": [0]}
        | {"partial_rotary_factor": 0.25},
        "partial_rotary_factor: expected 0.5, or one in rope_parameters, got 0.25",
    ),
    "no causal mask": ({"is_causal": False}, "is_causal: expected true, got false"),
    "some windows of qwen3 moe": (
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        "layer_types: expected sliding_attention alone, as the window of every layer says",
    ),
    "layers of their own": (
        {"per_layer_config": {"0": {"intermediate_size": 80}}},
        "per_layer_config: expected null for this architecture",
    ),
    "rope of phi3": (
        {"architectures": ["Phi3ForCausalLM"], "rope_scaling": {"type": "linear", "factor": 2}},
        'rope_scaling.type: expected default or longrope, got "linear"',
    ),
    "an activation of lfm2": (
        {"architectures": ["Lfm2ForCausalLM"], "hidden_act": "gelu"},
        'hidden_act: expected silu, got "gelu"',
    ),
    **{
        f"a pattern of {architecture}": (
            {"architectures": [f"{architecture}ForCausalLM"], "sliding_window_pattern": 3},
            rf"sliding_window_pattern: expected {default}, or layer_types, got 3",
        )
        for architecture, default in {"Gemma2": 2, "Gemma4": 6, "Olmo3": 4, "GptOss": 2}.items()
    },
    **{
        f"flat rope of {architecture}": (
            {
                "architectures": [f"{architecture}ForCausalLM"],
                "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
            "rope_parameters: expected an object for each kind of layer, full_attention and sli",
        )
        for architecture in ("Gemma3", "Olmo3", "Gemma4")
    },
    "a name of old files in gemma3": (
        {"architectures": ["Gemma3ForCausalLM"], "rope_scaling": {"type": "linear", "factor": 8.0}},
        'rope_scaling.type: expected rope_type in its place, got "linear"',
    ),
    "one theta of olmo3": (
        {"architectures": ["Olmo3ForCausalLM"], "rope_theta": 10_000.0},
        "rope_parameters.sliding_attention.rope_theta: expected a number, got null",
    ),
    "truncate of a kind of layer": (
        {
            "architectures": ["Olmo3ForCausalLM"],
            "layer_types": ["full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "factor": 4.0, "truncate": False}
            },
        },
        "rope_parameters: expected no truncate of false",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_transformers_reads_in_another_way_is_refused_by_name(load, case):
    changes, pattern = REFUSED[case]
    with pytest.raises(ModelError, match=rf"config\.json: {pattern}") as error:
        load(**changes)
    assert "\n" not in str(error.value)
