"""Quantized checkpoints that cannot be: one line, which names the file and the tensor."""

import re

import pytest
import torch
from chairlift.api.errors import ModelError
from chairlift.model.config import ModelConfig
from chairlift.model.weights.layers import load_weights
from safetensors.torch import load_file, save_file

from tests.model.packers import CASES
from tests.model.test_quantized_checkpoints import change_config, quantized

GPTQ = "gptq v1, 4 bits, group 32, sym"
AWQ = "awq, group 32"
PACKED, PACKED_ASYM = "w4a16, sym", "w4a16, asym"
BYTES, BYTES_ASYM = "w8a8", "w8a8, asym"
TILES, CHANNELS = "fp8, tiles", "float-quantized, channel"
# 256 outputs of 128 inputs; of the floats 192.
UP = "model.layers.1.mlp.up_proj"


def absent(part):
    return part, lambda _: None


def as_type(part, dtype):
    return part, lambda tensor: tensor.to(dtype)


def cut(part):
    return part, lambda tensor: tensor[:-1]


def turned(part):
    return part, lambda tensor: tensor.T


def set_to(part, *values):
    return part, lambda tensor: torch.tensor(values, dtype=tensor.dtype)


SPOILED = {
    "gptq without codes": (GPTQ, absent("qweight"), "qweight: missing"),
    "gptq without zero points": (GPTQ, absent("qzeros"), "qzeros: missing"),
    "gptq without scales": (GPTQ, absent("scales"), "scales: missing"),
    "awq without zero points": (AWQ, absent("qzeros"), "qzeros: missing"),
    "packed without scales": (PACKED, absent("weight_scale"), "weight_scale: missing"),
    "packed without a shape": (PACKED, absent("weight_shape"), "weight_shape: missing"),
    "packed without codes": (PACKED, absent("weight_packed"), "weight_packed: missing"),
    "packed without zero points": (
        PACKED_ASYM,
        absent("weight_zero_point"),
        "weight_zero_point: missing",
    ),
    "bytes without scales": (BYTES, absent("weight_scale"), "weight_scale: missing"),
    "bytes without zero points": (
        BYTES_ASYM,
        absent("weight_zero_point"),
        "weight_zero_point: missing",
    ),
    "floats without scales": (TILES, absent("weight_scale_inv"), "weight_scale: missing"),
    "gptq codes of 64 bits": (
        GPTQ,
        as_type("qweight", torch.int64),
        "qweight: expected type I32, got I64",
    ),
    "gptq zero points of 64 bits": (GPTQ, as_type("qzeros", torch.int64), "qzeros: expected type"),
    "awq zero points of 16 bits": (AWQ, as_type("qzeros", torch.int16), "qzeros: expected type"),
    "integers as scales": (
        AWQ,
        as_type("scales", torch.int32),
        "scales: expected type F32, F16 or BF16, got I32",
    ),
    "an index of floats": (GPTQ, as_type("g_idx", torch.float32), "g_idx: expected type I32 or"),
    "a shape of floats": (
        PACKED,
        as_type("weight_shape", torch.float32),
        "weight_shape: expected type I64 or I32, got F32",
    ),
    "floats as codes": (BYTES, as_type("weight", torch.float16), "weight: expected type I8, got"),
    "bytes as floats": (TILES, as_type("weight", torch.int8), "weight: expected type F8_E4M3, got"),
    "unsigned zero points": (
        BYTES_ASYM,
        as_type("weight_zero_point", torch.uint8),
        "weight_zero_point: expected type I8, got U8",
    ),
    "a scale too few": (GPTQ, cut("scales"), r"scales: expected shape \[4, 256\], got \[3, 256\]"),
    "zero points too few": (AWQ, cut("qzeros"), r"qzeros: expected shape \[4, 32\], got \[3, 32\]"),
    "an index too short": (GPTQ, cut("g_idx"), r"g_idx: expected shape \[128\], got \[127\]"),
    "turned scales": (
        PACKED,
        turned("weight_scale"),
        r"weight_scale: expected shape \[256, 4\], got \[4, 256\]",
    ),
    "turned zero points": (
        PACKED_ASYM,
        turned("weight_zero_point"),
        r"weight_zero_point: expected shape \[32, 2\], got \[2, 32\]",
    ),
    "a shape of one axis": (
        PACKED,
        set_to("weight_shape", 256),
        r"weight_shape: expected shape \[2\], got \[1\]",
    ),
    "another shape": (PACKED, set_to("weight_shape", 256, 96), "expected "),
    "a negative shape": (PACKED, set_to("weight_shape", -256, 128), "expected shape"),
    "a scale per output too few": (CHANNELS, cut("weight_scale"), r"got \[191, 1\]"),
    # As many tiles in all.
    "turned tiles": (
        TILES,
        turned("weight_scale_inv"),
        r"weight_scale_inv: expected shape \[2, 1\], got \[1, 2\]",
    ),
    "codes of a vector": (GPTQ, ("qweight", torch.flatten), "qweight: expected a matrix"),
    "other inputs": (GPTQ, ("qweight", lambda t: t[:12]), "qzeros: expected shape"),
    "zero points of gptq that are not the middle": (
        GPTQ,
        ("qzeros", lambda tensor: tensor + 1),
        "qzeros: expected zero points of 8, as quantization_config.sym says",
    ),
    "reordered inputs": (
        GPTQ,
        ("g_idx", lambda tensor: tensor.flip(0)),
        "g_idx: expected groups of neighbours: desc_act with reordered inputs is refused",
    ),
}


