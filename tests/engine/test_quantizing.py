"""Models that are quantized once and stored: what they compute, and what is refused."""

import json

import pytest
import torch
from chairlift import _core
from chairlift.api.config import Dtype, Quantize
from chairlift.api.errors import ConfigError, ModelError
from chairlift.attention.cpu import CpuBackend
from chairlift.engine.quantizing import quantize_model, written_text
from chairlift.model.config import ModelConfig
from chairlift.model.forward.transformer import Transformer
from chairlift.model.quantizing.compensation import (
    SecondMoments,
    round_compensated,
    round_plainly,
)
from chairlift.model.weights.layers import load_weights
from safetensors.torch import load_file, save_file

from tests.engine import tiny_model
from tests.model import families
from tests.model.paged import prompt_logits

PROMPT = [7, 3, 125, 9, 40, 41, 5, 80, 66, 12, 1, 99]
FAMILIES = [
    "llama",
    "gemma3, windows, two ropes",
    "qwen3 moe, a dense layer",
    "gpt-oss, sinks, windows, clamped gates",
    "cohere2, parallel halves",
    "lfm2, tied",
]
"""Dense models, experts in both orders, halves side by side, and a hybrid."""
SIZES = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32}
ROW = "model.layers.0.mlp.down_proj"


def saved(folder, family="llama", **sizes):
    folder.mkdir()
    families.save(families.build(family, **SIZES | sizes), folder)
    tiny_model.write_tokenizer(folder, families.SIZES["vocab_size"] - 5)
    return folder


def logits(folder, quantize=Quantize.NONE, dtype=Dtype.AUTO):
    config = ModelConfig.load(folder, dtype)
    weights = load_weights(folder, config, quantize=quantize)
    return prompt_logits(Transformer(config, weights, CpuBackend()), PROMPT)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Return a model, and the same in four bits with errors compensated."""
    folder = tmp_path_factory.mktemp("quantizing")
    model = saved(folder / "model", intermediate_size=544)
    quantize_model(str(model), folder / "int4", "int4", num_tokens=512)
    return model, folder / "int4"


@pytest.fixture
def stored(llama, tmp_path):
    """Return a copy of the stored model, to be spoiled."""
    folder = tmp_path / "stored"
    folder.mkdir()
    for path in llama[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stored_model_has_the_bits_of_one_that_is_quantized_while_loading(tmp_path, family):
    model = saved(tmp_path / "model", family)
    quantize_model(str(model), tmp_path / "out", "int8", num_tokens=None)
    assert torch.equal(logits(tmp_path / "out"), logits(model, Quantize.INT8))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Return a model whose rows have whole blocks of 128 weights, and what is left of them."""
    folder = tmp_path_factory.mktemp("wide")
    families.save(families.build("llama", hidden_size=192, intermediate_size=544), folder)
    tiny_model.write_tokenizer(folder, families.SIZES["vocab_size"] - 5)
    return folder


def test_rows_that_are_no_multiple_of_128_are_stored_whole(wide, tmp_path):
    quantize_model(str(wide), tmp_path / "out", "int8", num_tokens=None)
    rows = load_file(tmp_path / "out" / "model.safetensors")[f"{ROW}.int8_rotated_128"]
    assert rows.shape[1] == 4 * 130 + 34
    assert torch.equal(logits(tmp_path / "out"), logits(wide, Quantize.INT8))


@pytest.mark.parametrize(
    ("weight_format", "row_bytes"), [("int8", 4 * 130 + 34), ("int4", 4 * 68 + 20)]
)
def test_compensated_blocks_have_the_values_that_they_are_widened_to(
    wide, tmp_path, weight_format, row_bytes
):
    out = tmp_path / "out"
    quantize_model(str(wide), out, weight_format, num_tokens=512)
    rows = load_file(out / "model.safetensors")[f"{ROW}.{weight_format}_rotated_128"]
    assert rows.shape[1] == row_bytes
    kept, widened = logits(out), logits(out, dtype=Dtype.FLOAT32)
    assert (kept - widened).square().mean() < 1e-3 * widened.square().mean()


