"""Draws configurations of a family: each field present, absent or null, in old and new forms.

draw(random.Random(7), Qwen3Config)   # the values of a config.json
"""

from dataclasses import fields
from random import Random
from typing import Any

from transformers import PreTrainedConfig

from tests.model.family_table import SIZES
from tests.model.random_ropes import FULL, ROPE_NAMES, SLIDING, Values, draw_rope

LINEAR, CONV = "linear_attention", "conv"
ACTIVATIONS = ("silu", "silu", "gelu_pytorch_tanh", "gelu", "gelu_new", "relu2", "swish")
ACTIVATIONS += ("gelu_fast", "gelu_python_tanh")
EPS = (1e-6, 1e-5, 1e-3, 0.03)
FACTORS = (1.0, 0.4, 3.0)
FLAG = (True, False)

VALUES: dict[str, tuple[Any, ...]] = {
    # Sizes of all families.
    "intermediate_size": (112, 96),
    "num_attention_heads": (4, 2),
    "head_dim": (16, 32),
    "max_position_embeddings": (256, 128),
    "tie_word_embeddings": FLAG,
    **dict.fromkeys(("hidden_act", "hidden_activation", "mlp_hidden_act"), ACTIVATIONS),
    **dict.fromkeys(("mamba_hidden_act",), ("silu", "silu", "gelu")),
    **dict.fromkeys(
        ("rms_norm_eps", "norm_eps", "layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"), EPS
    ),
    # Attention.
    "sliding_window": (20, 7, 300),
    "sliding_window_pattern": (1, 2, 3),
    "max_window_layers": (0, 1, 2, 28),
    "query_pre_attn_scalar": (16, 24, 256),
    "final_logit_softcapping": (0.7, 30.0),
    "attn_logit_softcapping": (0.7, 30.0),
    "use_bidirectional_attention": (False, False, False, True),
    "no_rope_layers": ([1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]),
    "no_rope_layer_interval": (2, 3, 4),
    "position_embedding_type": ("rope", "nope"),
    "original_max_position_embeddings": (16, 256),
    "rope_local_base_freq": (100.0, 10_000.0),
    **dict.fromkeys(
        (
            "attention_bias",
            "mlp_bias",
            "use_bias",
            "use_sliding_window",
            "qkv_bias",
            "use_qk_norm",
            "qk_layernorm",
            "tie_embedding",
        ),
        FLAG,
    ),
    "is_causal": (True, False),
    "per_layer_config": ({}, {"0": {"intermediate_size": 80}}),
    # Factors.
    **dict.fromkeys(
        (
            "embedding_multiplier",
            "logits_scaling",
            "residual_multiplier",
            "attention_multiplier",
            "logit_scale",
            "lm_head_multiplier",
            "key_multiplier",
            "attention_in_multiplier",
            "attention_out_multiplier",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
        ),
        FACTORS,
    ),
    "mlp_multipliers": ([1.4, 0.6], [1.0, 1.0]),
    "ssm_multipliers": ([0.8, 1.1, 0.7, 0.9, 1.3],),
    # Experts.
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "moe_num_experts", "n_routed_experts"), (6, 4)
    ),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "top_k_experts"), (2, 3)),
    "moe_intermediate_size": (32, 48),
    "shared_expert_intermediate_size": (48, 32),
    "moe_shared_expert_intermediate_size": (48, 32),
    "shared_intermediate_size": (48, 32),
    "norm_topk_prob": FLAG,
    "decoder_sparse_step": (1, 2),
    "mlp_only_layers": ([1], [], [0, 2]),
    "num_dense_layers": (0, 1, 2),
    "use_expert_bias": FLAG,
    "routed_scaling_factor": (1.0, 2.5),
    "moe_num_shared_experts": (2, 1, 0),
    "moe_layer_start_index": (0, 1),
    "moe_layer_end_index": (-1, 1, 2),
    "moe_layer_interval": (1, 2),
    "moe_norm_min": (1e-12, 0.5),
    "n_group": (1, 1, 1, 2),
    "topk_group": (1, 1, 1, 2),
    "n_shared_experts": (1, 1, 1, 2),
    "moe_latent_size": (None, 32),
    "swiglu_alpha": (1.702, 1.3),
    "swiglu_limit": (7.0, 0.7),
    "enable_moe_block": FLAG,
    # Gemma 4.
    "global_head_dim": (48, 16),
    "num_global_key_value_heads": (1, 2),
    "vocab_size_per_layer_input": (131,),
    "hidden_size_per_layer_input": (24, 0),
    "attention_k_eq_v": FLAG,
    "num_kv_shared_layers": (0, 1, 2),
    "use_double_wide_mlp": FLAG,
    # Recurrent states.
    "linear_num_key_heads": (2, 1),
    "linear_num_value_heads": (4, 2),
    "linear_key_head_dim": (24, 16),
    "linear_value_head_dim": (32, 16),
    "linear_conv_kernel_dim": (4, 3),
    "linear_allow_neg_eigval": FLAG,
    "full_attention_interval": (2, 3),
    "conv_bias": FLAG,
    "conv_L_cache": (3, 5),
    "block_auto_adjust_ff_dim": FLAG,
    "block_multiple_of": (32, 16),
    "block_ffn_dim_multiplier": (1.0, 1.5),
    "block_ff_dim": (80, 112),
    "full_attn_idxs": ([0, 2], [1]),
    "attn_layer_indices": ([0, 2], [1]),
    "mamba_n_heads": (4, 2),
    "mamba_d_head": ("auto", 32, 64),
    "mamba_d_ssm": (128, 64, None),
    "mamba_d_state": (24, 32),
    "mamba_n_groups": (1, 2),
    "mamba_d_conv": (4, 3),
    "mamba_expand": (2, 1),
    "mamba_conv_bias": FLAG,
    "mamba_proj_bias": FLAG,
    "projectors_bias": FLAG,
    "mamba_rms_norm": FLAG,
    "mamba_norm_before_gate": FLAG,
    "time_step_limit": ([0.0, float("inf")], [0.01, 0.5]),
    "ssm_state_size": (24, 32),
    "mamba_num_heads": (4, 2),
    "mamba_head_dim": (32, 16),
    "n_groups": (1, 2),
    "conv_kernel": (4, 3),
    "use_conv_bias": FLAG,
    "residual_in_fp32": (False, False, True),
    "layers_block_type": (),
}
"""What fields may have, by their names; what `draw_kinds` and others draw has nothing here."""

