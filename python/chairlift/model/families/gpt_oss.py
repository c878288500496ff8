"""gpt-oss: attention with sinks, a window in every other layer, and experts that clamp gates."""

from dataclasses import replace

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import (
    LLAMA_NAMES,
    Family,
    attention,
    decoder,
    expect_silu,
    experts,
    kinds_by_pattern,
    rms_norm,
    windows_by_kind,
)
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The defaults of `transformers` where config.json has no such fields."""


def _gpt_oss(fields: Fields) -> ModelSpec:
    if fields.values.get("rope_parameters") is None:
        fields = Fields(fields.path, {**fields.values, "rope_parameters": _ROPE}, keys=fields.keys)
    expect_silu(fields)
    bias = fields.flag("attention_bias")
    sparse = replace(
        experts(fields, "softmax_of_chosen", num="num_local_experts", width="intermediate_size"),
        limit=fields.number("swiglu_limit", positive=True),
        alpha=fields.number("swiglu_alpha"),
        bias=True,
        router_bias=True,
    )
    heads = replace(attention(fields, qkv_bias=bias, out_bias=bias), has_sinks=True)
    layer = LayerSpec(heads, sparse, rms_norm(fields))
    kinds = kinds_by_pattern(fields, 2, fixed=True)
    windows = windows_by_kind(fields, kinds, fields.optional_integer("sliding_window"))
    return decoder(fields, [layer.with_window(window) for window in windows])


GPT_OSS = Family(
    _gpt_oss,
    replace(
        LLAMA_NAMES.with_parts(
            sinks="self_attn.sinks",
            router="mlp.router",
            expert_gate_up="mlp.experts.{}.gate_up_proj",
        ),
        has_interleaved_experts=True,
        experts_transposed=True,
    ),
    defaults={
        "attention_bias": True,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "num_experts_per_tok": 4,
        "num_local_experts": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        # That of the published checkpoints, whose config.json names none.
        "torch_dtype": "bfloat16",
    },
)
