"""Models of GGUF files against `transformers` with the values that the files hold."""

import copy
import os
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from chairlift.api.choices import Quantize
from chairlift.api.config import Dtype
from chairlift.api.errors import ModelError
from chairlift.attention.cpu import CpuBackend
from chairlift.kernels import cpu
from chairlift.model.config import ModelConfig
from chairlift.model.forward.transformer import Transformer
from chairlift.model.specs.rope import cos_sin_table
from chairlift.model.weights.layers import load_weights
from chairlift.model.weights.sizes import WeightSizes
from torch import nn

from tests.kernels import reference
from tests.model.families import random_tokens
from tests.model.family_table import LLAMA3_ROPE, YARN_ROPE
from tests.model.gguf.files import (
    GROUPED,
    MIXED,
    MIXED_WIDE,
    NUMBERS,
    SUPER_BLOCKS,
    WIDE,
    gguf_names,
    small_model,
    unpermuted,
    write_model,
)
from tests.model.paged import PagedBatch, load_model, prompt_logits

PROMPT = random_tokens(40, seed=0)
TOLERANCE = 2e-5

ARCHITECTURES = {
    "llama": ("llama", {}),
    "llama, biases, wide heads": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 32},
    ),
    "llama, tied, linear rope": (
        "llama",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5_000.0, "factor": 4.0},
        },
    ),
    "mistral, window": ("mistral", {"sliding_window": 20}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen3, tied, wide heads": ("qwen3", {"tie_word_embeddings": True, "head_dim": 32}),
    "qwen3": ("qwen3", {}),
    "qwen3moe": (
        "qwen3moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "granitemoe": ("granitemoe", {"num_local_experts": 4}),
    "gpt-oss": (
        "gpt-oss",
        {
            "head_dim": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 20,
            "rope_parameters": {**YARN_ROPE, "truncate": False},
        },
    ),
}
WITH_EXPERTS = ["qwen3moe", "mixtral", "granitemoe", "gpt-oss"]
every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)

FORMATS = {
    **{kind: (kind, {}) for kind in (*NUMBERS, *GROUPED)},
    "mixed": (MIXED, {}),
    **{kind: (kind, WIDE) for kind in SUPER_BLOCKS},
    "mixed, wide": (MIXED_WIDE, WIDE),
}
every_format = pytest.mark.parametrize("stored", FORMATS)
BLOCKS = [name for name in FORMATS if name not in NUMBERS]
every_block_format = pytest.mark.parametrize("stored", BLOCKS)


def reference_logits(model, prompt=PROMPT):
    return model(torch.tensor([prompt]), use_cache=False).logits[0]


def load_kept(path, dtype):
    """Load a model whose linear layers keep their blocks, with activations of any dtype."""
    config = replace(ModelConfig.load(path), dtype=dtype)
    return Transformer(config, load_weights(path, config), CpuBackend())


