"""Checkpoints of four-bit floats (MXFP4), as gpt-oss is published, against `transformers`."""

import json
from contextlib import ExitStack

import pytest
import torch
from chairlift import _core
from chairlift.api.config import Dtype, EngineConfig, Quantize
from chairlift.api.errors import ModelError
from chairlift.attention.cpu import CpuBackend
from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.model.config import ModelConfig
from chairlift.model.memory.plan import plan_memory
from chairlift.model.weights.layers import load_weights
from safetensors.torch import load_file, save_file
from transformers import GptOssForCausalLM, Mxfp4Config

from tests.model.families import build, random_tokens
from tests.model.paged import PagedBatch, load_model, prompt_logits
from tests.model.test_memory_plan import loaded_bytes, rope_bytes

FAMILY = "gpt-oss, sinks, windows, clamped gates"
SIZES = {"num_hidden_layers": 2, "intermediate_size": 96}
PROMPT = random_tokens(40, seed=0)
TOLERANCE = 2e-5
EXPERTS = "model.layers.1.mlp.experts"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the reference, dequantized by `transformers`, and the folder of its checkpoint."""
    folder = tmp_path_factory.mktemp("mxfp4")
    build(FAMILY, **SIZES).save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        num, inputs, outputs = tensors.pop(name).shape
        shape = (num, outputs, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        # The mean square of all numbers is 7.
        scales = torch.randint(121, 124, shape, generator=generator, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, path)
    change_config(folder, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    reference = GptOssForCausalLM.from_pretrained(
        folder,
        quantization_config=Mxfp4Config(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    )
    return reference.eval().requires_grad_(requires_grad=False), folder


def change_config(folder, quantization):
    path = folder / "config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "quantization_config": quantization})
    )


def reference_logits(reference):
    return reference(torch.tensor([PROMPT]), use_cache=False).logits[0]


def test_logits_in_float32_equal_those_of_transformers(saved):
    reference, folder = saved
    ours = prompt_logits(load_model(folder, dtype=Dtype.FLOAT32), PROMPT)
    torch.testing.assert_close(ours, reference_logits(reference), atol=TOLERANCE, rtol=0)


def test_kept_blocks_hold_the_weights_that_transformers_dequantizes(saved):
    reference, folder = saved
    config, state = ModelConfig.load(folder), reference.state_dict()
    names = [
        f"{EXPERTS}.{n}.{part}.weight" for n in range(6) for part in ("gate_up_proj", "down_proj")
    ]
    assert set(names) < set(config.quant_types)
    assert set(config.quant_types.values()) == {"MXFP4"}
    assert config.stored_format == "mxfp4"
    with ExitStack() as files:
        tensors = Checkpoint.open(folder, files, config.scheme, config.names).tensors
        for name in names:
            out = torch.empty(tensors[name].shape)
            _core.dequantize(tensors[name].blocks(), "MXFP4", out)
            number, part = name.removeprefix(f"{EXPERTS}.").split(".")[:2]
            assert torch.equal(out, state[f"{EXPERTS}.{part}"][int(number)].T), name


def test_layers_of_blocks_compute_what_their_floats_say(saved):
    reference, folder = saved
    exact = reference_logits(reference)
    model = load_model(folder)
    ours = prompt_logits(model, PROMPT)
    # Of each token: where a router is near a tie, rounded inputs choose other experts for a few.
    errors = (ours - exact).square().mean(-1) / exact.square().mean(-1)
    assert 0 < errors.median() < 0.05**2
    batch = PagedBatch(model, num_rows=3, max_len=40, seed=1)
    logits = batch.step({2: random_tokens(17, seed=3), 0: PROMPT})
    assert torch.equal(logits[0], ours)


@pytest.mark.parametrize("quantize", Quantize)
@pytest.mark.parametrize("dtype", [Dtype.AUTO, Dtype.BFLOAT16])
def test_the_plan_counts_what_is_loaded(saved, dtype, quantize):
    _, folder = saved
    config = ModelConfig.load(folder, dtype)
    plan = plan_memory(EngineConfig(quantize=quantize), config, CpuBackend())
    weights = load_weights(folder, config, quantize=quantize)
    assert plan.weight_bytes == loaded_bytes(weights) + rope_bytes(config)


def test_progress_counts_every_byte_once(saved):
    _, folder = saved
    steps = []
    load_weights(folder, ModelConfig.load(folder), lambda *step: steps.append(step))
    size = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert {total for _, total in steps} == {size}
    assert steps[-1][0] == size


def without_last(tensor):
    return tensor[..., :-1].contiguous()


SPOILED = {
    "no scales": ("gate_up_proj_scales", lambda _: None, "0.gate_up_proj.scales: missing"),
    "no blocks": ("down_proj_blocks", lambda _: None, "0.down_proj.blocks: missing"),
    "blocks of 15 bytes": (
        "down_proj_blocks",
        without_last,
        r"0.down_proj.blocks: expected shape \[64, 3, 16\], got \[64, 3, 15\]",
    ),
    "blocks of three axes": (
        "down_proj_blocks",
        lambda tensor: tensor.flatten(2),
        r"down_proj_blocks: expected experts, rows, groups, got shape \[6, 64, 48\]",
    ),
    "a group too few": (
        "down_proj_scales",
        without_last,
        r"0.down_proj.blocks: expected shape \[64, 2, 16\], got \[64, 3, 16\]",
    ),
    "an expert too few": (
        "gate_up_proj_scales",
        lambda tensor: tensor[:-1],
        "5.gate_up_proj.scales: missing",
    ),
    "signed blocks": (
        "down_proj_blocks",
        lambda tensor: tensor.view(torch.int8),
        "0.down_proj.blocks: expected type U8, got I8",
    ),
    "scales of floats": (
        "down_proj_scales",
        lambda tensor: tensor.float(),
        "0.down_proj.scales: expected type U8, got F32",
    ),
    "no biases": ("down_proj_bias", lambda _: None, "0.down_proj.bias: missing"),
    "a bias too short": (
        "down_proj_bias",
        without_last,
        r"0.down_proj.bias: expected shape \[64\], got \[63\]",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_tensor_that_does_not_fit_is_named_in_one_line(saved, tmp_path, name):
    _, folder = saved
    part, change, expected = SPOILED[name]
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors.pop(f"{EXPERTS}.{part}"))
    if changed is not None:
        tensors[f"{EXPERTS}.{part}"] = changed
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match=expected) as error:
        load_weights(tmp_path, ModelConfig.load(tmp_path))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'model.safetensors'}: {EXPERTS}.")


def test_other_sizes_are_refused(saved, tmp_path):
    _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(
        ModelError, match=r"gate_up_proj\.bias: expected shape \[128\], got \[192\]"
    ):
        load_weights(tmp_path, ModelConfig.load(tmp_path))
