"""Checkpoints with a part for images: their text model computes what `transformers` does."""

import json
from collections import defaultdict
from typing import NamedTuple

import pytest
import torch
from chairlift.api.errors import ModelError
from chairlift.model.config import ModelConfig
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
)

from tests.model.families import random_tokens
from tests.model.family_table import FAMILIES, SIZES
from tests.model.hybrid_table import DELTA, EXPERTS, MAMBA
from tests.model.paged import load_model, prompt_logits

QWEN = {**DELTA, **EXPERTS, "layer_types": MAMBA["layer_types"]}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": SIZES["hidden_size"],
}
GEMMA_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "position_embedding_size": 16,
}


class WithVision(NamedTuple):
    """A model with a part for images."""

    config_class: type
    model_class: type
    text: dict
    vision: dict
    others: tuple[str, ...]
    """How the names of tensors begin that are not of the text model."""
    is_tied: bool = False


QWEN_PARTS = "model.visual.", "mtp."
MODELS = {
    "qwen, a head": WithVision(
        Qwen3_5Config, Qwen3_5ForConditionalGeneration, QWEN, QWEN_VISION, QWEN_PARTS
    ),
    "qwen, tied": WithVision(
        Qwen3_5Config, Qwen3_5ForConditionalGeneration, QWEN, QWEN_VISION, QWEN_PARTS, True
    ),
    "qwen, experts": WithVision(
        Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration, QWEN, QWEN_VISION, QWEN_PARTS
    ),
    "gemma": WithVision(
        Gemma4Config,
        Gemma4ForConditionalGeneration,
        FAMILIES["gemma4, shared keys, inputs of each layer"][1],
        GEMMA_VISION,
        ("model.vision_tower.", "model.embed_audio."),
        True,
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def with_vision(request, tmp_path_factory):
    """Return a reference model with a part for images, its folder and how it was made."""
    torch.manual_seed(0)
    kind = MODELS[request.param]
    tied = {"tie_word_embeddings": kind.is_tied}
    config = kind.config_class(
        text_config={**SIZES, **kind.text, **tied}, vision_config=kind.vision, **tied
    )
    model = kind.model_class._from_config(config, attn_implementation="eager")
    model.eval().requires_grad_(requires_grad=False)
    for name, parameter in model.named_parameters():
        if "language_model" in name:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model, folder, kind


def test_a_text_has_the_logits_of_transformers(with_vision):
    reference, folder, _ = with_vision
    prompt = random_tokens(75, 0)
    expected = reference(torch.tensor([prompt]), use_cache=False).logits[0]
    ours = prompt_logits(load_model(folder), prompt)
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=0)


def test_experts_are_read_from_one_tensor_of_a_layer(pretrained, tmp_path):
    reference, folder = pretrained("qwen3.5 moe, a gated shared expert")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors, experts = load_file(folder / "model.safetensors"), defaultdict(dict)
    for name in [name for name in tensors if ".experts." in name]:
        layer, _, own = name.partition(".experts.")
        number, part, _ = own.split(".")
        experts[layer][int(number), part] = tensors.pop(name)
    assert len(experts) == 3
    for layer, parts in experts.items():
        numbers = range(len(parts) // 3)
        joined = [torch.cat((parts[n, "gate_proj"], parts[n, "up_proj"])) for n in numbers]
        tensors[f"{layer}.experts.gate_up_proj"] = torch.stack(joined)
        down = torch.stack([parts[n, "down_proj"] for n in numbers])
        tensors[f"{layer}.experts.down_proj"] = down
    save_file(tensors, tmp_path / "model.safetensors")
    prompt = random_tokens(75, 0)
    expected = reference(torch.tensor([prompt]), use_cache=False).logits[0]
    ours = prompt_logits(load_model(tmp_path), prompt)
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=0)


def test_other_parts_are_not_read_and_others_are_refused(with_vision, tmp_path):
    _, folder, kind = with_vision
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    assert any(name.startswith(kind.others[0]) for name in tensors)
    tensors |= {f"{name}fc.weight": torch.ones(3, 3) for name in kind.others}
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(tmp_path)
    save_file({**tensors, "model.other": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.other: not a tensor of this model"):
        load_model(tmp_path)


def test_keys_that_no_layer_projects_are_not_read(pretrained, tmp_path):
    _, folder = pretrained("gemma4, shared keys, inputs of each layer")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    for part in ("k_proj", "v_proj", "k_norm"):
        assert f"model.layers.3.self_attn.{part}.weight" not in tensors
        tensors[f"model.layers.3.self_attn.{part}.weight"] = torch.ones(5)
    save_file(tensors, tmp_path / "model.safetensors")
    prompt = random_tokens(75, 0)
    ours, expected = (prompt_logits(load_model(path), prompt) for path in (tmp_path, folder))
    assert torch.equal(ours, expected)
    save_file(
        {**tensors, "model.layers.2.self_attn.q": torch.ones(5)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn\.q: not a tensor of this model"):
        load_model(tmp_path)


@pytest.mark.parametrize("value", [None, [], "text", 1])
def test_a_text_model_without_fields_is_refused_by_name(with_vision, tmp_path, value):
    values = json.loads((with_vision[1] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "text_config": value}))
    with pytest.raises(ModelError, match="text_config: expected an object"):
        ModelConfig.load(tmp_path)
