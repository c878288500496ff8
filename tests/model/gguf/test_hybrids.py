"""GGUF files of hybrids against `transformers` with the values that the files hold."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from chairlift.api.choices import Quantize
from chairlift.api.config import Dtype
from chairlift.api.errors import ModelError
from chairlift.kernels import cpu
from chairlift.model.config import ModelConfig
from chairlift.model.weights.layers import load_weights
from chairlift.model.weights.sizes import WeightSizes

from tests.model.families import build, random_tokens
from tests.model.gguf.converted_files import write_converted
from tests.model.paged import load_model, prompt_logits

PROMPT = random_tokens(40, seed=0)
TOLERANCE = 2e-5
WIDTH = 96
"""A multiple of 32, as blocks need it."""

HYBRIDS = {
    "lfm2, tied": {},
    "lfm2 moe, a bias of the choice": {"moe_intermediate_size": 32, "routed_scaling_factor": 1.0},
    "qwen3.5, heads that share keys": {},
    "qwen3.5, tied, attention last, biases": {},
    "qwen3.5 moe, a gated shared expert": {"shared_expert_intermediate_size": 64},
    "qwen3-next, a layer without experts": {
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "shared_expert_intermediate_size": 64,
    },
    "granite hybrid, experts, groups": {"shared_intermediate_size": 64},
    "granite hybrid, dense, rope, tied": {
        "shared_intermediate_size": 64,
        "position_embedding_type": "nope",
    },
    "bamba": {},
    "nemotron h, mamba after mamba, feed-forward at both ends": {},
    "nemotron h, experts, attention last": {
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 32,
    },
    "falcon h1, multipliers, tied": {"tie_word_embeddings": False},
    "falcon h1, norms behind gates, biases": {
        "mlp_bias": False,
        "mamba_proj_bias": False,
        "projectors_bias": False,
    },
}
every_hybrid = pytest.mark.parametrize("family", HYBRIDS)


def small(family):
    return build(family, intermediate_size=WIDTH, **HYBRIDS[family])


def reference_logits(model):
    return model(torch.tensor([PROMPT]), use_cache=False).logits[0]


@every_hybrid
@pytest.mark.parametrize("types", ["F32", "Q8_0"])
def test_logits_in_float32_equal_those_of_transformers(tmp_path, family, types):
    model = small(family)
    path = write_converted(tmp_path / "m.gguf", model, types)
    ours = prompt_logits(load_model(path, dtype=Dtype.FLOAT32), PROMPT)
    torch.testing.assert_close(ours, reference_logits(model), atol=TOLERANCE, rtol=0)


@every_hybrid
def test_layers_keep_their_blocks(tmp_path, family):
    model = small(family)
    path = write_converted(tmp_path / "m.gguf", model, "Q8_0")
    config = ModelConfig.load(path)
    kept = {name.split(".", 2)[2] for name in config.quant_types if name.startswith("blk.")}
    assert {"attn_q.weight"} < kept
    # What decides how fast a state decays, and which experts are used, is widened.
    assert not kept & {
        "ssm_alpha.weight",
        "ssm_beta.weight",
        "ssm_ba.weight",
        "ffn_gate_inp.weight",
    }
    exact, ours = reference_logits(model), prompt_logits(load_model(path), PROMPT)
    errors = (ours - exact).square().mean(-1) / exact.square().mean(-1)
    assert 0 < errors.median() < 0.1**2
    weights = load_weights(path, config)
    tables = sum(config.max_model_len * own.head_dim * 4 for own in config.spec.rope_tables)
    if family.startswith(("qwen", "bamba")):
        return  # of a part of a head
    assert WeightSizes(config, Quantize.NONE, cpu).total() == num_bytes(weights) + tables


def num_bytes(part):
    """Return the bytes of all tensors and layers of loaded weights."""
    if part is None or isinstance(part, float | int | str):
        return 0
    if isinstance(part, torch.Tensor):
        return part.nbytes
    if hasattr(part, "num_bytes"):
        return part.num_bytes
    parts = part if isinstance(part, tuple) else (getattr(part, f.name) for f in fields(part))
    return sum(map(num_bytes, parts))


WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("lfm2, tied", {"layer_types": ["conv", "full_attention"]}),
        # Blocks of 256 numbers lie across heads, which are not put into another order.
        (
            "qwen3.5, heads that share keys",
            {
                "layer_types": ["linear_attention", "full_attention"],
                "num_attention_heads": 8,
                "linear_value_head_dim": 64,
            },
        ),
        (
            "granite hybrid, dense, rope, tied",
            {
                "layer_types": ["linear_attention", "full_attention"],
                "position_embedding_type": "nope",
                "shared_intermediate_size": 256,
                "mamba_d_head": 128,
            },
        ),
    ],
)
@pytest.mark.parametrize("types", ["Q4_K", "Q6_K"])
def test_super_blocks_are_widened_to_their_values(tmp_path, family, sizes, types):
    model = build(family, **WIDE, **sizes)
    path = write_converted(tmp_path / "m.gguf", model, types)
    ours = prompt_logits(load_model(path, dtype=Dtype.FLOAT32), PROMPT)
    torch.testing.assert_close(ours, reference_logits(model), atol=2 * TOLERANCE, rtol=0)
    load_model(path)


def test_layers_that_predict_further_tokens_are_not_read(tmp_path):
    model = small("qwen3.5, heads that share keys")

    def more(writer):
        del writer.kv_data[0]["qwen35.block_count"]
        del writer.kv_data[0]["qwen35.attention.recurrent_layers"]
        writer.add_block_count(4)
        writer.add_array("qwen35.attention.recurrent_layers", [True, False, True, False])
        writer.add_nextn_predict_layers(1)
        writer.add_tensor("blk.3.nextn.enorm.weight", np.ones(64, dtype=np.float32))

    path = write_converted(tmp_path / "m.gguf", model, extra=more)
    ours = prompt_logits(load_model(path), PROMPT)
    torch.testing.assert_close(ours, reference_logits(model), atol=TOLERANCE, rtol=0)


def test_without_a_list_every_nth_layer_has_attention(tmp_path):
    model = small("qwen3.5, tied, attention last, biases")

    def interval(writer):
        del writer.kv_data[0]["qwen35.attention.recurrent_layers"]
        writer.add_uint32("qwen35.full_attention_interval", 3)

    path = write_converted(tmp_path / "m.gguf", model, extra=interval)
    ours = prompt_logits(load_model(path), PROMPT)
    torch.testing.assert_close(ours, reference_logits(model), atol=TOLERANCE, rtol=0)


def changed(key, value):
    """Return what writes another value in the place of one of the metadata."""

    def change(writer):
        writer.kv_data[0].pop(f"{writer.arch}.{key}", None)
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        if value is not None:
            add(f"{writer.arch}.{key}", value)

    return change


@pytest.mark.parametrize(
    ("family", "key", "value", "expected"),
    [
        ("lfm2, tied", "shortconv.l_cache", None, "an integer, got nothing"),
        ("lfm2, tied", "attention.head_count_kv", [0, 0, 0], "at least one full_attention"),
        ("lfm2, tied", "attention.head_count_kv", [0, 2], "one number for all layers, got"),
        ("lfm2, tied", "nextn_predict_layers", 1, "nothing: it is not supported, got 1"),
        ("lfm2 moe, a bias of the choice", "expert_gating_func", 1, "2, sigmoid, got 1"),
        ("qwen3.5, heads that share keys", "ssm.inner_size", 127, "a multiple of ssm.time_step"),
        ("qwen3.5, heads that share keys", "ssm.group_count", 3, "a divisor of 4, got 3"),
        ("qwen3.5, heads that share keys", "attention.recurrent_layers", [True], "3 integers"),
        ("qwen3.5, heads that share keys", "nextn_predict_layers", 3, "fewer than block_count"),
        ("granite hybrid, experts, groups", "ssm.state_size", None, "an integer, got nothing"),
        ("nemotron h, experts, attention last", "expert_group_count", 2, "1, got 2"),
        ("nemotron h, experts, attention last", "ssm.time_step_rank", 3, "a divisor of 128"),
    ],
)
def test_what_a_hybrid_may_not_say_is_named(tmp_path, family, key, value, expected):
    path = write_converted(tmp_path / "m.gguf", small(family), extra=changed(key, value))
    with pytest.raises(ModelError, match=rf"m\.gguf: [a-z0-9_-]+\.{key}: expected {expected}"):
        ModelConfig.load(path)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("falcon h1, multipliers, tied", "output.weight"),
        ("qwen3.5, heads that share keys", "blk.0.ssm_a"),
        ("granite hybrid, experts, groups", "blk.1.ffn_gate_shexp.weight"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path, family, name):
    path = write_converted(
        tmp_path / "m.gguf", small(family), change=lambda values: values.pop(name)
    )
    with pytest.raises(ModelError, match=f"{name}: missing"):
        load_model(path)
