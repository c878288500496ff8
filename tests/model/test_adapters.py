"""Folders of adapters: what is loaded, and the one line about what is not."""

import json
import math

import pytest
import torch
from chairlift.errors import ModelError
from chairlift.model.adapters.load import adapter_bytes, load_adapter
from chairlift.model.config import ModelConfig
from safetensors.torch import load_file, save_file

from tests.engine import adapters, tiny_model

MAX_RANK = 16
Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return tiny_model.write(folder), ModelConfig.load(folder)


@pytest.fixture
def make(model, tmp_path):
    return lambda **kind: adapters.write(tmp_path / "adapter", model[0], **kind)


def load(folder, model):
    return load_adapter(folder, model[1], MAX_RANK)


def error_of(folder, model):
    with pytest.raises(ModelError) as caught:
        load(folder, model)
    (line,) = str(caught.value).splitlines()
    return line.removeprefix(f"{folder}/").removeprefix(f"{folder}: ")


def test_an_adapter_takes_no_more_than_was_planned(model, make):
    whole = load(make(rank=MAX_RANK), model)
    assert whole.num_bytes == adapter_bytes(model[1], MAX_RANK)
    assert whole.rank == MAX_RANK


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": r".*\.(q|k|v|o|gate|up|down)_proj"},
        {"target_modules": ["self_attn.q_proj"], "targets": ("q_proj",)},
        {"target_modules": ["model.layers.1.mlp.up_proj"], "layers": [1], "targets": ("up_proj",)},
        {"layers_to_transform": [1], "layers": [1]},
        {"peft_version": "0.19.0", "lora_dropout": 0.1, "use_dora": False, "rank_pattern": {}},
        {"init_lora_weights": "gaussian", "base_model_name_or_path": "anything"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_peft_writes_about_a_plain_lora_is_read(model, make, fields):
    fields = dict(fields)
    layers = fields.pop("layers", None)
    targets = fields.pop("targets", adapters.ALL_LINEAR)
    folder = make(targets=targets, **fields)
    if layers is not None:
        file = folder / "adapter_model.safetensors"
        kept = {n: t for n, t in load_file(file).items() if f"layers.{layers[0]}." in n}
        save_file(kept, file)
    assert load(folder, model).num_bytes > 0


SETTINGS = {
    "use_dora": ({"use_dora": True}, "use_dora: expected nothing, since it is not supported"),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, "modules_to_save: expected nothing"),
    "bias": ({"bias": "all"}, "bias: expected none"),
    "lora_bias": ({"lora_bias": True}, "lora_bias: expected nothing"),
    "rank_pattern": ({"rank_pattern": {"q_proj": 8}}, "rank_pattern: expected nothing"),
    "alpha_pattern": ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern: expected nothing"),
    "a field of later": ({"use_magic": 3}, "use_magic: expected nothing"),
    "trained tokens": ({"trainable_token_indices": [1]}, "trainable_token_indices: expected"),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: expected an adapter"),
    "ia3": ({"peft_type": "IA3"}, 'peft_type: expected LORA, got "IA3"'),
    "a classifier": ({"task_type": "SEQ_CLS"}, "task_type: expected CAUSAL_LM"),
    "rank 17": ({"r": 17}, "r: expected at most 16 (max_adapter_rank), got 17"),
    "rank 0": ({"r": 0}, "r: expected an integer from 1"),
    "a rank of text": ({"r": "4"}, "r: expected an integer"),
    "a huge rank": ({"r": 10**30}, "r: expected an integer"),
    "another rank": ({"r": 5}, "expected shape ["),
    "alpha not a number": ({"lora_alpha": math.nan}, "lora_alpha: expected a number"),
    "alpha negative": ({"lora_alpha": -1}, "lora_alpha: expected a number"),
    "the head": (
        {"target_modules": ["q_proj", "lm_head"]},
        "target_modules: expected linear layers of this model (q_proj, k_proj",
    ),
    "the embedding": ({"target_modules": ["embed_tokens"]}, "target_modules: expected linear"),
    "no targets": ({"target_modules": []}, "target_modules: expected a list of 1 to"),
    "targets of numbers": ({"target_modules": [1]}, "target_modules: expected a list"),
    "too few targets": ({"target_modules": ["q_proj"]}, "is not among target_modules"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_would_change_the_result_is_refused_by_name(model, make, name):
    fields, expected = SETTINGS[name]
    folder = make()
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    assert expected in error_of(folder, model)


def without(name):
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


def with_tensor(name, tensor):
    return lambda tensors: {**tensors, name: tensor}


TENSORS = {
    "half a pair": (without(Q), f"adapter_model.safetensors: {Q}: missing"),
    "no tensors": (lambda _: {}, "expected tensors of a LoRA, got none"),
    "dora": (
        with_tensor(Q.replace("lora_A.weight", "lora_magnitude_vector"), torch.ones(64)),
        "not",
    ),
    "a saved module": (
        with_tensor("base_model.model.lm_head.weight", torch.ones(1)),
        "not a tensor",
    ),
    "another layer": (with_tensor(Q.replace("layers.0", "layers.2"), torch.ones(1)), "not a"),
    "without prefix": (
        with_tensor(Q.removeprefix("base_model.model."), torch.ones(4, 64)),
        "not a",
    ),
    "nan": (with_tensor(Q, torch.full((4, 64), torch.nan)), "expected finite numbers"),
    "infinity": (with_tensor(Q, torch.full((4, 64), torch.inf)), "expected finite numbers"),
    "integers": (
        with_tensor(Q, torch.ones(4, 64).int()),
        "F32, F16 or BF16, got I32",
    ),
    "another model": (with_tensor(Q, torch.ones(4, 128)), "expected shape [4, 64], got [4, 128]"),
    "a flat tensor": (with_tensor(Q, torch.ones(256)), "expected shape [4, 64], got [256]"),
    "a long name": (with_tensor("x" * 100_000, torch.ones(1)), "not a tensor of a LoRA"),
    "a name of lines": (with_tensor("a\n\x1b[2Jb", torch.ones(1)), "not a tensor of a LoRA"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_do_not_fit_are_refused_by_name(model, make, name):
    change, expected = TENSORS[name]
    folder = make()
    file = folder / "adapter_model.safetensors"
    save_file(change(load_file(file)), file)
    line = error_of(folder, model)
    assert expected in line
    assert len(line) < 400


def test_files_that_are_not_whole_are_refused(model, make):
    folder = make()
    file, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    whole, settings = file.read_bytes(), config.read_text()
    for data in (b"", whole[:7], whole[:100], whole[:-1], whole + b"x", b"\xff" * 64):
        file.write_bytes(data)
        assert "not a whole safetensors file" in error_of(folder, model)
    file.write_bytes(whole)
    for text in ("", "[]", "{", '"\\ud800"', "[" * 100_000):
        config.write_text(text)
        assert error_of(folder, model).startswith("adapter_config.json: ")
    config.write_text(settings)
    file.unlink()
    assert error_of(folder, model) == "adapter_model.safetensors: no such file"
    (folder / "adapter_model.bin").touch()
    assert "adapter_model.bin is not read" in error_of(folder, model)
    assert "expected a folder" in error_of(folder / "missing", model)


def test_files_that_are_no_files_are_refused(model, make, tmp_path):
    folder = make()
    file = folder / "adapter_model.safetensors"
    file.unlink()
    file.mkdir()
    assert error_of(folder, model) == "adapter_model.safetensors: not a regular file"
    assert "expected a folder" in error_of(folder / "adapter_config.json", model)


def test_a_long_configuration_is_refused_before_it_is_parsed(make, model):
    folder = make()
    (folder / "adapter_config.json").write_bytes(b"[" * (2**20 + 1))
    assert "JSON" not in error_of(folder, model)


def test_a_long_header_is_refused_before_it_is_parsed(make, model):
    folder = make()
    length = 2**20 + 1
    data = length.to_bytes(8, "little") + b" " * length
    (folder / "adapter_model.safetensors").write_bytes(data)
    expected = f"a header of {length} bytes, expected at most {2**20}"
    assert expected in error_of(folder, model)
