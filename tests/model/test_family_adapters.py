"""An adapter of every family changes what merged weights change, for its own rows alone."""

import json

import pytest
import torch
from chairlift.attention.cpu import CpuBackend
from chairlift.model.config import ModelConfig
from chairlift.model.forward.transformer import Transformer
from chairlift.model.lora.load import linears, load_adapter
from chairlift.model.lora.tables import AdapterTables
from chairlift.model.tensors.model_tensors import model_tensors
from chairlift.model.weights.layers import load_weights
from safetensors.torch import save_file

from tests.model.families import FAMILIES, build, random_tokens
from tests.model.hybrid_table import HYBRIDS
from tests.model.paged import PagedBatch

RANK, ALPHA = 4, 8.0


WITH_ADAPTERS = [name for name in FAMILIES if name not in HYBRIDS]
"""Hybrids have none."""


@pytest.mark.parametrize("family", WITH_ADAPTERS)
def test_an_adapter_equals_merged_weights(pretrained, tmp_path, family):
    _, folder = pretrained(family)
    config, merged = ModelConfig.load(folder), build(family)
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for layer in model_tensors(config.spec, config.names).layers:
        for part in linears(layer):
            for name, outputs in zip(part.names, part.outputs, strict=True):
                a = torch.randn(RANK, part.inputs, generator=generator) / part.inputs**0.5
                b = torch.randn(outputs, RANK, generator=generator) / 4
                merged.get_submodule(name).weight.add_(ALPHA / RANK * b @ a)
                tensors[f"base_model.model.{name}.lora_A.weight"] = a
                tensors[f"base_model.model.{name}.lora_B.weight"] = b
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ".*"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    tables = AdapterTables(config.spec.num_layers, 1)
    tables.set(1, load_adapter(tmp_path, config, RANK))
    model = Transformer(config, load_weights(folder, config), CpuBackend(), tables)
    prompt, other = random_tokens(50, 0), random_tokens(20, 1)
    batch = PagedBatch(model, num_rows=2, max_len=50)
    hidden = batch.hidden({0: prompt, 1: other}, adapters={0: 1})
    logits = model.logits(hidden)
    for row, (tokens, reference) in enumerate([(prompt, merged), (other, build(family))]):
        expected = reference(torch.tensor([tokens]), use_cache=False).logits[0]
        own = logits[: len(prompt)] if row == 0 else logits[len(prompt) :]
        torch.testing.assert_close(own, expected, atol=5e-5, rtol=0)
