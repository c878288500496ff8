"""Checkpoints of AWQ, GPTQ, compressed-tensors and FP8 against `transformers` and packed codes."""

import json
from contextlib import ExitStack
from functools import cache

import pytest
import torch
from chairlift import _core
from chairlift.api.config import Dtype, EngineConfig, Quantize
from chairlift.attention.cpu import CpuBackend
from chairlift.checkpoints.checkpoint import Checkpoint
from chairlift.model.config import ModelConfig
from chairlift.model.memory.plan import plan_memory
from chairlift.model.specs.rope import cos_sin_table
from chairlift.model.weights.layers import load_weights
from safetensors.torch import load_file, save_file

from tests.model.families import build, random_tokens
from tests.model.packers import CASES
from tests.model.paged import load_model, prompt_logits

PROMPT = random_tokens(30, seed=0)
TOLERANCE = 2e-5
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
Q = "model.layers.0.self_attn.q_proj"
BIASES = "qwen2, window in the last layer"
SYM = "gptq v1, 4 bits, group 32, sym"
ASYM = "gptq v1, 4 bits, group 32, asym"

every_case = pytest.mark.parametrize("case", CASES)


def is_projection(name):
    return name.endswith("_proj")


def quantized(folder, case, family="llama", chosen=is_projection, shards=1):
    """Save a model whose chosen layers are quantized; return the reference with their weights."""
    case = CASES[case]
    reference = build(family, **{**SIZES, **case.sizes})
    reference.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, module in reference.named_modules():
        if chosen(name) and f"{name}.weight" in tensors:
            weight, parts = case.pack(*module.weight.shape, generator)
            module.weight.copy_(weight)
            del tensors[f"{name}.weight"]
            tensors.update({f"{name}.{part}": tensor for part, tensor in parts.items()})
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        (folder / "model.safetensors").unlink()
        # Neighbours lie in different files: scales are not where their codes are.
        files = {name: f"model-{at % shards}.safetensors" for at, name in enumerate(tensors)}
        for file in set(files.values()):
            save_file(
                {name: tensors[name] for name in tensors if files[name] == file}, folder / file
            )
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    change_config(folder, quantization_config=case.config)
    return reference


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def reference_logits(reference):
    return reference(torch.tensor([PROMPT]), use_cache=False).logits[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return `case -> (reference model, folder)`, built once each."""

    @cache
    def get(case):
        folder = tmp_path_factory.mktemp("quantized")
        return quantized(folder, case), folder

    return get


def assert_parity(reference, folder):
    """Fail unless the logits in float32 are those of the reference."""
    ours = prompt_logits(load_model(folder, dtype=Dtype.FLOAT32), PROMPT)
    torch.testing.assert_close(ours, reference_logits(reference), atol=TOLERANCE, rtol=0)


def linear_layers(weights):
    for layer in weights.layers:
        yield from (layer.qkv, layer.output, layer.gate_up, layer.down)


@every_case
def test_logits_in_float32_equal_those_of_transformers(saved, case):
    assert_parity(*saved(case))


@every_case
def test_kept_blocks_hold_the_weights(saved, case):
    reference, folder = saved(case)
    config = ModelConfig.load(folder)
    state = reference.state_dict()
    kept = CASES[case].block_type
    expected = [name for name in state if kept and is_projection(name.removesuffix(".weight"))]
    assert dict(config.quant_types) == dict.fromkeys(expected, kept)
    with ExitStack() as files:
        tensors = Checkpoint.open(folder, files, config.scheme).tensors
        for name in expected:
            out = torch.empty(tensors[name].shape)
            _core.dequantize(tensors[name].blocks(), kept, out)
            if CASES[case].is_exact:
                assert torch.equal(out, state[name]), name
            else:
                torch.testing.assert_close(out, state[name], rtol=0, atol=5e-8)


@every_case
def test_loaded_layers_are_what_is_planned(saved, case):
    _, folder = saved(case)
    config, kept = ModelConfig.load(folder), CASES[case].block_type
    weights = load_weights(folder, config)
    assert {layer.weight_format for layer in linear_layers(weights)} == {kept}
    assert config.stored_format == (CASES[case].config["quant_method"] if kept else None)
    assert planned_bytes(config) == loaded_bytes(weights)


def planned_bytes(config):
    """Bytes of the plan but for the tables of RoPE."""
    plan = plan_memory(EngineConfig(), config, CpuBackend())
    head_dim, length = config.spec.shape.head_dim, config.max_model_len
    tables = sum(cos_sin_table(rope, head_dim, length).nbytes for rope in config.spec.ropes)
    return plan.weight_bytes - tables


def loaded_bytes(weights):
    norms = [layer.attention_norm for layer in weights.layers]
    norms += [layer.feed_forward_norm for layer in weights.layers]
    single = weights.embedding.nbytes
    single += sum(norm.weight.nbytes for norm in (*norms, weights.final_norm))
    return single + weights.head.num_bytes + sum(x.num_bytes for x in linear_layers(weights))


@pytest.mark.parametrize("case", [SYM, ASYM, "awq, group 128", "w8a8", "w8a16, channel, asym"])
def test_each_input_of_a_loaded_layer_meets_its_weight(saved, case):
    reference, folder = saved(case)
    layer = load_weights(folder, ModelConfig.load(folder)).layers[1]
    own = reference.model.layers[1]
    attention = own.self_attn
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    # 127 is an input that quantization keeps: each output is a single product.
    for ours, theirs in ((layer.qkv, qkv), (layer.down, [own.mlp.down_proj])):
        expected = 127 * torch.cat([module.weight for module in theirs]).T
        out = ours(127 * torch.eye(ours.in_features))
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [SYM, "awq, group 64", "w8a8", "fp8, tiles"])
@pytest.mark.parametrize("quantize", [Quantize.INT8, Quantize.INT4])
def test_a_quantized_checkpoint_can_be_quantized_again(saved, case, quantize):
    reference, folder = saved(case)
    config = ModelConfig.load(folder)
    weights = load_weights(folder, config, quantize=quantize)
    assert {layer.weight_format for layer in linear_layers(weights)} == {quantize.value}
    module = reference.model.layers[0].mlp.down_proj
    x = torch.randn(4, module.in_features, generator=torch.Generator().manual_seed(1))
    error = (weights.layers[0].down(x) - module(x)).square().mean() / module(x).square().mean()
    assert error.sqrt() < (0.02 if quantize is Quantize.INT8 else 0.15)


@pytest.mark.parametrize("case", [SYM, "awq, group 64", "w4a16, asym", "fp8, tiles"])
def test_shards_may_part_a_layer(tmp_path, case):
    assert_parity(quantized(tmp_path, case, shards=3), tmp_path)


@pytest.mark.parametrize("case", [ASYM, "awq, group 64", "w8a8", "fp8, tiles"])
def test_layers_that_were_left_as_they_were_are_joined_with_quantized_ones(tmp_path, case):
    def chosen(name):
        return name.endswith(("q_proj", "up_proj", "0.mlp.down_proj"))

    reference = quantized(tmp_path, case, chosen=chosen)
    assert_parity(reference, tmp_path)
    config = ModelConfig.load(tmp_path)
    weights = load_weights(tmp_path, config)
    assert planned_bytes(config) == loaded_bytes(weights)
    logits = prompt_logits(load_model(tmp_path), PROMPT)
    assert (logits - reference_logits(reference)).square().mean().sqrt() < 0.05


@pytest.mark.parametrize("case", [SYM, ASYM, "awq, group 64", "w4a16, asym", "fp8, tiles"])
def test_biases_are_added(tmp_path, case):
    reference = quantized(tmp_path, case, BIASES)
    assert_parity(reference, tmp_path)
    layer = load_weights(tmp_path, ModelConfig.load(tmp_path)).layers[1]
    attention = reference.model.layers[1].self_attn
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    expected = torch.cat([module.bias for module in parts])
    assert torch.equal(layer.qkv(torch.zeros(1, 128))[0], expected)


@pytest.mark.parametrize("case", ["w4a16, asym", "w8a16, channel", "fp8, tiles"])
def test_the_head_may_be_quantized_with_any_number_of_outputs(tmp_path, case):
    reference = quantized(tmp_path, case, chosen=lambda name: name == "lm_head")
    assert_parity(reference, tmp_path)
    config = ModelConfig.load(tmp_path)
    weights = load_weights(tmp_path, config)
    assert weights.head.weight_format == CASES[case].block_type
    assert planned_bytes(config) == loaded_bytes(weights)


@pytest.mark.parametrize("case", [SYM, "w4a16, asym", "fp8, tiles"])
@pytest.mark.parametrize("dtype", [Dtype.AUTO, Dtype.FLOAT32])
def test_progress_counts_every_byte_once(saved, case, dtype):
    _, folder = saved(case)
    steps = []
    config = ModelConfig.load(folder, dtype)
    load_weights(folder, config, lambda done, total: steps.append((done, total)))
    size = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert {total for _, total in steps} == {size}
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1][0] == size


def test_scales_of_keys_and_values_are_ignored(tmp_path):
    reference = quantized(tmp_path, "float-quantized, channel")
    path = tmp_path / "model.safetensors"
    names = [f"model.layers.0.self_attn.{part}_scale" for part in ("k", "v", "q")]
    names.append(f"{Q}.input_scale")
    save_file({**load_file(path), **{name: torch.ones(1) for name in names}}, path)
    assert_parity(reference, tmp_path)
