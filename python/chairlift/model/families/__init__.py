"""The model families: one file each, a function from config.json to `ModelSpec` and its names."""

from collections.abc import Mapping

from chairlift.model.families.family import Family
from chairlift.model.families.llama import LLAMA
from chairlift.model.families.mistral import MISTRAL
from chairlift.model.families.qwen2 import QWEN2
from chairlift.model.families.qwen3 import QWEN3

__all__ = ["FAMILIES", "Family"]

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
}
"""By the name in `architectures` of config.json."""
