"""Granite 3 and 4: multipliers of embeddings, scores, updates of the stream and logits."""

from collections.abc import Sequence
from dataclasses import replace

from chairlift.checkpoints.files.fields import Fields
from chairlift.model.families.family import (
    LLAMA_NAMES,
    Family,
    activation,
    attention,
    decoder,
    expect_silu,
    experts,
    mlp,
    rms_norm,
    state_names,
)
from chairlift.model.specs.layer_parts import Experts, Mlp
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.recurrence import Mamba2

DEFAULTS = {
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}


def granite_layer(fields: Fields) -> LayerSpec:
    """Read a layer with its multipliers."""
    bias, multiplier = fields.flag("attention_bias"), fields.number("residual_multiplier")
    # A GGUF file of this architecture may be that of a Bamba.
    partial = fields.flag("rotates_a_part")
    heads = attention(fields, qkv_bias=bias, out_bias=bias, partial=partial)
    return LayerSpec(
        replace(heads, multiplier=fields.number("attention_multiplier", positive=True)),
        mlp(fields, bias=fields.flag("mlp_bias")),
        rms_norm(fields),
        attention_multiplier=multiplier,
        recurrent_multiplier=multiplier,
        feed_forward_multiplier=multiplier,
    )


def granite_experts(fields: Fields) -> Experts:
    """Read the experts of a layer."""
    return experts(fields, "softmax_of_chosen", num="num_local_experts", width="intermediate_size")


def granite_decoder(fields: Fields, layers: Sequence[LayerSpec]) -> ModelSpec:
    """Build the spec of some layers, with the multipliers of both ends."""
    return decoder(
        fields,
        layers,
        embedding_multiplier=fields.number("embedding_multiplier"),
        logits_multiplier=1.0 / fields.number("logits_scaling", positive=True),
    )


def _spec(fields: Fields) -> ModelSpec:
    return granite_decoder(fields, [granite_layer(fields)] * fields.integer("num_hidden_layers"))


def _hybrid(fields: Fields) -> ModelSpec:
    """Read Granite 4: Mamba-2 or attention in each layer, perhaps with experts."""
    attended = granite_layer(fields)
    position = fields.values.get("position_embedding_type")
    if position not in (None, "nope", "rope"):
        fields.fail("position_embedding_type", "nope or rope")
    if position != "rope":
        attended = attended.without_rope()
    shared = Mlp(fields.integer("shared_intermediate_size"), activation(fields))
    feed_forward: Mlp | Experts = shared
    if fields.integer("num_local_experts", minimum=0):
        feed_forward = replace(granite_experts(fields), shared=shared)
    attended = replace(attended, feed_forward=feed_forward)
    kinds = fields.values.get("layers_block_type") or fields.values.get("layer_types")
    num_layers = fields.integer("num_hidden_layers")
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        fields.fail("layer_types", f"a list of {num_layers} names")
    if any(kind not in (*_WITH_ATTENTION, *_WITH_STATE) for kind in kinds):
        fields.fail("layer_types", "a list of attention or mamba alone")
    if not any(kind in _WITH_ATTENTION for kind in kinds):
        fields.fail("layer_types", "at least one attention")
    recurrent = attended
    if any(kind in _WITH_STATE for kind in kinds):
        recurrent = attended.with_state(mamba(fields))
    layers = [attended if kind in _WITH_ATTENTION else recurrent for kind in kinds]
    return granite_decoder(fields, layers)


_WITH_ATTENTION = "attention", "full_attention"
_WITH_STATE = "mamba", "linear_attention"
"""The names of published checkpoints, and those of `transformers`."""


_NO_LIMITS = None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]
"""The forms in which JSON has no limits."""


def mamba(fields: Fields) -> Mamba2:
    """Read the sizes of Mamba-2."""
    inner = fields.optional_integer("mamba_d_ssm")
    if inner is None:
        inner = fields.integer("mamba_expand") * fields.integer("hidden_size")
    num_heads, num_groups = fields.integer("mamba_n_heads"), fields.integer("mamba_n_groups")
    if inner % num_heads:
        fields.fail("mamba_n_heads", f"a divisor of {inner}")
    if num_heads % num_groups:
        fields.fail("mamba_n_groups", f"a divisor of {num_heads}")
    if fields.values.get("mamba_d_head") not in (None, "auto", inner // num_heads):
        fields.fail("mamba_d_head", f"{inner // num_heads}, as the other sizes have it")
    expect_silu(fields)
    check_time_step_limit(fields)
    return Mamba2(
        num_heads=num_heads,
        head_dim=inner // num_heads,
        num_groups=num_groups,
        state_dim=fields.integer("mamba_d_state"),
        num_taps=fields.integer("mamba_d_conv"),
        norm_eps=rms_norm(fields).eps,
        conv_bias=fields.flag("mamba_conv_bias"),
        bias=fields.flag("mamba_proj_bias"),
    )


def check_time_step_limit(fields: Fields) -> None:
    """Refuse bounds of the time steps of Mamba-2."""
    if fields.values.get("time_step_limit") not in _NO_LIMITS:
        fields.fail("time_step_limit", "0 to infinity")


MAMBA_NAMES = LLAMA_NAMES.with_parts(
    projection="mamba.in_proj",
    conv="mamba.conv1d",
    mixed_output="mamba.out_proj",
    **state_names("mamba"),
)
FEED_FORWARD_NAMES = replace(
    MAMBA_NAMES.with_parts(
        feed_forward_norm="pre_ff_layernorm",
        gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
        down="feed_forward.down_proj",
    ),
    final_norm="model.final_layernorm",
)
"""What Bamba and Falcon-H1 call their parts."""
MAMBA_DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
}
GRANITE = Family(_spec, LLAMA_NAMES, defaults=DEFAULTS)
GRANITE_HYBRID = Family(
    _hybrid,
    MAMBA_NAMES.with_parts(
        gate_up="shared_mlp.input_linear",
        down="shared_mlp.output_linear",
        shared_gate_up="shared_mlp.input_linear",
        shared_down="shared_mlp.output_linear",
        router="block_sparse_moe.router.layer",
        expert_gate_up="block_sparse_moe.input_linear.{}",
        expert_down="block_sparse_moe.output_linear.{}",
    ),
    defaults={
        **DEFAULTS,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        **MAMBA_DEFAULTS,
    },
)