def spoil(folder, part, change):
    """Change a tensor of the layer UP; None takes it out."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    changed = change(tensors.pop(f"{UP}.{part}"))
    if changed is not None:
        tensors[f"{UP}.{part}"] = changed.contiguous()
    save_file(tensors, path)


def add(folder, part, tensor):
    path = folder / "model.safetensors"
    save_file({**load_file(path), f"{UP}.{part}": tensor}, path)


def load(folder):
    return load_weights(folder, ModelConfig.load(folder))


def failure(folder):
    """Load a broken checkpoint and return its one line."""
    with pytest.raises(ModelError) as error:
        load(folder)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{folder / 'model.safetensors'}: {UP}.")
    return message.partition(f"{UP}.")[2]


@pytest.mark.parametrize("name", SPOILED)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, name):
    case, (part, change), pattern = SPOILED[name]
    quantized(tmp_path, case)
    load(tmp_path)
    spoil(tmp_path, part, change)
    message = failure(tmp_path)
    assert re.search(pattern, message), message


@pytest.mark.parametrize("case", [PACKED, BYTES])
def test_zero_points_of_a_symmetric_layer_are_the_middle(tmp_path, case):
    quantized(tmp_path, case)
    shape = load_file(tmp_path / "model.safetensors")[f"{UP}.weight_scale"].shape
    add(tmp_path, "weight_zero_point", torch.zeros(shape, dtype=torch.int8))
    load(tmp_path)
    add(tmp_path, "weight_zero_point", torch.ones(shape, dtype=torch.int8))
    assert failure(tmp_path).startswith("weight_zero_point: expected zero points of ")


def test_actorder_is_refused_where_it_reorders_inputs(tmp_path):
    quantized(tmp_path, PACKED)
    index = torch.arange(128).int() // 32
    add(tmp_path, "weight_g_idx", index)
    load(tmp_path)
    add(tmp_path, "weight_g_idx", index.flip(0))
    assert "weight_g_idx: expected groups of neighbours: actorder" in failure(tmp_path)


@pytest.mark.parametrize(
    ("case", "size"), [(GPTQ, 64), (AWQ, 64), (AWQ, -1), ("gptq without g_idx", 32)]
)
def test_scales_of_another_group_size_are_refused(tmp_path, case, size):
    quantized(tmp_path, case)
    change_config(tmp_path, quantization_config={**CASES[case].config, "group_size": size})
    with pytest.raises(ModelError, match=r"_proj\.qzeros: expected shape \[\d, 16\], got"):
        load(tmp_path)


def test_a_last_group_that_is_cut_is_refused(tmp_path):
    quantized(tmp_path, "awq, group 32")
    change_config(tmp_path, quantization_config={**CASES[AWQ].config, "group_size": 96})
    with pytest.raises(ModelError, match=r"qweight: expected a multiple of 96 inputs, got \d+"):
        load(tmp_path)


def test_a_name_of_many_lines_is_shown_in_one(tmp_path):
    quantized(tmp_path, GPTQ)
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), "a\nb.scales": torch.ones(1)}, path)
    with pytest.raises(ModelError, match=r"^.*: a b\.qweight: missing$"):
        load(tmp_path)


def test_a_bias_of_zeros_beside_a_quantized_layer_is_none(tmp_path):
    """AutoGPTQ writes one for each layer, also of models that have no biases."""
    quantized(tmp_path, GPTQ)
    add(tmp_path, "bias", torch.zeros(256))
    load(tmp_path)
    add(tmp_path, "bias", torch.ones(256))
    assert failure(tmp_path) == "bias: not a tensor of this model"
