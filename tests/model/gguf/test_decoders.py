"""GGUF files of families of attention alone against `transformers` with the values of the files."""

import numpy as np
import pytest
import torch
from chairlift.api.config import Dtype
from chairlift.api.errors import ModelError
from chairlift.model.config import ModelConfig

from tests.model.families import build, random_tokens
from tests.model.family_table import KINDS, YARN_ROPE, long_rope
from tests.model.gguf.converted_files import write_converted
from tests.model.paged import load_model, prompt_logits

PROMPT = random_tokens(40, seed=0)
TOLERANCE = 2e-5
WIDTH = 96
"""A multiple of 32, as blocks need it."""
EVERY_FOURTH = {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + KINDS[-1:]}
LONG = {**long_rope(2, 12), "partial_rotary_factor": 0.75}
YARN = {**YARN_ROPE, "attention_factor": 1.3}
ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0}, "full_attention": YARN}

DECODERS = {
    "phi3, window": {},
    "phi3, longrope of a part of a head, past its original length": {"rope_parameters": LONG},
    "phi3, longrope within its original length": {},
    "olmo3, windows, yarn where all tokens are seen": {"rope_parameters": ROPES},
    "smollm3, a layer without rope": {
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 1, 1, 0],
        "layer_types": ["full_attention"] * 4,
    },
    # No key of the metadata has a window.
    "starcoder2, window, tied": {"sliding_window": 4096},
    "cohere2, parallel halves": EVERY_FOURTH,
    "ernie, a shared expert, a bias of the choice": {},
    "gemma4, shared keys, inputs of each layer": {"hidden_size_per_layer_input": 32},
    "gemma4, keys as values, fewer heads where all tokens are seen": {"attention_bias": False},
    "gemma4, experts beside a dense half": {"moe_intermediate_size": 32},
}
every_decoder = pytest.mark.parametrize("family", DECODERS)


def small(family):
    return build(family, intermediate_size=WIDTH, **DECODERS[family])


def reference_logits(model):
    return model(torch.tensor([PROMPT]), use_cache=False).logits[0]


@every_decoder
@pytest.mark.parametrize("types", ["F32", "Q8_0", "Q4_0"])
def test_logits_in_float32_equal_those_of_transformers(tmp_path, family, types):
    model = small(family)
    path = write_converted(tmp_path / "m.gguf", model, types)
    ours = prompt_logits(load_model(path, dtype=Dtype.FLOAT32), PROMPT)
    torch.testing.assert_close(ours, reference_logits(model), atol=TOLERANCE, rtol=0)


@every_decoder
def test_layers_keep_their_blocks(tmp_path, family):
    model = small(family)
    path = write_converted(tmp_path / "m.gguf", model, "Q8_0")
    kept = {name.split(".", 2)[2] for name in ModelConfig.load(path).quant_types if "blk" in name}
    assert {"attn_output.weight", "ffn_up.weight"} <= kept
    exact, ours = reference_logits(model), prompt_logits(load_model(path), PROMPT)
    errors = (ours - exact).square().mean(-1) / exact.square().mean(-1)
    assert 0 < errors.median() < 0.1**2


def test_the_window_of_starcoder2_is_that_of_all_published_models(tmp_path):
    model = small("starcoder2, window, tied")

    def longer(writer):
        del writer.kv_data[0]["starcoder2.context_length"]
        writer.add_context_length(16_384)

    path = write_converted(tmp_path / "m.gguf", model, extra=longer)
    assert ModelConfig.load(path).spec.kv_windows == (4096,)


def test_divisors_of_another_number_are_refused(tmp_path):
    model = small("phi3, window")

    def short(writer):
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.ones(5, dtype=np.float32))
        writer.add_rope_scaling_orig_ctx_len(64)

    path = write_converted(tmp_path / "m.gguf", model, extra=short)
    with pytest.raises(ModelError, match=r"short_factor: expected a list of 8 numbers"):
        ModelConfig.load(path)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("attention.value_length_swa", 32, "all numbers of a head, 16, got 32"),
        ("attention.head_count_kv", [2, 1, 2, 2, 2, 2], "one number for the layers of a kind"),
        ("feed_forward_length", [96, 96, 96, 96, 192, 192], "one number for the layers of a kind"),
        ("attention.sliding_window_pattern", None, "an integer, got nothing"),
        ("attention.key_length_swa", None, "an integer, got nothing"),
    ],
)
def test_what_gemma4_may_not_say_is_named(tmp_path, key, value, expected):
    def changed(writer):
        del writer.kv_data[0][f"gemma4.{key}"]
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        if value is not None:
            add(f"gemma4.{key}", value)

    model = small("gemma4, shared keys, inputs of each layer")
    path = write_converted(tmp_path / "m.gguf", model, extra=changed)
    with pytest.raises(ModelError, match=rf"gemma4\.{key}: expected {expected}"):
        ModelConfig.load(path)


def test_divisors_of_gemma4_rotate_or_do_not(tmp_path):
    model = small("gemma4, experts beside a dense half")
    path = tmp_path / "m.gguf"
    extra = {"divisors": np.linspace(1, 2, 24, dtype=np.float32)}

    def changed(writer):
        writer.tensors[0].pop("rope_freqs.weight")
        writer.add_tensor("rope_freqs.weight", extra["divisors"])

    write_converted(path, model, extra=changed)
    with pytest.raises(ModelError, match=r"rope_freqs.weight: expected 1 for the first pairs"):
        ModelConfig.load(path)


def test_divisors_of_another_architecture_are_refused(tmp_path):
    model = small("smollm3, a layer without rope")

    def divisors(writer):
        writer.add_tensor("rope_factors_long.weight", np.ones(8, dtype=np.float32))

    path = write_converted(tmp_path / "m.gguf", model, extra=divisors)
    with pytest.raises(ModelError, match=r"rope_factors_long.weight: not a tensor of this model"):
        load_model(path)