def test_experts_are_rounded_alone_by_groups_of_32(tmp_path):
    sizes = {"hidden_size": 512, "moe_intermediate_size": 544}
    model, out = saved(tmp_path / "model", "qwen3 moe, a dense layer", **sizes), tmp_path / "out"
    quantize_model(str(model), out, "int4", num_tokens=64)
    types = ModelConfig.load(out).quant_types.items()
    assert {kind for name, kind in types if ".experts." in name} == {"INT4_ROTATED"}
    assert {kind for name, kind in types if "q_proj" in name} == {"INT4_ROTATED_128"}


def test_a_model_of_the_second_version_has_groups_of_32_in_four_bits(tmp_path):
    model, out = saved(tmp_path / "model"), tmp_path / "out"
    quantize_model(str(model), out, "int4", num_tokens=None)
    expected = logits(out)
    change_config(out, version=2)
    assert set(ModelConfig.load(out).quant_types.values()) == {"INT4_ROTATED", "INT8_ROTATED_128"}
    assert torch.equal(logits(out), expected)


def test_a_model_of_the_first_version_keeps_a_scale_per_32_weights(tmp_path):
    model, out = saved(tmp_path / "model"), tmp_path / "out"
    quantize_model(str(model), out, "int8", num_tokens=None)
    plain = load_file(model / "model.safetensors")

    def store_as_before(tensors):
        for name in [name for name in tensors if name.endswith(".int8_rotated_128")]:
            layer = name.removesuffix(".int8_rotated_128")
            weight = plain.get(f"{layer}.weight", plain["model.embed_tokens.weight"]).float()
            del tensors[name]
            tensors[f"{layer}.int8_rotated"] = round_plainly(weight, "INT8_ROTATED")

    change_tensors(out, store_as_before)
    change_config(out, version=1, group_size=32)
    assert set(ModelConfig.load(out).quant_types.values()) == {"INT8_ROTATED"}
    # Rows of fewer than 128 weights have a scale per 32 in either version.
    assert torch.equal(logits(out), logits(model, Quantize.INT8))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_quantized_for_the_text_that_it_writes(tmp_path, family):
    model, out = saved(tmp_path / "model", family), tmp_path / "out"
    quantize_model(str(model), out, "int4", num_tokens=64)
    expected, ours = logits(model, dtype=Dtype.FLOAT32), logits(out)
    assert (ours - expected).square().mean() < 0.3 * expected.square().mean()


@pytest.mark.parametrize("block_type", ["INT4_ROTATED", "INT4_ROTATED_128", "INT8_ROTATED_128"])
def test_compensated_errors_are_smaller_for_inputs_that_depend_on_each_other(block_type):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 24, generator=generator) @ torch.randn(24, 192, generator=generator)
    x += 0.3 * torch.randn(x.shape, generator=generator)
    weight = torch.randn(100, 192, generator=generator)
    moments = SecondMoments(192)
    moments.add(x)
    errors = []
    for factor in (moments.factor(), None):
        rounded = torch.empty_like(weight)
        _core.dequantize(round_compensated(weight, factor, block_type), block_type, rounded)
        errors.append(float((x @ (rounded - weight).T).square().mean()))
    assert 0 < errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("block_type", ["INT4_ROTATED_128", "INT8_ROTATED_128"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, 1e30])
def test_a_weight_that_no_scale_holds_gives_no_finite_output(block_type, number):
    weight = torch.ones(3, 160)
    weight[1, 70] = number
    blocks = round_compensated(weight, None, block_type)
    rounded = torch.empty_like(weight)
    _core.dequantize(blocks, block_type, rounded)
    assert [bool(row.isfinite().all()) for row in rounded] == [True, False, True]


def test_weights_of_one_value_keep_it():
    weight = torch.full((2, 160), 0.75)
    # Rotated back, so that the blocks are of one value.
    _core.rotate(weight)
    rounded = torch.empty_like(weight)
    blocks = round_compensated(weight, None, "INT4_ROTATED_128")
    _core.dequantize(blocks, "INT4_ROTATED_128", rounded)
    assert torch.allclose(rounded, weight, atol=1e-5)


def test_inputs_that_say_nothing_compensate_nothing():
    moments = SecondMoments(64)
    moments.add(torch.zeros(5, 64))
    assert moments.factor() is None
    moments.add(torch.full((1, 64), torch.nan))
    assert moments.factor() is None