def with_inputs_in_eight_bits(model, types):
    """Make the layers that are stored in blocks round their inputs as `reference` does."""

    def rounded(_, inputs):
        (x,) = inputs
        integers, unit = reference.quantize_inputs(x.flatten(0, -2))
        return ((integers * unit).flatten(1).view(x.shape),)

    names = gguf_names(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            part = names.get(f"{name}.weight", "token_embd.weight").split(".")[-2]
            kind = types if isinstance(types, str) else types.get(part, types["default"])
            if kind not in NUMBERS:
                module.register_forward_pre_hook(rounded)
    return model


def distance(ours, theirs):
    """Return the root mean square of the difference, relative to that of the logits."""
    return float((ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt())


@every_architecture
@pytest.mark.parametrize("types", ["F32", "mixed"])
def test_logits_in_float32_equal_those_of_transformers(tmp_path, name, types):
    architecture, settings = ARCHITECTURES[name]
    model = small_model(architecture, **settings)
    path = write_model(tmp_path / "m.gguf", model, MIXED if types == "mixed" else types)
    ours = prompt_logits(load_model(path, dtype=Dtype.FLOAT32), PROMPT)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, reference_logits(model), atol=TOLERANCE, rtol=0)


@every_format
def test_every_type_of_tensor_is_widened_to_its_values(tmp_path, stored):
    types, sizes = FORMATS[stored]
    model = small_model(**sizes)
    path = write_model(tmp_path / "m.gguf", model, types)
    ours = prompt_logits(load_model(path, dtype=Dtype.FLOAT32), PROMPT)
    torch.testing.assert_close(ours, reference_logits(model), atol=TOLERANCE, rtol=0)


def assert_near(path, model, types):
    """Compare a model that keeps its blocks with one whose layers round their inputs likewise.

    An input that lies between two integers may be rounded to either, so that the two differ, but by
    less than rounding itself changes the logits.
    """
    exact = reference_logits(model)
    narrow = reference_logits(copy.deepcopy(model).bfloat16()).float()
    twin = reference_logits(with_inputs_in_eight_bits(copy.deepcopy(model), types))
    rounding = distance(twin, exact)
    assert 0 < rounding < 0.05
    ours = prompt_logits(load_kept(path, torch.float32), PROMPT)
    assert distance(ours, twin) < 0.75 * rounding
    # In bfloat16, the dtype of a model of blocks, activations are rounded between the layers, too.
    ours = prompt_logits(load_model(path), PROMPT)
    assert distance(ours, exact) < 1.5 * (rounding**2 + distance(narrow, exact) ** 2) ** 0.5


@every_block_format
def test_layers_that_keep_their_blocks_compute_what_the_format_says(tmp_path, stored):
    types, sizes = FORMATS[stored]
    model = small_model(**sizes)
    assert_near(write_model(tmp_path / "m.gguf", model, types), model, types)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in WITH_EXPERTS])
def test_every_architecture_may_keep_its_blocks(tmp_path, name):
    architecture, settings = ARCHITECTURES[name]
    model = small_model(architecture, **settings)
    assert_near(write_model(tmp_path / "m.gguf", model, MIXED), model, MIXED)


@pytest.mark.parametrize("name", WITH_EXPERTS)
@pytest.mark.parametrize("stored", ["Q8_0", "Q4_1", "MXFP4"])
def test_experts_keep_their_blocks(tmp_path, name, stored):
    architecture, settings = ARCHITECTURES[name]
    model = small_model(architecture, **settings)
    path = write_model(tmp_path / "m.gguf", model, stored)
    kept = ModelConfig.load(path).quant_types
    assert kept["blk.1.ffn_gate_exps.3.weight"] == kept["blk.0.ffn_down_exps.0.weight"] == stored
    exact, ours = reference_logits(model), prompt_logits(load_kept(path, torch.float32), PROMPT)
    # Of each token: where a router is near a tie, rounded inputs choose other experts for a few.
    errors = (ours - exact).square().mean(-1) / exact.square().mean(-1)
    assert 0 < errors.median() < 0.05**2


def test_gates_and_ups_of_different_types_are_refused(tmp_path):
    architecture, settings = ARCHITECTURES["qwen3moe"]
    types = {"default": "Q8_0", "ffn_up_exps": "Q4_0"}
    path = write_model(tmp_path / "m.gguf", small_model(architecture, **settings), types)
    expected = r"ffn_up_exps.0.weight: expected the type of its gate, Q8_0, got Q4_0 \(--dtype"
    with pytest.raises(ModelError, match=expected):
        load_model(path)
    load_model(path, dtype=Dtype.FLOAT32)


def swap(values, one, other):
    values[one], values[other] = values[other], values[one]