KINDS: dict[str, tuple[str, ...]] = {
    "lfm2": (FULL, CONV),
    "lfm2_moe": (FULL, CONV),
    "qwen3_5_text": (FULL, LINEAR),
    "qwen3_5_moe_text": (FULL, LINEAR),
    "qwen3_next": (FULL, LINEAR),
    "olmo_hybrid": (FULL, LINEAR),
    "granitemoehybrid": (FULL, LINEAR, "attention", "mamba"),
}
"""Of layers, by model type; those of others see all tokens or have a window."""

MOSTLY_SILU: dict[str, tuple[Any, ...]] = {
    "hidden_act": (*6 * ("silu",), "swish", "gelu"),
    "time_step_limit": (*7 * ([0.0, float("inf")],), [0.01, 0.5]),
}
OWN: dict[str, dict[str, tuple[Any, ...]]] = {
    "gemma3_text": {"attn_logit_softcapping": (*7 * (None,), 0.7)},
    "gemma4_text": {
        "use_bidirectional_attention": (*9 * (None,), *9 * ("vision",), "all"),
        "num_kv_shared_layers": (0, 0, 0, 1),
        "enable_moe_block": (False, True),
    },
    "ernie4_5_moe": {"use_bias": (False, False, False, True)},
    "nemotron_h": {
        "sliding_window": (*7 * (None,), 20),
        "moe_latent_size": (*7 * (None,), 32),
        "topk_group": (*7 * (1,), 2),
        "residual_in_fp32": (*7 * (False,), True),
        "mamba_hidden_act": (*7 * ("silu",), "gelu"),
        "time_step_limit": (*7 * ([0.0, float("inf")],), [0.01, 0.5]),
        "n_group": (*7 * (1,), 2),
        "n_routed_experts": (6, 4),
        "num_experts_per_tok": (2, 3),
        "use_bias": FLAG,
    },
    **dict.fromkeys(("gpt_oss", "bamba", "granitemoehybrid", "olmo_hybrid"), MOSTLY_SILU),
    **{
        kind: {**MOSTLY_SILU, "full_attention_interval": (2, 1)}
        for kind in ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
    },
    "falcon_h1": {
        **MOSTLY_SILU,
        "mamba_norm_before_gate": (*3 * (False,), True),
        "ssm_in_multiplier": (*3 * (1.0,), 0.4),
        "attention_in_multiplier": (*3 * (1.0,), 0.4),
    },
}
"""What fields of a model type have, where most values of `VALUES` would be refused."""

