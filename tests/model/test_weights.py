"""Checkpoints in every form that loads, and what a broken one says."""

import json
import os
import struct
from contextlib import ExitStack
from dataclasses import fields

import pytest
import torch
from chairlift.api.config import Dtype
from chairlift.api.errors import ModelError
from chairlift.checkpoints.gguf.names import NAMES, NAMES_OF
from chairlift.checkpoints.safetensors import open_file
from chairlift.model.config import ModelConfig
from chairlift.model.families import FAMILIES
from chairlift.model.tensors.parts import (
    ExpertNorms,
    ExpertParts,
    LayerParts,
    ModelParts,
    RecurrentParts,
)
from chairlift.model.weights.layers import load_weights
from safetensors.torch import load_file, save_file

from tests.model.families import build, random_tokens
from tests.model.paged import load_model, prompt_logits

PROMPT = random_tokens(20, seed=0)
FAMILY = "qwen2, tied"
NORM = "model.norm.weight"


@pytest.fixture
def folder(tmp_path):
    """A model folder that the test may spoil."""
    build(FAMILY).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def sharded(tmp_path):
    build(FAMILY).save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    return tmp_path


INNER_PARTS = {
    "choice_bias",
    "expert_down",
    "expert_gate_up",
    "factors",
    "shared_down",
    "shared_gate_up",
}
"""Those that are packed into a field of a record, or into one of two."""


@pytest.mark.parametrize("family", [*FAMILIES, "gguf", *NAMES_OF])
def test_every_name_of_a_family_is_of_a_part(family):
    tables = [{"gguf": NAMES, **NAMES_OF}.get(family)]
    tables += [FAMILIES[family].names] if family in FAMILIES else []
    records = ExpertNorms, ExpertParts, LayerParts, ModelParts, RecurrentParts
    known = {field.name for record in records for field in fields(record)} | INNER_PARTS
    for names in filter(None, tables):
        assert names.parts.keys() <= known


def load(folder, **settings):
    return load_weights(folder, ModelConfig.load(folder), **settings)