def order_of_transformers(values, part, num_heads):
    name = f"blk.1.{part}.weight"
    values[name] = unpermuted(values[name], num_heads)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: order_of_transformers(values, "attn_q", 4),
        lambda values: order_of_transformers(values, "attn_k", 2),
        lambda values: swap(values, "blk.0.attn_k.weight", "blk.0.attn_v.weight"),
        lambda values: swap(values, "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"),
    ],
    ids=["q not permuted", "k not permuted", "k and v swapped", "gate and up swapped"],
)
def test_nearness_sees_rows_in_a_wrong_order(tmp_path, change):
    model = small_model()
    path = write_model(tmp_path / "m.gguf", model, "Q4_0", change=change)
    with pytest.raises(AssertionError):
        assert_near(path, model, "Q4_0")
    for dtype in (torch.float32, torch.bfloat16):
        wrong = prompt_logits(load_kept(path, dtype), PROMPT)
        assert distance(wrong, reference_logits(model)) > 0.15


def test_types_of_blocks_are_kept_until_a_dtype_is_chosen(tmp_path):
    path = write_model(tmp_path / "m.gguf", small_model(), MIXED)
    auto = ModelConfig.load(path)
    assert auto.dtype == torch.bfloat16
    assert auto.quant_types["blk.1.attn_v.weight"] == "Q8_0"
    assert auto.quant_types["blk.1.attn_q.weight"] == "Q4_0"
    assert not {"blk.1.ffn_up.weight", "blk.1.attn_norm.weight"} & set(auto.quant_types)
    for dtype in (Dtype.BFLOAT16, Dtype.FLOAT32, Dtype.FLOAT16):
        assert not ModelConfig.load(path, dtype).quant_types


@pytest.mark.parametrize(
    ("types", "dtype"),
    [("F32", torch.float32), ("F16", torch.bfloat16), ("BF16", torch.bfloat16)],
)
def test_a_file_of_numbers_is_computed_in_its_type(tmp_path, types, dtype):
    config = ModelConfig.load(write_model(tmp_path / "m.gguf", small_model(), types))
    assert config.dtype == dtype
    assert not config.quant_types


def packed_bytes(weights):
    """Return the bytes of all tensors and layers that were loaded."""
    return sum(
        part.nbytes if isinstance(part, torch.Tensor) else part.num_bytes
        for part in weights.leaves()
    )


@pytest.mark.parametrize(
    "name", ["llama, biases, wide heads", "qwen3, tied, wide heads", "granitemoe", "gpt-oss"]
)
@pytest.mark.parametrize("types", ["F16", "Q4_1", "mixed"])
@pytest.mark.parametrize("quantize", [Quantize.NONE, Quantize.INT8, Quantize.INT4])
@pytest.mark.parametrize("dtype", [Dtype.AUTO, Dtype.FLOAT32])
def test_the_plan_counts_the_bytes_that_are_loaded(tmp_path, name, types, quantize, dtype):
    architecture, settings = ARCHITECTURES[name]
    model = small_model(architecture, **settings)
    path = write_model(tmp_path / "m.gguf", model, MIXED if types == "mixed" else types)
    config = ModelConfig.load(path, dtype)
    weights = load_weights(path, config, quantize=quantize)
    tables = config.max_model_len * config.spec.shape.head_dim * 4
    assert WeightSizes(config, quantize, cpu).total() == packed_bytes(weights) + tables


