"""An adapter of every family changes what merged weights change, for its own rows alone."""

import pytest
import torch
from chairlift.attention.cpu import CpuBackend
from chairlift.model.config import ModelConfig
from chairlift.model.forward.transformer import Transformer
from chairlift.model.lora.load import load_adapter
from chairlift.model.lora.tables import AdapterTables
from chairlift.model.weights.layers import load_weights

from tests.model import family_adapters
from tests.model.families import FAMILIES, build, random_tokens
from tests.model.hybrid_table import HYBRIDS
from tests.model.paged import PagedBatch

WITH_ADAPTERS = [name for name in FAMILIES if name not in HYBRIDS]
"""Hybrids have none."""


@pytest.mark.parametrize("family", WITH_ADAPTERS)
def test_an_adapter_equals_merged_weights(pretrained, tmp_path, family):
    _, folder = pretrained(family)
    config, merged = ModelConfig.load(folder), build(family)
    for name, update in family_adapters.write(tmp_path, config).items():
        merged.get_submodule(name).weight.add_(update)
    tables = AdapterTables(config.spec.num_layers, 1)
    tables.set(1, load_adapter(tmp_path, config, family_adapters.RANK))
    model = Transformer(config, load_weights(folder, config), CpuBackend(), tables)
    prompt, other = random_tokens(50, 0), random_tokens(20, 1)
    batch = PagedBatch(model, num_rows=2, max_len=50)
    hidden = batch.hidden({0: prompt, 1: other}, adapters={0: 1})
    logits = model.logits(hidden)
    for row, (tokens, reference) in enumerate([(prompt, merged), (other, build(family))]):
        expected = reference(torch.tensor([tokens]), use_cache=False).logits[0]
        own = logits[: len(prompt)] if row == 0 else logits[len(prompt) :]
        torch.testing.assert_close(own, expected, atol=5e-5, rtol=0)