RARELY_BY_DEFAULT = {"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "gemma4_text"}
"""The model types whose layers are all of one kind, where there are few and no field says so."""

REQUIRED = {
    *SIZES,
    *("head_dim", "moe_intermediate_size", "num_experts", "num_local_experts", "moe_num_experts"),
    *("n_routed_experts", "shared_expert_intermediate_size", "shared_intermediate_size"),
    *("moe_shared_expert_intermediate_size", "global_head_dim", "vocab_size_per_layer_input"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "mamba_n_heads"),
    *("linear_value_head_dim", "mamba_d_ssm", "mamba_d_state", "ssm_state_size", "n_groups"),
    *("mamba_num_heads", "mamba_head_dim", "hidden_size_per_layer_input", "num_experts_per_tok"),
    *("moe_k", "attn_layer_indices", "top_k_experts", "mamba_norm_before_gate"),
}
"""Fields whose defaults are sizes of large models: mostly there."""

LEGACY = {
    "gemma3_text": ("sliding_window_pattern",),
    "cohere2": ("sliding_window_pattern",),
    "lfm2": ("tie_embedding", "block_ff_dim"),
    "lfm2_moe": ("tie_embedding",),
    "ernie4_5_moe": ("num_experts", "num_experts_per_tok"),
    "mixtral": ("num_experts",),
    "nemotron_h": ("mamba_n_groups", "mamba_d_conv", "mamba_conv_bias"),
    "qwen3_moe": ("head_dim", "num_local_experts"),
    "gemma4_text": ("global_head_dim", "num_global_key_value_heads"),
    **dict.fromkeys(
        ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), ("full_attention_interval",)
    ),
}
"""Fields of old files that a class reads, and has no field for."""

IRRELEVANT = {
    *("initializer_range", "use_cache", "attention_dropout", "pad_token_id", "pretraining_tp"),
    *("resid_pdrop", "embd_pdrop", "residual_dropout", "embedding_dropout", "hidden_dropout"),
    *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "num_logits_to_keep"),
    *("z_loss_coefficient", "use_mamba_kernels", "mamba_ssm_cache_dtype", "chunk_size"),
    *("mamba_chunk_size", "time_step_min", "time_step_max", "time_step_floor", "expand"),
    *("rescale_prenorm_residual", "num_nextn_predict_layers", "mtp_layers_block_type"),
    *("moe_shared_expert_overlap", "linear_a_log_min", "linear_a_log_max", "linear_dt_min"),
    *("linear_dt_max", "linear_dt_init_floor"),
    *(field.name for field in fields(PreTrainedConfig)),
}
"""Fields that say nothing about the logits of a prompt in float32."""


def is_known(name: str) -> bool:
    """Return whether `draw` gives a field values, or has a reason not to."""
    drawn = {"num_key_value_heads", "layer_types", "rope_parameters", *ROPE_NAMES}
    return name in VALUES.keys() | SIZES.keys() | drawn | IRRELEVANT