def test_progress_ends_with_all_bytes_of_the_tensors(tmp_path):
    model = small_model("qwen2", tie_word_embeddings=True)
    path = write_model(tmp_path / "m.gguf", model, "Q5_0")
    steps = []
    load_weights(path, ModelConfig.load(path), lambda *step: steps.append(step))
    size = sum(tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
    assert {total for _, total in steps} == {size}
    assert steps == sorted(steps)
    assert steps[-1][0] == size


@pytest.mark.parametrize("types", ["F32", MIXED], ids=["F32", "mixed"])
def test_parts_load_as_one_file_does(tmp_path, types):
    whole = write_model(tmp_path / "m.gguf", small_model(), types)
    first = write_model(tmp_path / "parts.gguf", small_model(), types, split=5)
    parts = sorted(tmp_path.glob("parts-*.gguf"))
    assert len(parts) > 2
    expected = prompt_logits(load_model(whole), PROMPT)
    assert torch.equal(prompt_logits(load_model(first), PROMPT), expected)
    assert torch.equal(prompt_logits(load_model(parts[-1]), PROMPT), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored", ["mixed", "mixed, wide"])
def test_bits_of_a_row_do_not_depend_on_the_batch(tmp_path, dtype, stored):
    types, sizes = FORMATS[stored]
    path = write_model(tmp_path / "m.gguf", small_model(**sizes), types)
    model = load_kept(path, dtype)
    prompts = [random_tokens(length, length) for length in (40, 17, 1)]
    alone = [prompt_logits(model, prompt) for prompt in prompts]
    for chunk in (1, 13):
        assert torch.equal(prompt_logits(model, prompts[0], chunk), alone[0])
    together = PagedBatch(model, num_rows=4, max_len=40, seed=1)
    logits = together.step(dict(zip((2, 0, 3), prompts, strict=True)))
    for row, expected in zip((2, 0, 3), alone, strict=True):
        assert torch.equal(logits[row], expected)


def llama3_divisors(head_dim):
    """Return what `convert_hf_to_gguf` writes for the position embedding of Llama 3.1."""
    rope = LLAMA3_ROPE
    length = rope["original_max_position_embeddings"]
    divisors = []
    for exponent in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (exponent / head_dim)
        if wavelength < length / rope["high_freq_factor"]:
            divisors.append(1.0)
        elif wavelength > length / rope["low_freq_factor"]:
            divisors.append(rope["factor"])
        else:
            spread = rope["high_freq_factor"] - rope["low_freq_factor"]
            smooth = (length / wavelength - rope["low_freq_factor"]) / spread
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)


def test_stored_divisors_of_rope_are_the_scaling_of_llama3(tmp_path):
    model = small_model(rope_parameters=LLAMA3_ROPE, head_dim=32)
    divisors = llama3_divisors(32)
    assert len(set(divisors)) > 3
    path = write_model(
        tmp_path / "m.gguf",
        model,
        "F32",
        extra=lambda writer: writer.add_tensor("rope_freqs.weight", divisors),
    )
    (rope,) = ModelConfig.load(path).spec.ropes
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(128)[None])
    expected = torch.cat((cos[0, :, :16], sin[0, :, :16]), dim=-1)
    # A frequency that was divided by a rounded number is off by some units in the last place.
    torch.testing.assert_close(cos_sin_table(rope, 32, 128), expected, atol=3e-5, rtol=0)
    ours = prompt_logits(load_model(path), PROMPT)
    torch.testing.assert_close(ours, reference_logits(model), atol=TOLERANCE, rtol=0)


def without(name):
    return lambda values: values.pop(name)


def test_a_missing_tensor_is_named(tmp_path):
    path = write_model(tmp_path / "m.gguf", small_model(), change=without("blk.1.ffn_down.weight"))
    with pytest.raises(ModelError, match=r"m\.gguf: blk\.1\.ffn_down\.weight: missing$"):
        load_model(path)


def test_a_tensor_of_another_shape_is_named(tmp_path):
    path = write_model(
        tmp_path / "m.gguf",
        small_model(),
        "Q8_0",
        change=lambda values: values.update(
            {"blk.0.attn_q.weight": values["blk.0.attn_q.weight"][:32]}
        ),
    )
    expected = r"blk\.0\.attn_q\.weight: expected shape \[64, 64\], got \[32, 64\]"
    with pytest.raises(ModelError, match=expected):
        load_model(path)


@pytest.mark.parametrize("dtype", [Dtype.AUTO, Dtype.FLOAT32])
def test_a_file_that_becomes_shorter_while_it_is_read_is_named(tmp_path, dtype):
    path = write_model(tmp_path / "m.gguf", small_model(), MIXED)
    config = ModelConfig.load(path, dtype)

    def shorten(done, total):
        os.truncate(path, 40_000)

    with pytest.raises(ModelError, match=r"m\.gguf: it became shorter while .* was read"):
        load_weights(path, config, shorten)
