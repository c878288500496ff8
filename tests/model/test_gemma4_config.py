"""The fields of Gemma 4: both ways to write heads of layers, and what is refused by name."""

import json

import pytest
from chairlift.api.errors import ModelError
from chairlift.model.config import ModelConfig

FULL, SLIDING = "full_attention", "sliding_attention"
CONFIG = {
    "architectures": ["Gemma4ForCausalLM"],
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "max_position_embeddings": 256,
    "sliding_window": 20,
    "layer_types": 3 * [SLIDING, FULL],
}


@pytest.fixture
def load(tmp_path):
    def from_values(**changes):
        values = {name: value for name, value in {**CONFIG, **changes}.items() if value is not ...}
        (tmp_path / "config.json").write_text(json.dumps(values))
        return ModelConfig.load(tmp_path).spec

    return from_values


def test_heads_of_layers_may_be_written_in_two_ways(load):
    own = {"head_dim": 32, "num_key_value_heads": 1}
    by_layer = load(
        attention_k_eq_v=True, per_layer_config=dict.fromkeys("135", own), global_head_dim=...
    )
    assert by_layer == load(attention_k_eq_v=True, num_global_key_value_heads=1)
    assert [shape[2:] for shape in by_layer.shapes] == [(4, 2, 16), (4, 1, 32)]
    # The number of heads counts where keys are values alone.
    assert [shape[3] for shape in load(num_global_key_value_heads=1).shapes] == [2, 2]


def test_the_last_layers_see_the_keys_of_the_last_of_their_kind(load):
    spec = load(num_kv_shared_layers=3, use_double_wide_mlp=True, attention_k_eq_v=True)
    assert [own.kv_of for own in spec.attentions] == [None, None, None, 1, 2, 1]
    assert [own.keys_are_values for own in spec.attentions] == [False, True] + 4 * [False]
    assert [layer.feed_forward.intermediate_size for layer in spec.layers] == 3 * [112] + 3 * [224]


def test_the_last_layer_sees_all_tokens(load):
    spec = load(layer_types=[SLIDING, FULL, *4 * [SLIDING]])
    assert [own.window for own in spec.attentions] == [20, None, 20, 20, 20, None]


def test_windows_of_vision_are_those_of_no_text(load):
    assert load(use_bidirectional_attention="vision") == load()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention: expected null or"),
        (
            {"rope_scaling": {"rope_type": "linear"}},
            "rope_scaling: expected rope_parameters in its place",
        ),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers: expected fewer"),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers: expected fewer"),
        ({"vocab_size_per_layer_input": 130}, "vocab_size_per_layer_input: expected at least"),
        ({"per_layer_config": {"6": {}}}, "per_layer_config: expected head_dim and num_key_value"),
        ({"per_layer_config": {"1": {"sliding_window": 3}}}, "per_layer_config: expected"),
        ({"per_layer_config": [1]}, "per_layer_config: expected"),
        ({"per_layer_config": {"1": {"head_dim": 24}}}, "head_dim: expected a multiple of 16"),
        ({"per_layer_config": {"1": {"head_dim": "32"}}}, "head_dim: expected an integer"),
        ({"global_head_dim": 528}, "head_dim: expected a multiple of 16 up to 512, got 528"),
        ({"enable_moe_block": True}, "num_experts: expected an integer, got nothing"),
        (
            {"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3},
            "top_k_experts: expected at most 2, got 3",
        ),
        (
            {
                "rope_parameters": {
                    SLIDING: {
                        "rope_type": "default",
                        "rope_theta": 1e4,
                        "partial_rotary_factor": 0.5,
                    },
                    FULL: {"rope_type": "default", "rope_theta": 1e4},
                }
            },
            "partial_rotary_factor: expected 1 for this architecture, or a proportional rope_type",
        ),
        (
            {
                "rope_parameters": {
                    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
                    FULL: {
                        "rope_type": "proportional",
                        "rope_theta": 1e4,
                        "partial_rotary_factor": 0.03,
                    },
                }
            },
            "partial_rotary_factor: expected a share of 32 with a pair, got 0.03",
        ),
    ],
)
def test_what_is_not_computed_is_named(load, changes, message):
    with pytest.raises(ModelError, match=message) as error:
        load(**changes)
    assert "config.json" in str(error.value)


def test_layers_that_share_keys_of_other_heads_are_refused(load):
    with pytest.raises(ModelError, match=r"layers\[5\]\.kv_of: expected a layer before it"):
        load(num_kv_shared_layers=2, per_layer_config={"5": {"head_dim": 32}})