def draw(random: Random, config_class: type[PreTrainedConfig]) -> Values:
    """Return the values of a config.json, without the name of the architecture.

    About one in three has fields of other families, which this one may or may not read.
    """
    own = [field for field in fields(config_class) if field.name not in IRRELEVANT]
    options = {**VALUES, **OWN.get(config_class.model_type, {})}
    values: Values = {**SIZES, "model_type": config_class.model_type}
    values |= {"pad_token_id": 0, "dtype": "float32"}
    values["num_hidden_layers"] = random.choice((3, 3, 2, 4))
    optional = {field.name: "None" in str(field.type) for field in own}
    for field in own:
        if not options.get(field.name):
            continue
        share = 0.98 if field.name in REQUIRED else 0.5
        # Where null is no default, code of `transformers` mostly fails with it.
        null = 0.2 if field.default is None else 0.005 * optional[field.name]
        at = random.random()
        if at < share:
            values[field.name] = random.choice(options[field.name])
        elif at > 1 - null and field.name not in SIZES:
            values[field.name] = None
    legacy = [
        name
        for name in LEGACY.get(config_class.model_type, ())
        if random.random() < (0.95 if name in REQUIRED else 0.3)
    ]
    values |= {name: random.choice(options[name]) for name in legacy}
    if random.random() < 0.35:
        others = [name for name in VALUES if name not in optional and VALUES[name]]
        values |= {name: random.choice(VALUES[name]) for name in random.sample(others, 4)}
    if config_class.model_type == "falcon_h1" and random.random() < 0.9:
        values["projectors_bias"] = values["mamba_proj_bias"] = random.choice(FLAG)
    if "mamba_d_head" in values:
        # Two sizes say what the third is.
        inner = (
            values.get("mamba_d_ssm") or (values.get("mamba_expand") or 2) * values["hidden_size"]
        )
        num_heads = values.get("mamba_n_heads") or 1
        values["mamba_d_head"] = random.choice(("auto", inner // num_heads))
    num_heads = values["num_attention_heads"]
    values["num_key_value_heads"] = random.choice([n for n in (1, 2, 4) if num_heads % n == 0])
    may_be_null = optional.get("num_key_value_heads") and config_class.model_type != "ernie4_5_moe"
    if may_be_null and random.random() < 0.2:
        values["num_key_value_heads"] = None
    values |= _kinds(random, config_class, values)
    values |= draw_rope(random, config_class.model_type, values)
    return values


def _kinds(random: Random, config_class: type[PreTrainedConfig], values: Values) -> Values:
    num_layers, kind = values["num_hidden_layers"], config_class.model_type
    if kind == "nemotron_h":
        layers = random.sample("M*-E", 4) + random.choices("M*-E", k=random.choice((0, 1)))
        names = {"M": ("mamba", LINEAR), "*": ("attention", FULL), "-": ("mlp",), "E": ("moe",)}
        if random.random() < 0.4:
            return {"hybrid_override_pattern": "".join(layers)}
        key = random.choice(("layers_block_type", "layer_types"))
        return {key: [random.choice(names[letter]) for letter in layers]}
    names = {field.name for field in fields(config_class)}
    has_kinds = "layer_types" in names
    is_given = kind in {"lfm2_moe", "granitemoehybrid", *RARELY_BY_DEFAULT}
    if random.random() > (0.9 if is_given else 0.6 if has_kinds else 0.02):
        return {"layer_types": None} if has_kinds and random.random() < 0.3 else {}
    # Without a window in use, `transformers` has no mask for one.
    windows = values.get("sliding_window", 1) and values.get("use_sliding_window", True)
    if "use_sliding_window" in names and not values.get("use_sliding_window"):
        windows = random.random() < 0.05
    kinds = random.choices(KINDS.get(kind, (FULL, SLIDING) if windows else (FULL,)), k=num_layers)
    if kind in KINDS:
        # One of each.
        kinds[:2] = random.sample(KINDS[kind][:2], 2)
    elif kind == "gemma4_text":
        kinds[:2], kinds[-1] = [SLIDING, FULL], FULL
    return {"layer_types": kinds}
