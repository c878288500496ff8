"""The fields of config.json of architectures of attention alone that need others than most."""

from collections.abc import Mapping
from typing import Any, Final

from chairlift.model.gguf.metadata import Metadata

MULTIPLIERS: Final = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
"""Of Granite."""
CAPS: Final = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Of Gemma 2."""
LARGEST_GEMMAS: Final = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose queries are scaled by the width of the model."""


def decoder_fields(own: Metadata) -> Mapping[str, Any]:
    """Read the fields that an architecture has beside those of all."""
    fields, kind = own.fields, own.kind
    if kind not in LARGEST_GEMMAS:
        return {}
    num_heads, _ = own.num_heads()
    size = own.head_dim(num_heads)
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
    ropes = {"full_attention": own.rope(), "sliding_attention": local}
    return values | {"rope_parameters": ropes}


def multipliers(own: Metadata) -> dict[str, float]:
    """Read the factors of Granite."""
    found = {
        name: own.fields.optional_number(f"{own.kind}.{key}") for key, name in MULTIPLIERS.items()
    }
    return {name: value for name, value in found.items() if value}
