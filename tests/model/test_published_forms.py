"""Checkpoints in the forms in which they are published give what the saved model gives."""

import json

import pytest
import torch
from chairlift.api.config import EngineConfig
from chairlift.api.errors import ModelError
from chairlift.engine.loading.load import load_config
from chairlift.model.config import ModelConfig
from safetensors.torch import load_file, save_file

from tests.model.families import random_tokens
from tests.model.paged import PagedBatch, load_model
from tests.model.published_forms import FORMS, Form

SHARD = "model-00002-of-00003.safetensors"
PROMPT = random_tokens(24, seed=0)


def publish(saved, folder, form: Form):
    """Write a saved model in another form."""
    tensors = load_file(saved / "model.safetensors")
    old, new = form.names
    published = {}
    for name, tensor in tensors.items():
        if not name.startswith("lm_head."):
            published[new + name.removeprefix(old)] = tensor
        elif form.head:
            published[form.head + name.removeprefix("lm_head.")] = tensor
    published |= {name: torch.ones(4) for name in form.buffers}
    write_shards(folder, published, form.num_shards)
    config = json.loads((saved / "config.json").read_text())
    config["torch_dtype"] = config.pop("dtype", "float32")
    config |= form.config
    if form.architecture:
        config["architectures"] = [form.architecture]
    (folder / "config.json").write_text(json.dumps(config))
    if form.generation:
        (folder / "generation_config.json").write_text(json.dumps(form.generation))


def write_shards(folder, tensors, num_shards):
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names, weight_map = list(tensors), {}
    for number in range(num_shards):
        file = f"model-{number + 1:05}-of-{num_shards:05}.safetensors"
        own = names[number::num_shards]
        save_file({name: tensors[name] for name in own}, folder / file)
        weight_map |= dict.fromkeys(own, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def hidden(folder):
    model = load_model(folder)
    return PagedBatch(model, num_rows=1, max_len=64).hidden({0: PROMPT}).clone()


@pytest.mark.parametrize("name", FORMS)
def test_a_published_form_gives_what_the_saved_model_gives(pretrained, tmp_path, name):
    form = FORMS[name]
    saved = pretrained(form.family)[1]
    publish(saved, tmp_path, form)
    assert load_config(tmp_path, EngineConfig()).has_head is form.gives_text
    assert torch.equal(hidden(tmp_path), hidden(saved))


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Llama-3.1-8B-Instruct"])
def test_an_end_that_any_file_names_counts(pretrained, tmp_path, name):
    form = FORMS[name]
    ends = {"eos_token_id": [7, 2]}
    publish(pretrained(form.family)[1], tmp_path, form._replace(generation=ends))
    named = form.config.get("eos_token_id", [2])
    assert set(ModelConfig.load(tmp_path).eos_token_ids) == {7, 2, *named}


NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": None,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "do_sample": False,
    "max_length": 20,
    "num_beams": 1,
    "_from_model_config": True,
    "transformers_version": "4.52.3",
}


def test_values_that_change_nothing_are_read(pretrained, tmp_path):
    form = FORMS["Qwen3-0.6B"]._replace(generation=NEUTRAL)
    publish(pretrained(form.family)[1], tmp_path, form)
    assert ModelConfig.load(tmp_path).generation.top_k == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("absent", "model-00002-of-00003.safetensors: no such file"),
        ("empty", "model-00002-of-00003.safetensors: not a whole safetensors file"),
        ("elsewhere", "expected the name of a file beside the index, got '../x.safetensors'"),
        ("unknown tensor", "model-00002-of-00003.safetensors: a.weight: missing"),
    ],
)
def test_a_shard_that_is_not_whole_is_named_before_memory_is_planned(
    pretrained, tmp_path, damage, message
):
    form = FORMS["Qwen3-Embedding-8B"]
    publish(pretrained(form.family)[1], tmp_path, form)
    shard, index = (tmp_path / name for name in (SHARD, "model.safetensors.index.json"))
    values = json.loads(index.read_text())
    if damage == "absent":
        shard.unlink()
    elif damage == "empty":
        shard.write_bytes(b"")
    elif damage == "elsewhere":
        values["weight_map"]["a.weight"] = "../x.safetensors"
    else:
        values["weight_map"]["a.weight"] = SHARD
    index.write_text(json.dumps(values))
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path, EngineConfig())
    assert message in str(caught.value)


def test_a_decoder_that_sees_later_tokens_is_refused(pretrained, tmp_path):
    form = FORMS["a LlamaModel"]._replace(config={"is_causal": False})
    publish(pretrained(form.family)[1], tmp_path, form)
    with pytest.raises(ModelError, match="is_causal: expected true"):
        ModelConfig.load(tmp_path)