def edit(folder, change):
    """Rewrite the checkpoint with `change` applied to its tensors."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def failure(folder):
    """Load a broken checkpoint and return its one line."""
    with pytest.raises(ModelError) as error:
        load(folder)
    message = str(error.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def test_shards_load_as_one_file_does(pretrained, sharded):
    _, single = pretrained(FAMILY)
    assert torch.equal(
        prompt_logits(load_model(sharded), PROMPT), prompt_logits(load_model(single), PROMPT)
    )


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("computed", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_a_checkpoint_of_any_type_is_converted(folder, stored, computed):
    edit(folder, lambda tensors: tensors.update({k: v.to(stored) for k, v in tensors.items()}))
    config = ModelConfig.load(folder, computed)
    weights = load_weights(folder, config)
    expected = load_file(folder / "model.safetensors")
    assert torch.equal(weights.final_norm.weight, expected[NORM].to(config.dtype))
    table = expected["model.embed_tokens.weight"]
    assert torch.equal(weights.embedding, table.to(config.dtype))


def test_the_checkpoint_may_vanish_once_it_is_loaded(folder):
    model = load_model(folder)
    expected = prompt_logits(model, PROMPT)
    path = folder / "model.safetensors"
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(prompt_logits(model, PROMPT), expected)


def test_progress_counts_every_byte_once(folder):
    steps = []
    load(folder, on_progress=lambda done, total: steps.append((done, total)))
    size = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert {total for _, total in steps} == {size}
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1][0] == size


def test_a_tied_checkpoint_may_hold_its_head(folder):
    expected = prompt_logits(load_model(folder), PROMPT)
    edit(
        folder,
        lambda tensors: tensors.update(
            {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
        ),
    )
    assert torch.equal(prompt_logits(load_model(folder), PROMPT), expected)


def test_derived_constants_are_ignored(folder):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    load(folder)


def test_a_missing_tensor_is_named(folder):
    names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in (1, 2)]
    edit(folder, lambda tensors: [tensors.pop(name) for name in names])
    assert f"model.safetensors: {names[0]}: missing (and 1 more)" in failure(folder)


def test_an_unexpected_tensor_is_named(folder):
    edit(
        folder, lambda tensors: tensors.update({"model.layers.0.mlp.up_proj.bias": torch.ones(112)})
    )
    assert "mlp.up_proj.bias: not a tensor of this model" in failure(folder)


def test_a_misshaped_tensor_is_named(folder):
    edit(folder, lambda tensors: tensors.update({NORM: torch.ones(63)}))
    assert "model.norm.weight: expected shape [64], got [63]" in failure(folder)


def test_a_tensor_of_another_type_is_named(folder):
    edit(folder, lambda tensors: tensors.update({NORM: torch.ones(64, dtype=torch.int8)}))
    assert "model.norm.weight: expected type F32, F16 or BF16, got I8" in failure(folder)


def test_an_absent_file_is_named(folder):
    (folder / "model.safetensors").unlink()
    assert "model.safetensors: no such file" in failure(folder)


@pytest.mark.parametrize("left", [0, 7, 100, -1])
def test_a_truncated_file_is_named(folder, left):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    assert "model.safetensors: not a whole safetensors file" in failure(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\n",
        struct.pack("<Q", 5) + b"hello",
        struct.pack("<Q", 2**62) + b"{}",
    ],
)
def test_a_corrupt_file_is_named(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors: not a whole safetensors file" in failure(folder)


def header_of(path):
    """Return the header of a safetensors file, and its data."""
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:end]), content[end:]


def write_header(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


DESCRIPTIONS = {
    "offsets past the end": {"data_offsets": [0, 2**62]},
    "offsets beyond 64 bits": {"data_offsets": [0, 10**30]},
    "offsets that go back": {"data_offsets": [64, 0]},
    "negative offsets": {"data_offsets": [-64, 192]},
    "an overlap": {"data_offsets": [0, 256]},
    "one offset": {"data_offsets": [0]},
    "no offsets": {"data_offsets": None},
    "another size than the shape's": {"shape": [63]},
    "a shape that is text": {"shape": "64"},
    "a shape of many axes": {"shape": [2**62] * 100_000},
    "a type that is a number": {"dtype": 1},
}


@pytest.mark.parametrize("case", DESCRIPTIONS)
def test_a_description_that_cannot_be_is_named(folder, case):
    path = folder / "model.safetensors"
    header, data = header_of(path)
    header[NORM].update(DESCRIPTIONS[case])
    write_header(path, header, data)
    assert "model.safetensors: not a whole safetensors file" in failure(folder)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"\\ud800": {}}',
        b"[]",
        b"{\xff}",
        b'{"a": 1}',
    ],
)
def test_a_header_that_is_no_list_of_tensors_is_named(folder, header):
    write_header(folder / "model.safetensors", header, b"")
    assert len(failure(folder)) < len(str(folder)) + 200


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_a_file_that_becomes_shorter_while_it_is_read_is_named(folder, dtype):
    path = folder / "model.safetensors"

    def cut(_done, _total):
        os.truncate(path, 50_000)

    with pytest.raises(ModelError) as error:
        load_weights(folder, ModelConfig.load(folder, dtype), cut)
    assert f"{path}: it became shorter while model.layers.0." in str(error.value)


def test_a_tensor_larger_than_the_buffer_is_converted_whole(tmp_path):
    values = torch.randn(5_000_000).half()
    save_file({"values": values}, tmp_path / "file")
    with ExitStack() as files:
        out = torch.empty(len(values), dtype=torch.float32)
        open_file(tmp_path / "file", files)["values"].read(out)
    assert torch.equal(out, values.float())


def test_a_pipe_in_the_place_of_a_file_is_named(folder):
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert f"{name}: " in failure(folder)
        assert "not a regular file" in failure(folder)


def test_an_absent_shard_is_named(sharded):
    shard = max(sharded.glob("model-*.safetensors"))
    shard.unlink()
    assert f"{shard.name}: no such file" in failure(sharded)


def test_a_shard_without_its_tensor_is_named(sharded):
    index = sharded / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    shards = sorted(set(values["weight_map"].values()))
    wrong = next(shard for shard in shards if shard != values["weight_map"][NORM])
    values["weight_map"][NORM] = wrong
    index.write_text(json.dumps(values))
    assert f"{wrong}: model.norm.weight: missing" in failure(sharded)


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": "../b"}}',
        b'{"weight_map": {"a": "/etc/passwd"}}',
        b'{"weight_map": {"a": ".."}}',
        b'{"weight_map": {"a": ""}}',
        b'{"weight_map": {"a": "b\\u0000"}}',
        b"[" * 100_000,
    ],
)
def test_a_malformed_index_is_named(sharded, index):
    (sharded / "model.safetensors.index.json").write_bytes(index)
    assert "model.safetensors.index.json: " in failure(sharded)
