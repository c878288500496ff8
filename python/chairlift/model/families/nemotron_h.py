"""Nemotron-H and Nemotron 3: a layer is one block of Mamba-2, attention, feed-forward or experts.

Time steps have no lower bound, as where the models were trained; `transformers` 5.24 holds those of
a prompt to at least `time_step_min`, and none of a decode.
"""

from dataclasses import replace

from chairlift.checkpoints.files.fields import MAX_OF, Fields
from chairlift.model.families.family import (
    LLAMA_NAMES,
    Family,
    attention,
    decoder,
    expect_silu,
    experts,
    mlp,
    state_names,
)
from chairlift.model.families.granite import check_time_step_limit
from chairlift.model.specs.layer_parts import Experts, Mlp, RmsNorm
from chairlift.model.specs.model_spec import LayerSpec, ModelSpec
from chairlift.model.specs.recurrence import Mamba2

_MAMBA, _ATTENTION, _MLP, _MOE = "mamba", "attention", "mlp", "moe"
_LETTERS = {"M": _MAMBA, "*": _ATTENTION, "-": _MLP, "E": _MOE}
_NAMES = {
    **{name: name for name in _LETTERS.values()},
    "linear_attention": _MAMBA,
    "full_attention": _ATTENTION,
}
"""The names that published checkpoints and `transformers` give each kind of layer."""
_ACTIVATION = "mlp_hidden_act"
_ALIASES = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
}
"""Other names of fields, which count first."""


def _kinds(fields: Fields) -> list[str]:
    """Read the block of each layer, from a list of names or a text with a letter for each."""
    key, table = "layer_types", _NAMES
    names = fields.values.get(key)
    if names is None:
        key = "layers_block_type"
        names = fields.values.get(key)
    if names is None:
        key, table = "hybrid_override_pattern", _LETTERS
        pattern = fields.values.get(key)
        names = list(pattern) if isinstance(pattern, str) else None
    max_layers = MAX_OF["num_hidden_layers"]
    if not isinstance(names, list) or len(names) > max_layers:
        fields.fail(key, f"at most {max_layers} blocks")
    kinds = [table[name] for name in names if isinstance(name, str) and name in table]
    if len(kinds) != len(names) or _ATTENTION not in kinds:
        fields.fail(key, f"{', '.join(table)} alone, one of them attention")
    return kinds


def _mamba(fields: Fields, norm: RmsNorm) -> Mamba2:
    num_heads, num_groups = fields.integer("mamba_num_heads"), fields.integer("n_groups")
    if num_heads % num_groups:
        fields.fail("n_groups", f"a divisor of {num_heads}")
    expect_silu(fields, "mamba_hidden_act")
    check_time_step_limit(fields)
    return Mamba2(
        num_heads=num_heads,
        head_dim=fields.integer("mamba_head_dim"),
        num_groups=num_groups,
        state_dim=fields.integer("ssm_state_size"),
        num_taps=fields.integer("conv_kernel"),
        norm_eps=norm.eps,
        conv_bias=fields.flag("use_conv_bias"),
        bias=fields.flag("use_bias"),
    )


def _experts(fields: Fields) -> Experts:
    for name, expected in (("n_group", 1), ("n_shared_experts", 1), ("moe_latent_size", None)):
        if fields.values.get(name) != expected:
            fields.fail(name, "null" if expected is None else str(expected))
    sparse = experts(fields, "sigmoid", num="n_routed_experts", key=_ACTIVATION)
    shared = fields.integer("moe_shared_expert_intermediate_size")
    return replace(
        sparse,
        min_weight_sum=1e-20 if fields.flag("norm_topk_prob") else None,
        multiplier=fields.number("routed_scaling_factor"),
        gated=False,
        has_choice_bias=True,
        shared=Mlp(shared, sparse.activation, gated=False, bias=fields.flag("mlp_bias")),
    )


def _nemotron_h(fields: Fields) -> ModelSpec:
    names = {new: fields.values[old] for old, new in _ALIASES.items() if old in fields.values}
    fields = Fields(fields.path, {**fields.values, **names}, fields.prefix, fields.keys)
    for name in ("sliding_window", "residual_in_fp32"):
        if fields.values.get(name):
            fields.fail(name, "null or false")
    norm = RmsNorm(fields.number("layer_norm_epsilon"))
    kinds = _kinds(fields)
    attended = LayerSpec(attention(fields), None, norm).without_rope()
    by_kind = {_ATTENTION: attended}
    if _MAMBA in kinds:
        by_kind[_MAMBA] = attended.with_state(_mamba(fields, norm))
    if _MLP in kinds:
        dense = mlp(fields, bias=fields.flag("mlp_bias"), gated=False, key=_ACTIVATION)
        by_kind[_MLP] = LayerSpec(None, dense, norm)
    if _MOE in kinds:
        by_kind[_MOE] = LayerSpec(None, _experts(fields), norm)
    return decoder(fields, [by_kind[kind] for kind in kinds], final_norm=norm)


NEMOTRON_H = Family(
    _nemotron_h,
    replace(
        LLAMA_NAMES.with_parts(
            attention_norm="norm",
            qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
            output="mixer.o_proj",
            feed_forward_norm="norm",
            gate_up="mixer.up_proj",
            down="mixer.down_proj",
            router="mixer.gate",
            choice_bias="mixer.gate.e_score_correction_bias",
            expert_gate_up="mixer.experts.{}.up_proj",
            expert_down="mixer.experts.{}.down_proj",
            shared_gate_up="mixer.shared_experts.up_proj",
            shared_down="mixer.shared_experts.down_proj",
            projection="mixer.in_proj",
            conv="mixer.conv1d",
            mixed_output="mixer.out_proj",
            **state_names("mixer"),
        ),
        embedding="backbone.embeddings",
        final_norm="backbone.norm_f",
        layers="backbone.layers",
        choice_bias_axes=1,
    ),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "layer_norm_epsilon": 1e-5,
        "mlp_hidden_act": "relu2",
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "norm_topk_prob": True,
    },
    ignored=("mtp.",),
    ignores_code=True,
)