def test_a_long_text_begins_with_the_rows_of_a_short_one(tmp_path):
    model = families.build("llama", max_position_embeddings=16, **SIZES)
    families.save(model, tmp_path)
    tiny_model.write_tokenizer(tmp_path, families.SIZES["vocab_size"] - 5)
    # More rows than a step has tokens.
    long = written_text(str(tmp_path), 16 * 300)
    assert long.shape == (300, 16)
    assert torch.equal(long[:10], written_text(str(tmp_path), 16 * 10))


def test_the_same_model_gives_the_same_bytes(llama, tmp_path):
    quantize_model(str(llama[0]), tmp_path / "again", "int4", num_tokens=512)
    for path in llama[1].iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_a_stored_model_may_be_widened(llama):
    kept, widened = logits(llama[1]), logits(llama[1], dtype=Dtype.FLOAT32)
    assert (kept - widened).square().mean() < 1e-3 * widened.square().mean()


def test_layers_of_few_inputs_have_groups_of_32_and_the_head_has_eight_bits(llama):
    types = ModelConfig.load(llama[1]).quant_types
    assert types.pop("lm_head.weight") == "INT8_ROTATED_128"
    narrow = {kind for name, kind in types.items() if "down_proj" not in name}
    wide = {kind for name, kind in types.items() if "down_proj" in name}
    assert (narrow, wide) == ({"INT4_ROTATED"}, {"INT4_ROTATED_128"})
    assert len(types) == 7 * families.SIZES["num_hidden_layers"]


def test_a_folder_with_files_is_left_alone(llama, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("kept")
    with pytest.raises(ConfigError, match=r"^out: expected no folder, or an empty one, got "):
        quantize_model(str(llama[0]), tmp_path / "out", "int8", num_tokens=None)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "notes.txt"]


def test_a_model_that_fails_leaves_nothing(llama, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    for path in llama[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    change_tensors(folder, lambda tensors: tensors.pop(f"{ROW}.weight"))
    with pytest.raises(ModelError, match=r"down_proj\.weight: missing"):
        quantize_model(str(folder), tmp_path / "out", "int8", num_tokens=None)
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_a_stored_model_is_not_quantized_again(llama, tmp_path):
    with pytest.raises(ModelError, match="expected a model that is not quantized"):
        quantize_model(str(llama[1]), tmp_path / "out", "int8", num_tokens=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 4}, "quantization_config.version: expected 1, 2 or 3, got 4"),
        ({"rotation": 128}, "quantization_config.rotation: expected 64, got 128"),
        (
            {"version": 1, "group_size": 64},
            "quantization_config.group_size: expected 32, got 64",
        ),
        ({"format": "int3"}, "quantization_config.format: expected int8 or int4, got "),
    ],
    ids=["version", "rotation", "group size", "format"],
)
def test_a_foreign_version_is_refused_by_field(stored, changes, message):
    change_config(stored, **changes)
    with pytest.raises(ModelError) as refused:
        ModelConfig.load(stored)
    assert message in str(refused.value)


def with_fewer_outputs(tensors):
    tensors[f"{ROW}.int4_rotated_128"] = tensors[f"{ROW}.int4_rotated_128"][:-1].clone()


def with_a_cut_block(tensors):
    tensors[f"{ROW}.int4_rotated_128"] = tensors[f"{ROW}.int4_rotated_128"][:, :-1].clone()


def with_two_formats(tensors):
    tensors[f"{ROW}.int8_rotated"] = torch.zeros(64, 34, dtype=torch.uint8)


def with_signed_bytes(tensors):
    tensors[f"{ROW}.int4_rotated_128"] = tensors[f"{ROW}.int4_rotated_128"].view(torch.int8)


def without_blocks(tensors):
    del tensors[f"{ROW}.int4_rotated_128"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_fewer_outputs, f"{ROW}.weight: expected shape "),
        (with_a_cut_block, f"{ROW}.int4_rotated_128: expected rows of whole blocks, got "),
        (with_two_formats, f"{ROW}.int8_rotated: expected one format of a layer, got "),
        (with_signed_bytes, f"{ROW}.int4_rotated_128: expected type U8, got I8"),
        (without_blocks, f"{ROW}.weight: missing"),
    ],
    ids=["outputs", "cut", "two formats", "type", "missing"],
)
def test_a_tensor_that_does_not_fit_is_named(stored, change, message):
    change_tensors(stored, change)
    with pytest.raises(ModelError) as refused:
        logits(stored)
    assert message in str(refused.value)
