"""Folders of adapters: what is loaded, and the one line about what is not."""

import errno
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from chairlift.api.errors import ModelError
from chairlift.checkpoints.files.fields import read_json
from chairlift.model.config import ModelConfig
from chairlift.model.lora.folder import AdapterFolder
from chairlift.model.lora.load import adapter_bytes, load_adapter
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
    file.rmdir()
    os.mkfifo(file)
    assert error_of(folder, model) == "adapter_model.safetensors: not a regular file"
    file.unlink()
    file.symlink_to("/dev/zero")
    assert error_of(folder, model) == "adapter_model.safetensors: not a regular file"


def test_a_path_that_cannot_be_followed_is_refused(model, make):
    folder = make()
    for path in (folder / ("x" * 300), folder / "\0", folder / ("x/" * 3000)):
        with pytest.raises(ModelError):
            load(path, model)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_must_not_be_read_is_refused(model, make):
    folder = make()
    (folder / "adapter_config.json").chmod(0)
    assert error_of(folder, model) == "adapter_config.json: permission denied"
    folder.chmod(0)
    try:
        assert "permission denied" in error_of(folder, model)
        assert "permission denied" in error_of(folder / "inner", model)
    finally:
        folder.chmod(0o700)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(make, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ModelError, match="not a regular file"):
        read_json(make() / "adapter_config.json", 100, lambda _, flags: os.open(pipe, flags))


@pytest.fixture
def place(make, model, tmp_path):
    """An adapter in a folder that it must not lead out of, and another one outside."""
    root, outside = tmp_path / "root", adapters.write(tmp_path / "outside", model[0], rank=2)
    root.mkdir()
    make(rank=3).rename(root / "own")
    return SimpleNamespace(root=root, own=root / "own", outside=outside)


def test_links_within_the_root_are_followed_and_others_refused(place, model):
    (place.root / "inner").symlink_to("own")
    (place.root / "files").mkdir()
    for file in place.own.iterdir():
        (place.root / "files" / file.name).symlink_to(f"../inner/{file.name}")
    for name in ("own", "inner", "files"):
        assert load(AdapterFolder(place.root / name, place.root), model).rank == 3
    (place.root / "out").symlink_to(place.outside)
    (place.root / "loop").symlink_to("loop")
    (place.root / "half").mkdir()
    for file in place.outside.iterdir():
        (place.root / "half" / file.name).symlink_to(file)
    for name in ("out", "loop", "half"):
        with pytest.raises(ModelError):
            load(AdapterFolder(place.root / name, place.root), model)


def test_a_folder_that_is_swapped_for_a_link_is_read_as_it_was(place):
    config = place.own / "adapter_config.json"
    with AdapterFolder(place.own, place.root).opened() as opener:
        place.own.rename(place.root / "old")
        place.own.symlink_to(place.outside)
        assert read_json(config, 4096, opener)["r"] == 3
        assert read_json(config, 4096)["r"] == 2
        # A file that is swapped is refused.
        (place.root / "old" / config.name).unlink()
        (place.root / "old" / config.name).symlink_to(place.outside / config.name)
        with pytest.raises(ModelError, match="a link out of it"):
            read_json(config, 4096, opener)


def test_a_part_of_a_path_that_is_swapped_for_a_link_is_refused(place, monkeypatch):
    follow = Path.resolve

    def swap(path):
        followed = follow(path)
        place.own.rename(place.root / "old")
        place.own.symlink_to(place.outside)
        return followed

    monkeypatch.setattr(Path, "resolve", swap)
    with pytest.raises(OSError, match=str(place.own.name)) as caught:
        AdapterFolder(place.own, place.root).opened().__enter__()
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


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
