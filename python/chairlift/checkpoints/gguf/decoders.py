"""The fields of config.json of architectures of attention alone that need others than most."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from chairlift.checkpoints.gguf.gemma4 import gemma4_fields
from chairlift.checkpoints.gguf.metadata import Metadata
from chairlift.checkpoints.gguf.names import QUERY

MULTIPLIERS: Final = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
"""The multipliers of Granite."""
CAPS: Final = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""The soft caps of Gemma 2."""
LARGEST_GEMMAS: Final = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose queries are scaled by the width of the model."""

_WITH_WINDOWS: Final = frozenset(
    ("cohere2", "gemma2", "gemma3", "gemma4", "gpt-oss", "olmo2", "phi3")
)
"""Architectures whose family says which layers have a window."""
_STARCODER2: Final = 4096
"""The window of all published models, which no key has."""
ROPE_FACTORS: Final = ("rope_factors_long.weight", "rope_factors_short.weight")
"""The divisors of LongRoPE."""


def decoder_fields(metadata: Metadata) -> Mapping[str, Any]:
    """Read the fields that an architecture has beside those of all."""
    match metadata.kind:
        case "phi3":
            return _phi3(metadata)
        case "olmo2":
            return _olmo3(metadata) if window(metadata) else {}
        case "cohere2":
            return {"logit_scale": metadata.fields.number("cohere2.logit_scale")}
        case "ernie4_5-moe":
            return _ernie(metadata)
        case "starcoder2":
            return {"use_bias": metadata.has(f"{QUERY}.bias"), "sliding_window": _STARCODER2}
        case "gemma4":
            return gemma4_fields(metadata)
        case "gemma2" | "gemma3":
            return _gemma(metadata)
        case _:
            return {}


def _gemma(metadata: Metadata) -> Mapping[str, Any]:
    fields, kind = metadata.fields, metadata.kind
    num_heads, _ = metadata.num_heads()
    size = metadata.head_dim(num_heads)
    hidden = fields.integer(f"{kind}.embedding_length")
    if fields.integer(f"{kind}.block_count") == LARGEST_GEMMAS[kind]:
        size = None
    values: dict[str, Any] = {
        "norms_are_whole": True,
        "query_pre_attn_scalar": size or hidden // num_heads,
    }
    if kind == "gemma2":
        return values | {
            name: fields.optional_number(f"{kind}.{key}") for key, name in CAPS.items()
        }
    # The window's layers keep the base and the positions of the first Gemma 3.
    base = fields.number(f"{kind}.rope.freq_base_swa", default=10_000.0, positive=True)
    local = {"rope_theta": base, "rope_type": "default"}
    ropes = {"full_attention": metadata.rope(), "sliding_attention": local}
    return values | {"rope_parameters": ropes}


def _phi3(metadata: Metadata) -> Mapping[str, Any]:
    """Read LongRoPE, whose divisors are tensors."""
    long, short = (_numbers(metadata, name) for name in ROPE_FACTORS)
    if not long and not short:
        return {}
    scaling = {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "attention_factor": metadata.fields.optional_number("phi3.rope.scaling.attn_factor"),
    }
    return {
        "rope_parameters": {**metadata.rope(), **scaling},
        "original_max_position_embeddings": metadata.integer(
            "rope.scaling.original_context_length"
        ),
    }


def _numbers(metadata: Metadata, name: str) -> list[float]:
    stored = metadata.header.tensors.get(name)
    if stored is None:
        return []
    numbers = torch.empty(stored.shape)
    stored.read(numbers)
    return list(numbers.flatten().tolist())


def _olmo3(metadata: Metadata) -> Mapping[str, Any]:
    """Read the layers of a window, whose positions are not scaled."""
    full = metadata.rope()
    base = metadata.fields.optional_number("olmo2.rope.freq_base_swa", positive=True)
    local = {"rope_theta": base or full["rope_theta"], "rope_type": "default"}
    values: dict[str, Any] = {
        "rope_parameters": {"full_attention": full, "sliding_attention": local}
    }
    pattern = "attention.sliding_window_pattern"
    if f"{metadata.kind}.{pattern}" in metadata.fields.values:
        values["layer_types"] = [
            "sliding_attention" if each else "full_attention"
            for each in metadata.each_layer(pattern)
        ]
    return values


def _ernie(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "moe_num_experts": metadata.integer("expert_count"),
        "moe_k": metadata.integer("expert_used_count"),
        "moe_num_shared_experts": metadata.optional_integer("expert_shared_count"),
        "moe_layer_start_index": metadata.optional_integer("leading_dense_block_count"),
        "moe_layer_interval": metadata.optional_integer("interleave_moe_layer_step") or 1,
    }


def window(metadata: Metadata) -> int | None:
    """Read the tokens that a layer sees; None sees all.

    Of some the family says which layers have it; for Qwen no key does.
    """
    key = f"{metadata.kind}.attention.sliding_window"
    found = metadata.fields.optional_integer(key, minimum=0)
    longest = metadata.integer("context_length")
    if metadata.kind in _WITH_WINDOWS:
        return found or None
    if not found or (found >= longest and metadata.kind != "llama"):
        return None
    if metadata.kind != "llama":
        metadata.fields.fail(key, f"0, or at least context_length, {longest}")
    return found


def multipliers(metadata: Metadata) -> dict[str, float]:
    """Read the factors of Granite."""
    found = {
        name: metadata.fields.optional_number(f"{metadata.kind}.{key}")
        for key, name in MULTIPLIERS.items()
    }
    return {name: value for name, value in found.items() if value}
